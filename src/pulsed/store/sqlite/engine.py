"""SQLite's engine for the verbs: one writer at a time, so no row has to be locked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from pulsed.model.job import Lease, NewJob
from pulsed.model.outcome import Beat
from pulsed.store.sql import rows as decode
from pulsed.store.sql.insertion import insertion
from pulsed.store.sql.statement import Row, Rows, Statement, one_column
from pulsed.store.sqlite.claim import claim_due
from pulsed.store.sqlite.dialect import SqliteDialect
from pulsed.store.sqlite.limited import SqliteLimitedStatements, claim_granted
from pulsed.store.sqlite.statements import (
    SqliteClaimStatements,
    SqliteLeaseStatements,
    SqliteRecoveryStatements,
    SqliteSettleStatements,
    SqliteSubmitStatements,
)
from pulsed.store.sqlite.values import are_alike
from pulsed.store.verbs.engine import (
    Claim,
    Claimed,
    EndedChildren,
    Engine,
    KeyGrant,
    SuccessColumns,
    SuccessRow,
)
from pulsed.store.verbs.floors import Walk
from pulsed.store.verbs.script import Script


class SqliteEngine(Engine):
    """Batch writes that return a row count, and claims of one priority after the other."""

    claiming: SqliteClaimStatements
    leases: SqliteLeaseStatements
    limited: SqliteLimitedStatements
    recovery: SqliteRecoveryStatements
    settling: SqliteSettleStatements
    submission: SqliteSubmitStatements

    def __init__(self) -> None:
        dialect = SqliteDialect()
        super().__init__(dialect)
        self.claiming = SqliteClaimStatements(dialect)
        self.leases = SqliteLeaseStatements(dialect)
        self.limited = SqliteLimitedStatements(dialect)
        self.recovery = SqliteRecoveryStatements(dialect)
        self.settling = SqliteSettleStatements(dialect)
        self.submission = SqliteSubmitStatements(dialect)

    def insert(self, jobs: Sequence[NewJob]) -> Script[Iterable[UUID] | None]:
        [(count,)] = yield insertion(self.submission.submit, jobs)
        if count == len(jobs):
            return None
        rows = yield Statement(self.submission.last_inserted, {"inserted": count})
        return [self.dialect.uuid(job_id) for (job_id,) in rows]

    def claim_due(
        self, claim: Claim, limit: int, walk: Walk, *, suspects: bool = False
    ) -> Script[Claimed]:
        return claim_due(self.claiming, self.leases, claim, limit, walk, suspects=suspects)

    def claim_granted(
        self, claim: Claim, grants: Sequence[KeyGrant], *, suspects: bool = False
    ) -> Script[list[Row]]:
        return claim_granted(
            self.limited, self.claiming, self.leases, claim, grants, suspects=suspects
        )

    def extend(self, leases: Sequence[Lease]) -> Script[dict[Lease, Beat]]:
        answers = dict.fromkeys(leases, Beat.LOST)
        [(extended,)] = yield Statement(self.leases.beat, {}, leases)
        if extended == len(answers):
            answers = dict.fromkeys(answers, Beat.OK)
        for row in (yield Statement(self.leases.still_held, {}, leases)):
            *_, is_cancelled = row
            answers[decode.lease(self.dialect, row)] = Beat.CANCEL if is_cancelled else Beat.OK
        return answers

    def end_successes(self, worker_id: UUID, runs: SuccessColumns) -> Script[int]:
        ids, tokens, results = runs
        if not (are_alike(tokens) and are_alike(results)):
            return (yield from super().end_successes(worker_id, runs))
        shared = {"worker": worker_id, "token": tokens[0], "outcome_result": results[0]}
        [(count,)] = yield Statement(self.settling.settle_alike, shared, columns=[ids])
        return int(count)

    def end_children(self, worker_id: UUID, ended: Sequence[SuccessRow]) -> Script[EndedChildren]:
        worker = {"worker": worker_id}
        [(count,)] = yield Statement(self.settling.settle_children, worker, ended)
        jobs = one_column(job_id for job_id, _, _ in ended)
        parents = yield Statement(self.families.parents, {}, jobs)
        return EndedChildren(count, [parent for (parent,) in parents if parent is not None])

    def reap(self, limit: int, expiries: Sequence[tuple[int, datetime]]) -> Script[Rows]:
        return (yield Statement(self.recovery.reap, {"most": limit}, expiries))

"""PostgreSQL's engine for the verbs: rows are locked, and a write returns what it changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID
from zlib import crc32

from pulsed.model.job import Lease, NewJob
from pulsed.model.job_batch import JobBatch
from pulsed.model.outcome import Beat
from pulsed.store.postgres.claim import claim_due
from pulsed.store.postgres.confirm import CONFIRM
from pulsed.store.postgres.dialect import PostgresDialect
from pulsed.store.postgres.limited import PostgresLimitedStatements, claim_granted
from pulsed.store.postgres.savepoint import (
    RELEASE_SAVEPOINT,
    RETURN_TO_SAVEPOINT,
    SET_SAVEPOINT,
)
from pulsed.store.postgres.statements import (
    BETWEEN_PAYLOADS,
    PostgresClaimStatements,
    PostgresLeaseStatements,
    PostgresRecoveryStatements,
    PostgresSettleStatements,
    PostgresSubmitStatements,
)
from pulsed.store.sql import rows as decode
from pulsed.store.sql.insertion import insertion, shared_columns
from pulsed.store.sql.statement import Row, Rows, Statement, one_column
from pulsed.store.verbs.engine import (
    Claim,
    Claimed,
    EndedChildren,
    Engine,
    KeyGrant,
    SuccessRow,
)
from pulsed.store.verbs.floors import Walk
from pulsed.store.verbs.script import Script

KEY_LOCKS = 256
"""Advisory locks that all keys share: a transaction may have so many."""


class PostgresEngine(Engine):
    """Claims of all priorities in one statement, and row locks in one order."""

    claiming: PostgresClaimStatements
    leases: PostgresLeaseStatements
    limited: PostgresLimitedStatements
    recovery: PostgresRecoveryStatements
    settling: PostgresSettleStatements
    submission: PostgresSubmitStatements

    def __init__(self, dialect: PostgresDialect) -> None:
        super().__init__(dialect)
        self.claiming = PostgresClaimStatements(dialect)
        self.leases = PostgresLeaseStatements(dialect)
        self.limited = PostgresLimitedStatements(dialect)
        self.recovery = PostgresRecoveryStatements(dialect)
        self.settling = PostgresSettleStatements(dialect)
        self.submission = PostgresSubmitStatements(dialect)

    def insert(self, jobs: Sequence[NewJob]) -> Script[Iterable[UUID] | None]:
        if isinstance(jobs, JobBatch) and jobs.is_untried:
            jobs.is_untried = False  # before it is sent: of what was sent, a retry may find all
            yield self._first_insertion(jobs)
            return None
        [(_, new)] = yield insertion(self.submission.report, jobs)
        if new is None:
            return None
        return map(UUID, new.split(",")) if new else ()

    def _first_insertion(self, jobs: JobBatch) -> Statement:
        shared = shared_columns(jobs)
        payloads = BETWEEN_PAYLOADS.join(jobs.payloads)
        params = {**shared, "payload": payloads}
        return Statement(self.submission.submit_first(tuple(shared)), params, columns=[jobs.ids])

    def claim_due(
        self, claim: Claim, limit: int, walk: Walk, *, suspects: bool = False
    ) -> Script[Claimed]:
        return claim_due(self.claiming, claim, limit, walk, suspects=suspects)

    def claim_granted(
        self, claim: Claim, grants: Sequence[KeyGrant], *, suspects: bool = False
    ) -> Script[list[Row]]:
        return claim_granted(self.limited, claim, grants, suspects=suspects)

    def extend(self, leases: Sequence[Lease]) -> Script[dict[Lease, Beat]]:
        answers = dict.fromkeys(leases, Beat.LOST)
        for row in (yield Statement(self.leases.beat, {}, leases)):
            *_, is_cancelled = row
            answers[decode.lease(self.dialect, row)] = Beat.CANCEL if is_cancelled else Beat.OK
        missing = [lease for lease, answer in answers.items() if answer is Beat.LOST]
        if missing:
            for row in (yield Statement(self.leases.still_held, {}, missing)):
                answers[decode.lease(self.dialect, row)] = Beat.UNKNOWN
        return answers

    def end_children(self, worker_id: UUID, ended: Sequence[SuccessRow]) -> Script[EndedChildren]:
        worker = {"worker": worker_id}
        [(count, waiting)] = yield Statement(self.settling.settle_children, worker, ended)
        return EndedChildren(count, waiting)

    def reap(self, limit: int, expiries: Sequence[tuple[int, datetime]]) -> Script[Rows]:
        found = yield Statement(self.recovery.expired_in_families, {}, expiries)
        left_alone = yield from self.lock_free(job_id for (job_id,) in found)
        params = {"most": limit, "left_alone": list(left_alone)}
        return (yield Statement(self.recovery.reap, params, expiries))

    def lock(self, ids: Iterable[Any]) -> Script[None]:
        yield Statement(self.families.lock, {}, one_column(ids))

    def lock_keys(self, keys: Iterable[tuple[str, str]]) -> Script[None]:
        slots = sorted({crc32("\0".join(key).encode()) % KEY_LOCKS for key in keys})
        yield Statement(self.submission.lock_keys, {"slots": slots})

    def confirm(self) -> Script[None]:
        yield CONFIRM

    def set_savepoint(self) -> Script[None]:
        yield SET_SAVEPOINT

    def return_to_savepoint(self) -> Script[bool]:
        yield RETURN_TO_SAVEPOINT
        return True

    def release_savepoint(self) -> Script[None]:
        yield RELEASE_SAVEPOINT

    def lock_queue(self, queue: str) -> Script[None]:
        slot = crc32(queue.encode()) - 2**31  # the range of an int
        yield Statement(self.submission.lock_queue, {"slot": slot})

    def claims_in_flight(self) -> Script[set[Any]]:
        return {row[0] for row in (yield Statement(self.claiming.in_flight, {}))}

    def lock_families(self, ids: Iterable[Any]) -> Script[None]:
        yield Statement(self.families.lock_families, {}, one_column(ids))

    def lock_free(self, ids: Iterable[Any]) -> Script[set[Any]]:
        jobs = one_column(ids)
        if not jobs:
            return set()
        found = yield Statement(self.families.with_parents, {}, jobs)
        related = [(job_id, job_id) for job_id, _ in found]
        related += [(job_id, parent) for job_id, parent in found if parent is not None]
        waiters = yield Statement(self.waiting.waiters, {}, jobs)
        related += [(job_id, waiter) for waiter, job_id in waiters]
        wanted = one_column(each for _, each in related)
        free = {each for (each,) in (yield Statement(self.families.lock_free, {}, wanted))}
        return {job_id for job_id, each in related if each not in free}

"""What a worker does under its leases: heartbeats and progress."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pulsed.model.job import Lease
from pulsed.model.outcome import (
    Beat,
)
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.statement import Row, Statement
from pulsed.store.verbs.script import Kind, Script, Verb


def beat(s: Statements, leases: Sequence[Lease]) -> Verb[dict[Lease, Beat]]:
    """Extend leases. What was not extended is lost, unless its row is only locked just now."""

    def script() -> Script[dict[Lease, Beat]]:
        answers = dict.fromkeys(leases, Beat.LOST)
        extended = yield Statement(s.beat, {}, leases)
        if s.beat.counted:
            if extended[0][0] == len(answers):
                answers = dict.fromkeys(answers, Beat.OK)
            extended = yield Statement(s.still_held, {}, leases)
        for row in extended:
            answers[lease_of(s, row)] = Beat.CANCEL if row[3] else Beat.OK
        missing = [lease for lease, answer in answers.items() if answer is Beat.LOST]
        if missing and not s.beat.counted:
            for row in (yield Statement(s.still_held, {}, missing)):
                answers[lease_of(s, row)] = Beat.UNKNOWN
        return answers

    return Verb("beat", Kind.SINGLE, script, urgent=True)


def lease_of(s: Statements, row: Row) -> Lease:
    """Read the lease in a row that begins with a job's id, its token and its worker."""
    return Lease(s.dialect.uuid(row[0]), row[1], s.dialect.uuid(row[2]))


def held(s: Statements, worker_id: UUID, *, asked_to_stop: bool) -> Verb[list[Lease]]:
    """List a worker's leases as the database has them."""
    sql = s.asked_to_stop if asked_to_stop else s.held

    def script() -> Script[list[Lease]]:
        found = yield Statement(sql, {"worker": worker_id})
        return [Lease(s.dialect.uuid(job_id), token, worker_id) for job_id, token in found]

    return Verb("held", Kind.READ, script)


def set_progress(s: Statements, lease: Lease, progress: str) -> Verb[bool]:
    """Store a run's progress under its lease."""

    def script() -> Script[bool]:
        return bool((yield Statement(s.set_progress, {"progress": progress}, [lease])))

    return Verb("set_progress", Kind.SINGLE, script)

"""A worker's writes under its leases: heartbeats and progress."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pulsed.model.job import Lease
from pulsed.model.outcome import Beat
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb


def beat(engine: Engine, leases: Sequence[Lease]) -> Verb[dict[Lease, Beat]]:
    """Extend leases. One that was not extended is lost, unless its row is only locked."""
    return Verb("beat", VerbKind.SINGLE, lambda: engine.extend(leases), urgent=True)


@verb(VerbKind.READ)
def held(engine: Engine, worker_id: UUID, *, asked_to_stop: bool) -> Script[list[Lease]]:
    """List a worker's leases as stored, or only those of jobs that were asked to stop."""
    sql = engine.leases.asked_to_stop if asked_to_stop else engine.leases.held_by
    found = yield Statement(sql, {"worker": worker_id})
    return [Lease(engine.dialect.uuid(job_id), token, worker_id) for job_id, token in found]


@verb(VerbKind.SINGLE)
def set_progress(engine: Engine, lease: Lease, progress: str) -> Script[bool]:
    """Store a run's progress; False if its lease is lost."""
    return bool((yield Statement(engine.leases.set_progress, {"progress": progress}, [lease])))

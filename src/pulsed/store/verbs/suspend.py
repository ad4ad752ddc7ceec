"""Runs that begin to wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pulsed.model.job import Lease
from pulsed.model.outcome import Report, Waiting
from pulsed.model.step import StepKind
from pulsed.store.results import Accepted
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.checkpoints import checkpoint_values
from pulsed.store.verbs.effects import Effects, Settled, wake
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reports import settled_before, storable
from pulsed.store.verbs.script import Script, VerbKind, verb


@verb(VerbKind.TRANSACTION, short_lock_wait=True)
def suspend(engine: Engine, reports: Sequence[Report]) -> Script[Settled]:
    """Suspend runs, which then wait without a slot. A wait that is satisfied already wakes at once.

    Returns the accepted leases; runs that were asked to stop are left to ``settle``.
    """
    waits = {
        report.lease: report.outcome for report in reports if isinstance(report.outcome, Waiting)
    }
    values = [_suspension(lease, outcome) for lease, outcome in waits.items()]
    suspended = yield Statement(engine.waiting.suspend, {}, values)
    under = {(engine.dialect.uuid(job_id), token) for job_id, token in suspended}
    accepted = Accepted(lease for lease in waits if lease[:2] in under)
    queues: frozenset[str] = frozenset()
    begun = [(lease, outcome) for lease, outcome in waits.items() if lease in accepted]
    if begun:
        opened = [checkpoint_values(lease, outcome.checkpoint) for lease, outcome in begun]
        yield Statement(engine.waiting.open_waits, {}, opened)
        wakeable = {lease.job_id for lease, o in begun if o.wait.kind is not StepKind.SLEEP}
        queues = yield from wake(engine, wakeable, locked=True)
    missing = [report for report in reports if report.lease not in accepted]
    if missing:
        accepted.merge((yield from settled_before(engine, missing)))
    return Settled(accepted, Effects(queues))


def _suspension(lease: Lease, outcome: Waiting) -> tuple[Any, ...]:
    wait = outcome.wait
    awaited = UUID(wait.key) if wait.kind is StepKind.JOB else None
    return (
        *lease,
        wait.kind.value,
        None if awaited else wait.key,
        awaited,
        wait.enough,
        wait.too_many,
        storable(wait.delay),
        wait.until,
    )

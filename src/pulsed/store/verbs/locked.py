"""Ending runs, and acting on jobs, while other sessions have locked some of their rows.

``settle`` waits for a locked row, and so does its whole batch. Here every row that the end of a run
changes is locked first, without waiting: its own, its parent's, and those of jobs that wait for it.
Runs whose rows could all be locked end in the same transaction; the others are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from pulsed.model.outcome import Report, Waiting
from pulsed.store.results import Accepted, Partly
from pulsed.store.verbs.effects import Effects, Settled
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb
from pulsed.store.verbs.settle import settle_any
from pulsed.store.verbs.suspend import suspend

T = TypeVar("T")


@verb(VerbKind.TRANSACTION, short_lock_wait=True)
def settle_free(engine: Engine, reports: Sequence[Report]) -> Script[tuple[Partly, Effects]]:
    """End runs in any way, except those that another session has locked: these are returned."""
    locked = yield from engine.lock_free({report.lease.job_id for report in reports})
    free = [report for report in reports if report.lease.job_id not in locked]
    waits = [report for report in free if type(report.outcome) is Waiting]
    suspended = Settled(Accepted(), Effects())
    if waits:
        suspended = yield from suspend(engine, waits).script()
    others = [report for report in free if report.lease not in suspended.accepted]
    ended = yield from settle_any(engine, others).script()
    left = {report.lease for report in reports if report.lease.job_id in locked}
    queues = suspended.effects.queues | ended.effects.queues
    told = Effects(queues, cascades=ended.effects.cascades)
    ended.accepted.merge(suspended.accepted)
    return Partly(ended.accepted, left), told


def around_locked(
    engine: Engine, ids: Sequence[UUID], act: Callable[[Sequence[UUID]], Verb[T]]
) -> Verb[tuple[T, list[UUID]]]:
    """Act on jobs, except those that another session has locked: these are returned."""

    def script() -> Script[tuple[T, list[UUID]]]:
        locked = yield from engine.lock_free(ids)
        done = yield from act([each for each in ids if each not in locked]).script()
        return done, [each for each in dict.fromkeys(ids) if each in locked]

    return Verb(act(ids).name, VerbKind.TRANSACTION, script, short_lock_wait=True)

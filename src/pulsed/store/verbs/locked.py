"""Ending runs, and acting on jobs, while other sessions have locked some of their rows.

``settle`` waits for a locked row, and its whole batch with it. Here everything that the end of a
run changes is locked first, without waiting: its own row, its parent's, and those of jobs that wait
for it. Runs of which all could be locked end in the same transaction; the others are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from pulsed.model.outcome import Report, Waiting
from pulsed.store.base import Partly
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.workflows import WorkflowStatements
from pulsed.store.verbs.effects import Effects, Settled, lock_free
from pulsed.store.verbs.script import Kind, Script, Verb
from pulsed.store.verbs.settle import settle
from pulsed.store.verbs.workflows import suspend

T = TypeVar("T")


def settle_free(
    s: Statements, w: WorkflowStatements, reports: Sequence[Report]
) -> Verb[tuple[Partly, Effects]]:
    """End runs in any way, but for those that somebody else holds a lock on."""

    def script() -> Script[tuple[Partly, Effects]]:
        locked = yield from lock_free(w, {report.lease.job_id for report in reports})
        free = [report for report in reports if report.lease.job_id not in locked]
        waits = [report for report in free if type(report.outcome) is Waiting]
        suspended = Settled(set(), Effects())
        if waits:
            suspended = yield from suspend(s, w, waits).script()
        others = [report for report in free if report.lease not in suspended.accepted]
        ended = yield from settle(s, w, others).script()
        left = {report.lease for report in reports if report.lease.job_id in locked}
        queues = suspended.effects.queues | ended.effects.queues
        told = Effects(queues, cascades=ended.effects.cascades)
        return Partly(suspended.accepted | ended.accepted, left), told

    return Verb("settle_free", Kind.TRANSACTION, script, splits=True)


def around_locked(
    w: WorkflowStatements, ids: Sequence[UUID], act: Callable[[Sequence[UUID]], Verb[T]]
) -> Verb[tuple[T, list[UUID]]]:
    """Act on jobs, but for those that another session holds a lock on: these are returned."""

    def script() -> Script[tuple[T, list[UUID]]]:
        locked = yield from lock_free(w, ids)
        done = yield from act([each for each in ids if each not in locked]).script()
        return done, [each for each in dict.fromkeys(ids) if each in locked]

    return Verb(act(ids).name, Kind.TRANSACTION, script, splits=True)

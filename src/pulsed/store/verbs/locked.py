"""Ending runs while other sessions have locked some of their rows.

``settle`` waits for a locked row, and its whole batch with it. Here everything that the end of a
run changes is locked first, without waiting: its own row, its parent's, and those of jobs that wait
for it. Runs of which all could be locked end in the same transaction; the others are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pulsed.model.outcome import Report, Waiting
from pulsed.store.base import Partly
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.sql.workflows import WorkflowStatements
from pulsed.store.verbs.effects import Effects, Settled
from pulsed.store.verbs.script import Kind, Script, Verb
from pulsed.store.verbs.settle import settle
from pulsed.store.verbs.workflows import suspend


def settle_free(
    s: Statements, w: WorkflowStatements, reports: Sequence[Report]
) -> Verb[tuple[Partly, Effects]]:
    """End runs in any way, but for those that somebody else holds a lock on."""

    def script() -> Script[tuple[Partly, Effects]]:
        locked = yield from _lock_free(w, {report.lease.job_id for report in reports})
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


def _lock_free(w: WorkflowStatements, ids: set[UUID]) -> Script[set[Any]]:
    """Lock what nobody else has; returns the jobs of which something is locked elsewhere."""
    jobs = one_column(ids)
    found = yield Statement(w.with_parents, {}, jobs)
    related = [(job_id, job_id) for job_id, _ in found]
    related += [(job_id, parent) for job_id, parent in found if parent is not None]
    related += [(job_id, waiter) for waiter, job_id in (yield Statement(w.waiters, {}, jobs))]
    wanted = one_column(each for _, each in related)
    free = {each for (each,) in (yield Statement(w.lock_free, {}, wanted))}
    return {job_id for job_id, each in related if each not in free}

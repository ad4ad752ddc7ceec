"""The verbs of those who submit and work: each a transition of the state machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from pulsed.errors import LONGEST_DELAY
from pulsed.handler import clean_text
from pulsed.model.ids import COMPUTED
from pulsed.model.job import Lease
from pulsed.model.lifecycle import outcome_name
from pulsed.model.outcome import (
    Cancelled,
    Failed,
    Report,
    Snoozed,
    Succeeded,
    SucceededForGood,
)
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.statement import Row, Statement, one_column
from pulsed.store.sql.workflows import WorkflowStatements
from pulsed.store.verbs.effects import Effects, Settled, lock_families, run_effects, wake
from pulsed.store.verbs.heartbeat import lease_of
from pulsed.store.verbs.script import Kind, Script, Verb


def settle_succeeded(s: Statements, worker_id: UUID, reports: Sequence[Report]) -> Verb[Settled]:
    """End runs of one worker that succeeded, of jobs that nobody waits for.

    The answer has the accepted ones; the others are for ``settle``.
    """
    values = _successes(reports)

    def script() -> Script[Settled]:
        [(count,)] = yield Statement(s.settle_succeeded, {"worker": worker_id}, values)
        return Settled((yield from _ended_well(s, reports, count)), Effects())

    return Verb("settle", Kind.SINGLE, script, splits=True)


def settle_children(
    s: Statements, w: WorkflowStatements, worker_id: UUID, reports: Sequence[Report]
) -> Verb[Settled]:
    """End runs of one worker that succeeded, of jobs that may be children, and wake their parents.

    The answer has the accepted ones; those that have waited, and perhaps have children of their
    own, are for ``settle``, and so are those that somebody else waits for.
    """
    values = _successes(reports)

    def script() -> Script[Settled]:
        [(count, *waiting)] = yield Statement(w.settle_children, {"worker": worker_id}, values)
        if w.settle_children.counted:
            parents = yield Statement(w.parents, {}, one_column(value[0] for value in values))
            waiting = [[parent for (parent,) in parents if parent is not None]]
        woken = yield from wake(w, waiting[0], locked=True)
        return Settled((yield from _ended_well(s, reports, count)), Effects(woken))

    return Verb("settle", Kind.TRANSACTION, script, splits=True)


def _successes(reports: Sequence[Report]) -> list[tuple[UUID, int, str | None]]:
    return [
        (lease[0], lease[1], outcome.result)
        for lease, outcome in reports
        if isinstance(outcome, Succeeded)
    ]


def _ended_well(s: Statements, reports: Sequence[Report], count: int) -> Script[set[Lease]]:
    """Return whose success is stored, if that of so many was just now."""
    if count == len(reports):
        return {lease for lease, _ in reports}
    return (yield from settled_before(s, reports))


def settle(s: Statements, w: WorkflowStatements, reports: Sequence[Report]) -> Verb[Settled]:
    """End runs in any way, and tell those who wait; the answer has the accepted ones."""
    failed = {
        report.lease: report.outcome for report in reports if isinstance(report.outcome, Failed)
    }
    forgotten = {report.lease for report in reports if isinstance(report.outcome, SucceededForGood)}
    ids = [report.lease.job_id for report in reports]

    def script() -> Script[Settled]:
        locked = any(map(may_be_a_child, ids))
        if locked:
            yield from lock_families(w, ids)
        ended = yield Statement(s.settle, {}, [_report_values(report) for report in reports])
        accepted = {_ended_lease(s, row) for row in ended}
        if failed:
            yield from record_failures(s, _failures_among(s, ended, failed))
        if done := forgotten & accepted:
            yield Statement(w.forget_steps, {}, one_column(lease.job_id for lease in done))
        told = yield from run_effects(w, ended, locked=locked)
        missing = [report for report in reports if report.lease not in accepted]
        if missing:
            accepted |= yield from settled_before(s, missing)
        return Settled(accepted, told)

    return Verb("settle", Kind.TRANSACTION, script, splits=True)


def may_be_a_child(job_id: UUID) -> bool:
    """Whether an id looks like one made from others: a child's, or an occurrence's.

    Only a hint at the shorter way. The statements decide by the row.
    """
    return job_id.bytes[6] >> 4 in _COMPUTED


_COMPUTED = (COMPUTED, 0x5)
"""Versions of UUIDs; workers in other languages may use the older one."""


def settled_before(s: Statements, reports: Sequence[Report]) -> Script[set[Lease]]:
    """Find those whose very report went through, in this try or in an earlier one."""
    values = [_report_values(report) for report in reports]
    before = yield Statement(s.settled_before, {}, values)
    return {lease_of(s, row) for row in before}


def _ended_lease(s: Statements, row: Row) -> Lease:
    """Read the lease of a run that ``settle`` has just ended."""
    return Lease(s.dialect.uuid(row[0]), row[4], s.dialect.uuid(row[7]))


def _report_values(report: Report) -> tuple[Any, ...]:
    result: str | None = None
    error: str | None = None
    delay: float | None = None
    final = False
    match report.outcome:
        case Succeeded():
            result = report.outcome.result
        case Failed():
            error, delay = clean_text(report.outcome.error), report.outcome.delay
            final = report.outcome.final
        case Snoozed():
            delay = report.outcome.delay
        case Cancelled():
            error = clean_text(report.outcome.reason)
        case _:
            pass
    return (*report.lease, outcome_name(report.outcome), result, error, storable(delay), final)


def storable(delay: float | None) -> float | None:
    """Bring a delay into range: an absurd one must not fail the batch that it is in."""
    if delay is None or math.isnan(delay):
        return None
    return min(max(delay, 0.0), LONGEST_DELAY)


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _failures_among(
    s: Statements, ended: Iterable[Row], failed: dict[Lease, Failed]
) -> Iterator[tuple[Any, ...]]:
    for row in ended:
        lease, attempts, started_at = _ended_lease(s, row), row[5], row[6]
        outcome = failed.get(lease)
        if outcome is not None:
            error, trace = clean_text(outcome.error), _cleaned(outcome.traceback)
            yield (lease.job_id, lease.token, attempts, lease.worker_id, started_at, error, trace)


def record_failures(s: Statements, found: Iterable[tuple[Any, ...]]) -> Script[None]:
    """Keep one row for each failed attempt."""
    values = list(found)
    if values:
        yield Statement(s.record_failures, {}, values)

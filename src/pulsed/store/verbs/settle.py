"""Which statement ends which run: decided here, by the report alone, before anything is sent.

Nearly all runs succeed, and nearly all of those are of jobs without a parent: one counted statement
ends a worker's batch of them. Children that succeeded have a statement of their own, which also
finds the parents to wake. A run that begins to wait is suspended. ``settle_any`` ends every other
run, and every run that one of those statements left out because of its row. Whether a job is a
child is known from its assignment or, if not, from its row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, assert_never
from uuid import UUID

from pulsed.handler import clean_text
from pulsed.model.job import Lease
from pulsed.model.outcome import (
    Cancelled,
    Failed,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Successes,
    Waiting,
)
from pulsed.store.results import Accepted
from pulsed.store.sql.statement import Row, Statement, one_column
from pulsed.store.verbs.effects import Effects, Settled, run_effects, wake
from pulsed.store.verbs.engine import Engine, SuccessColumns, SuccessRow
from pulsed.store.verbs.reports import CANCELLED, record_failures, report_values, settled_before
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb
from pulsed.store.verbs.suspend import suspend

ByWorker: TypeAlias = dict[UUID, list[Report]]


class Ways(NamedTuple):
    """Reports by the statement that ends their runs."""

    succeeded: ByWorker
    """Successes of jobs not known to be children. The statement leaves out those that are."""
    children: ByWorker
    waiting: list[Report]
    others: list[Report]


def ways(reports: Iterable[Report]) -> Ways:
    """Decide how each run ends."""
    succeeded: list[Report] = []
    children: list[Report] = []
    waiting: list[Report] = []
    others: list[Report] = []
    for report in reports:
        _, outcome, is_child, _ = report
        match outcome:
            case Succeeded() if not outcome.discard_checkpoints:
                (children if is_child else succeeded).append(report)
            case Waiting():
                waiting.append(report)
            case Succeeded() | Failed() | Snoozed() | Cancelled() | Released():
                others.append(report)
            case _:
                assert_never(outcome)
    return Ways(_by_worker(succeeded), _by_worker(children), waiting, others)


def _by_worker(reports: Iterable[Report]) -> ByWorker:
    found: ByWorker = {}
    last = None
    for report in reports:
        worker_id = report[0][2]
        if worker_id is not last:  # to hash it for each report would take longer than all of this
            last, some = worker_id, found.setdefault(worker_id, [])
        some.append(report)
    return found


def settle(
    engine: Engine, reports: Iterable[Report]
) -> Generator[Verb[Settled], Settled, Accepted]:
    """Yield the verbs that end runs, and be sent the result of each; returns the accepted leases.

    Not in one transaction: each verb locks its own jobs in order, but would hold those locks while
    the next one waits for its own.
    """
    found = ways(reports)
    accepted = Accepted()
    left = found.others
    for some, end in _short_ways(engine, found):
        settled = yield end
        if settled.are_all:
            accepted.update([report[0] for report in some])
            continue
        accepted.merge(settled.accepted)
        if len(settled.accepted) < len(some):
            left += [report for report in some if report.lease not in settled.accepted]
    if left:
        accepted.merge((yield settle_any(engine, left)).accepted)
    return accepted


def _short_ways(engine: Engine, found: Ways) -> Iterator[tuple[list[Report], Verb[Settled]]]:
    for worker_id, some in found.succeeded.items():
        yield some, settle_succeeded(engine, worker_id, some, _success_columns(some))
    for worker_id, some in found.children.items():
        yield some, settle_children(engine, worker_id, some)
    if found.waiting:
        yield found.waiting, suspend(engine, found.waiting)


@verb(VerbKind.SINGLE, name="settle", short_lock_wait=True)
def settle_succeeded(
    engine: Engine, worker_id: UUID, reports: Sequence[Report], runs: SuccessColumns
) -> Script[Settled]:
    """End successful runs of one worker, of jobs that no other job waits for.

    ``runs`` has them by column: made by the caller, since that needs no transaction.
    """
    count = yield from engine.end_successes(worker_id, runs)
    return (yield from _ended_well(engine, reports, count, Effects()))


@verb(VerbKind.SINGLE, name="settle", short_lock_wait=True)
def settle_columns(engine: Engine, runs: Successes) -> Script[bool]:
    """End the runs that ``settle_succeeded`` would; returns whether those were all of them."""
    columns = (runs.job_ids, runs.tokens, runs.results)
    return (yield from engine.end_successes(runs.worker_id, columns)) == len(runs.job_ids)


@verb(VerbKind.TRANSACTION, name="settle", short_lock_wait=True)
def settle_children(engine: Engine, worker_id: UUID, reports: Sequence[Report]) -> Script[Settled]:
    """End successful runs of one worker, of children, and wake their parents.

    It leaves out jobs that have waited, which may have children of their own, and jobs that another
    job waits for.
    """
    values = _successes(reports)
    count, parents = yield from engine.end_children(worker_id, values)
    woken = yield from wake(engine, parents, locked=True)
    return (yield from _ended_well(engine, reports, count, Effects(woken)))


def _successes(reports: Sequence[Report]) -> list[SuccessRow]:
    return [
        (lease[0], lease[1], outcome.result)
        for lease, outcome, _, _ in reports
        if isinstance(outcome, Succeeded)
    ]


def _success_columns(reports: Sequence[Report]) -> SuccessColumns:
    """Return the same by column, without a tuple for each, which would be garbage soon."""
    ids = [report[0][0] for report in reports]
    tokens = [report[0][1] for report in reports]
    outcomes = [report[1] for report in reports]
    return ids, tokens, [each.result for each in outcomes if isinstance(each, Succeeded)]


def _ended_well(
    engine: Engine, reports: Sequence[Report], count: int, told: Effects
) -> Script[Settled]:
    """Return the leases whose success is stored, after a statement that ended ``count`` runs."""
    if count == len(reports):
        return Settled(Accepted(), told, are_all=True)
    return Settled((yield from settled_before(engine, reports)), told)


@verb(VerbKind.TRANSACTION, name="settle", short_lock_wait=True)
def settle_any(engine: Engine, reports: Sequence[Report]) -> Script[Settled]:
    """End runs in any way, and wake the jobs that wait for them.

    Families are locked first, unless all of these jobs are known to have no parent.
    """
    failed = {
        report.lease: report.outcome for report in reports if isinstance(report.outcome, Failed)
    }
    discarding = {
        report.lease
        for report in reports
        if isinstance(report.outcome, Succeeded) and report.outcome.discard_checkpoints
    }
    locked = any(report.is_child is not False for report in reports)
    if locked:
        yield from engine.lock_families(report.lease.job_id for report in reports)
    values = [report_values(report) for report in reports]
    ended = yield Statement(engine.settling.settle, {}, values)
    accepted = _accepted(engine, ended)
    if failed:
        yield from record_failures(engine, _failures_among(engine, ended, failed))
    if done := discarding & accepted:
        jobs = one_column(lease.job_id for lease in done)
        yield Statement(engine.checkpoints.forget_steps, {}, jobs)
    told = yield from run_effects(engine, ended, locked=locked)
    missing = [report for report in reports if report.lease not in accepted]
    if missing:
        accepted.merge((yield from settled_before(engine, missing)))
    return Settled(accepted, told)


def _accepted(engine: Engine, ended: Sequence[Row]) -> Accepted:
    leases = [lease for lease, _, _ in _ended_runs(engine, ended)]
    pairs = zip(leases, ended, strict=True)
    return Accepted(leases, (lease for lease, (_, status, *_) in pairs if status == CANCELLED))


def _ended_runs(engine: Engine, ended: Iterable[Row]) -> Iterator[tuple[Lease, int, Any]]:
    """Read the leases, attempts and start times of runs that ``settle`` has ended."""
    uuid = engine.dialect.uuid
    for job_id, _, _, _, token, attempts, started_at, worker_id, *_ in ended:
        yield Lease(uuid(job_id), token, uuid(worker_id)), attempts, started_at


def _failures_among(
    engine: Engine, ended: Iterable[Row], failed: dict[Lease, Failed]
) -> Iterator[tuple[Any, ...]]:
    for lease, attempts, started_at in _ended_runs(engine, ended):
        outcome = failed.get(lease)
        if outcome is not None:
            error, trace = clean_text(outcome.error), _cleaned(outcome.traceback)
            yield (lease.job_id, lease.token, attempts, lease.worker_id, started_at, error, trace)


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean_text(text)

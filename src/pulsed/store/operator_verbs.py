"""The verbs of operators and their tools: what to do with jobs, and how things stand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from pulsed.job import Failure, JobPlace, JobRow, Status, WorkerInfo
from pulsed.page import SEARCHED, Counts
from pulsed.store import rows as decode
from pulsed.store.audit_log import trim
from pulsed.store.base import Audit, Backlog, Pruned
from pulsed.store.sql import Statements
from pulsed.store.ticks import Ticks
from pulsed.store.verb import ANY_NUMBER, Kind, Row, Script, Statement, Verb, one_column
from pulsed.store.waking import Effects, effects, lock_families, wake_waiters
from pulsed.store.watchdog_verb import read_ticks
from pulsed.store.workflow_sql import WorkflowStatements
from pulsed.timetable import EPOCH

T = TypeVar("T")

MOST_QUEUES = 100
"""Queues that one check reads."""

MOST_WAITS = 5_000
"""Jobs among which one check looks for lost wake-ups: each of them is looked up several times."""

LEAST_EACH = 100
"""Jobs of each priority of each queue that a check reads, however many of those there are."""

MOST_BACKLOGS = 1_000
"""Pairs of a queue and a topic in one answer."""


def cancel(
    s: Statements, w: WorkflowStatements, ids: Sequence[UUID]
) -> Verb[tuple[dict[UUID, Status], Effects]]:
    """Cancel waiting jobs, ask running ones to stop."""

    def script() -> Script[tuple[dict[UUID, Status], Effects]]:
        yield from lock_families(w, ids)
        ended = yield Statement(s.cancel, {}, one_column(ids))
        told = yield from effects(w, ended, locked=True)
        standing = yield Statement(s.standing, {}, one_column(ids))
        return {s.dialect.uuid(row[0]): Status(row[1]) for row in standing}, told

    return Verb("cancel", Kind.TRANSACTION, script)


def replay(
    s: Statements, w: WorkflowStatements, ids: Sequence[UUID], *, fresh: bool
) -> Verb[tuple[dict[UUID, tuple[bool, Status]], set[str]]]:
    """Send parked jobs back to PENDING with fresh attempts, and what failed in them with them.

    The answer has the queues in which jobs are due again, too.
    """
    act = uuid.uuid4()
    params = {"act": act, "fresh": int(fresh)}

    def script() -> Script[tuple[dict[UUID, tuple[bool, Status]], set[str]]]:
        queues: set[str] = set()

        def back_to_pending(some: list[tuple[Any]]) -> Script[list[tuple[Any]]]:
            replayed = yield Statement(s.replay, params, some)
            queues.update(queue for _, queue in replayed)
            return one_column(job_id for job_id, _ in replayed)

        jobs = yield from back_to_pending(one_column(ids))
        if jobs and fresh:
            yield Statement(w.forget_steps, {}, jobs)
        while jobs and not fresh:
            yield Statement(w.forget_failed_steps, {}, jobs)
            yield Statement(w.reopen_fan_outs, {}, jobs)
            children = yield Statement(w.unsuccessful_children, {}, jobs)
            jobs = yield from back_to_pending(one_column(job_id for (job_id,) in children))
        answers = {}
        for job_id, status, outcome, actor in (yield Statement(s.standing, {}, one_column(ids))):
            mine = outcome == "REPLAYED" and s.dialect.uuid(actor) == act
            answers[s.dialect.uuid(job_id)] = (mine, Status(status))
        return answers, queues

    return Verb("replay", Kind.TRANSACTION, script)


def delete(
    s: Statements, w: WorkflowStatements, ids: Sequence[UUID]
) -> Verb[tuple[dict[UUID, tuple[bool, Status]], frozenset[str]]]:
    """Remove jobs that are not running, and that no other job needs; wake those who wait for one.

    A repeated try remembers what an earlier one saw: a job that has gone since then was removed
    by the try whose answer was lost.
    """
    seen: dict[UUID, Status] = {}

    def script() -> Script[tuple[dict[UUID, tuple[bool, Status]], frozenset[str]]]:
        standing = yield Statement(s.standing, {}, one_column(ids))
        seen.update({s.dialect.uuid(row[0]): Status(row[1]) for row in standing})
        gone = yield Statement(s.delete, {}, one_column(ids))
        yield from _forget(s, w, [row[0] for row in gone])
        woken = yield from wake_waiters(w, [row[0] for row in gone if row[1]])
        left = {s.dialect.uuid(row[0]) for row in standing} - {
            s.dialect.uuid(row[0]) for row in gone
        }
        answers = {job_id: (job_id not in left, status) for job_id, status in seen.items()}
        return answers, woken

    return Verb("delete", Kind.TRANSACTION, script)


def _forget(s: Statements, w: WorkflowStatements, removed: list[Any]) -> Script[None]:
    """Remove what belongs to jobs that are no more."""
    if removed:
        for statement in (s.delete_failures, w.forget_steps, w.forget_signals):
            yield Statement(statement, {}, one_column(removed))


def prune(
    s: Statements,
    w: WorkflowStatements,
    ages: Mapping[Status, float],
    limit: int,
    since: Mapping[Status, datetime],
) -> Verb[Pruned]:
    """Remove finished jobs that ended too long ago, with all that belongs to them."""
    share = -(-limit // max(1, len(ages)))

    def script() -> Script[Pruned]:
        removed, reached = dict.fromkeys(ages, 0), dict(since)

        def remove(status: Status, most: int) -> Script[None]:
            params = {"status": status.value, "age": ages[status], "most": most}
            gone = yield Statement(s.prune, params | {"since": reached.get(status, EPOCH)})
            if gone:
                yield from _forget(s, w, [job_id for job_id, _ in gone])
                removed[status] += len(gone)
                reached[status] = s.dialect.time(max(ended for _, ended in gone))

        for status in ages:
            if left := min(share, limit - sum(removed.values())):
                yield from remove(status, left)
        for status in [each for each in ages if removed[each] == share]:
            if left := limit - sum(removed.values()):  # of what others left of their share
                yield from remove(status, left)
        if not since:
            yield from trim(s.dialect)
        return Pruned(removed, reached)

    return Verb("prune", Kind.TRANSACTION, script)


def prunable(s: Statements, ages: Mapping[Status, float]) -> Verb[Counts]:
    """Count the finished jobs that ended too long ago."""

    def script() -> Script[Counts]:
        found = {}
        for status, age in ages.items():
            params = {"status": status.value, "age": age, "most": SEARCHED}
            [(found[status],)] = yield Statement(s.prunable, params)
        return Counts(found.items(), (each for each in found if found[each] == SEARCHED))

    return Verb("prunable", Kind.READ, script)


def get(s: Statements, ids: Sequence[UUID]) -> Verb[dict[UUID, JobRow]]:
    """Read jobs by id."""

    def script() -> Script[dict[UUID, JobRow]]:
        found = yield Statement(s.get, {}, one_column(ids))
        jobs = [decode.job(s.dialect, row) for row in found]
        return {job.id: job for job in jobs}

    return Verb("get", Kind.READ, script)


def places(s: Statements, ids: Sequence[UUID], *, urgent: bool) -> Verb[dict[UUID, JobPlace]]:
    """Read where jobs belong."""
    to_uuid = s.dialect.uuid

    def script() -> Script[dict[UUID, JobPlace]]:
        found = yield Statement(s.places, {}, one_column(ids))
        return {
            to_uuid(job_id): JobPlace(topic, queue, None if parent is None else to_uuid(parent))
            for job_id, topic, queue, parent in found
        }

    return Verb("places", Kind.READ, script, urgent=urgent)


def failures(s: Statements, job_id: UUID, after: int, limit: int | None) -> Verb[list[Failure]]:
    """Read a job's failed attempts, oldest first."""
    params = {"job": job_id, "after": after, "most": ANY_NUMBER if limit is None else limit}
    return _read("failures", s, Statement(s.read_failures, params), decode.failure)


def workers(s: Statements) -> Verb[list[WorkerInfo]]:
    """Read the presence rows."""
    return _read("workers", s, Statement(s.read_workers, {}), decode.worker)


def worker(s: Statements, worker_id: UUID) -> Verb[list[WorkerInfo]]:
    """Read the presence row of one worker."""
    return _read("worker", s, Statement(s.read_worker, {"worker": worker_id}), decode.worker)


def _read(
    name: str, s: Statements, statement: Statement, one: Callable[[Any, Row], T]
) -> Verb[list[T]]:
    def script() -> Script[list[T]]:
        return [one(s.dialect, row) for row in (yield statement)]

    return Verb(name, Kind.READ, script)


def audit(s: Statements, w: WorkflowStatements, slack: float) -> Verb[Audit]:
    """Count the jobs that break an invariant, among a bounded number of them."""

    def script() -> Script[Audit]:
        params = {"slack": slack, "most": SEARCHED}
        [(running, leaseless, overdue, longest_ms)] = yield Statement(s.audit_leases, params)
        [(unleased, overspent)] = yield Statement(s.audit_newest, params)
        found, now, _ = read_ticks(s.dialect, (yield Statement(s.read_ticks, {})))
        longest = timedelta(milliseconds=longest_ms or 0)
        in_grace = Ticks.known(found, now).reaped_before(longest) < now
        last_tick = max((tick.at for tick in found), default=None)
        reasonless, overslept = 0, 0
        for place in _shared((yield from _stretches(s)), MOST_WAITS):
            [(aimless, come)] = yield Statement(w.audit_waits, place)
            reasonless, overslept = reasonless + aimless, overslept + come
        [(untold,)] = yield Statement(w.audit_cascades, params)
        leaseless += unleased
        return Audit(
            running, leaseless, overspent, overdue, last_tick, in_grace,
            reasonless, overslept, untold,
        )  # fmt: skip

    return Verb("audit", Kind.READ, script)


def _stretches(s: Statements) -> Script[list[tuple[str, int]]]:
    """Find the queues that have claimable jobs, each with its priorities: stretches of an index."""
    found = yield Statement(s.queues, {})
    stretches: list[tuple[str, int]] = []
    for queue in [name for (name,) in found if name is not None][:MOST_QUEUES]:
        levels = yield Statement(s.levels, {"queue": queue})
        stretches += [(queue, level) for level, _ in levels if level is not None]
    return stretches


def _shared(stretches: list[tuple[str, int]], most: int) -> list[dict[str, Any]]:
    """Share out so many jobs among stretches, as the parameters of a statement for each."""
    each = max(LEAST_EACH, most // max(1, len(stretches)))
    return [{"queue": queue, "priority": level, "most": each} for queue, level in stretches]


def backlog(s: Statements) -> Verb[list[Backlog]]:
    """Count the due jobs by queue and topic, the longest waiting first and up to a bound."""

    def script() -> Script[list[Backlog]]:
        backlogs: dict[tuple[str, str], Backlog] = {}
        for place in _shared((yield from _stretches(s)), SEARCHED):
            head = yield Statement(s.backlog, place)
            is_cut = sum(due for _, due, _ in head) == place["most"]
            for topic, due, oldest in head:
                key = place["queue"], topic
                new = Backlog(*key, due, s.dialect.time(oldest), is_cut)
                backlogs[key] = _together(backlogs[key], new) if key in backlogs else new
        in_order = sorted(backlogs.values(), key=lambda one: (one.oldest, one.queue, one.topic))
        return in_order[:MOST_BACKLOGS]

    return Verb("backlog", Kind.READ, script)


def _together(one: Backlog, other: Backlog) -> Backlog:
    """Add the due jobs of two priorities."""
    return one._replace(
        due=one.due + other.due,
        oldest=min(one.oldest, other.oldest),
        at_least=one.at_least or other.at_least,
    )


def due_queues(s: Statements, besides: Sequence[str]) -> Verb[dict[str, datetime]]:
    """Find the queues that have due jobs, and the oldest due instant of each."""

    def script() -> Script[dict[str, datetime]]:
        found = yield Statement(s.queues, {})
        others = [name for (name,) in found if name is not None and name not in besides]
        due = {}
        for queue in others[:MOST_QUEUES]:
            [(oldest,)] = yield Statement(s.oldest_due, {"queue": queue})
            if oldest is not None:
                due[queue] = s.dialect.time(oldest)
        return due

    return Verb("due_queues", Kind.READ, script)

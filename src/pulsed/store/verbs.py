"""The verbs: each a transition of the state machine, decided here, carried out by a runner."""

from __future__ import annotations

import functools
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from pulsed.backoff import Backoff
from pulsed.errors import LONGEST_DELAY
from pulsed.handler import clean_text
from pulsed.job import (
    LEASE_EXPIRED,
    Assignment,
    Beat,
    Cancelled,
    Failed,
    Failure,
    JobFilter,
    JobRow,
    Lease,
    NewJob,
    Report,
    Snoozed,
    Status,
    Succeeded,
    SucceededForGood,
    TopicPolicy,
    WorkerInfo,
)
from pulsed.lifecycle import outcome_name
from pulsed.store import rows as decode
from pulsed.store.base import Audit, Backlog, Pruned, Reaped, WatchdogTick
from pulsed.store.dialect import column_names
from pulsed.store.floors import Floors, Walk
from pulsed.store.sql import JOB_COLUMNS, LEVEL, Statements, words
from pulsed.store.verb import Kind, Row, Script, Statement, Verb
from pulsed.store.waking import Effects, Settled, effects, lock_families, wake_waiters
from pulsed.store.workflow_sql import WorkflowStatements
from pulsed.timetable import EPOCH

T = TypeVar("T")

SILENT_WORKERS_ARE_FORGOTTEN_AFTER = 86_400.0

HIGHEST, LOWEST = 100, -100
"""Priorities."""

# Of ASSIGNMENT_COLUMNS, in the words of the driver, which compare faster than ours.
_BY_TIME = itemgetter(10, 0)
_BY_PRIORITY = itemgetter(3)
_LEVEL = column_names(LEVEL)


def submit(s: Statements, jobs: Sequence[NewJob]) -> Verb[int]:
    """Insert jobs, leaving alone those whose id exists."""

    def script() -> Script[int]:
        [(count,)] = yield insertion(s, jobs)
        return int(count)

    return Verb("submit", Kind.SINGLE, script)


def insertion(s: Statements, jobs: Sequence[NewJob]) -> Statement:
    """Return the statement that inserts jobs.

    The fewer columns it names the faster it is, and most jobs of a batch differ in little.
    """
    if len(jobs) == 1:
        alone = _shared(zip(_NEW_JOB_FIELDS.items(), astuple(jobs[0]), strict=True))
        return Statement(s.submit(tuple(alone), ()), alone)
    alike: list[tuple[tuple[str, Any], Any]] = []
    own: dict[str, Sequence[Any]] = {}
    columns = zip(*map(astuple, jobs), strict=True)
    for field, values in zip(_NEW_JOB_FIELDS.items(), columns, strict=True):
        if field[0] == "id" or values.count(values[0]) < len(values):
            own.update(_stored(field[0], values))
        else:
            alike.append((field, values[0]))
    shared = _shared(alike)
    rows = list(zip(*own.values(), strict=True))
    return Statement(s.submit(tuple(shared), tuple(own)), shared, rows)


def claim(
    s: Statements, worker_id: UUID, queue: str, topics: str, limit: int, floors: Floors
) -> Verb[list[Assignment]]:
    """Lease due jobs, best first. ``topics`` is what ``topics_as_json`` makes of them."""
    params = {"worker": worker_id, "queue": queue, "topics": topics}
    tried = False

    def script() -> Script[list[Assignment]]:
        nonlocal tried
        if tried:  # and undone: what it claimed lies below the floors again
            floors.forget()
        tried = True
        walk = floors.walk()
        claimed: list[Row] = []
        if not walk.must_look:
            claimed = yield from _visit(s, params, limit, walk)
        if walk.must_look or (not claimed and walk.may_look):
            levels = yield Statement(s.levels, {"queue": queue})
            found = [priority for (priority,) in levels if priority is not None]
            walk.look(found)
            if found:
                claimed = yield from _visit(s, params, limit, walk)
            else:  # the queue is empty, as it mostly is for an idle worker: that was all
                walk.claimed([level.priority for level in walk.levels()], None, full=False)
        return [decode.assignment(s.dialect, row, queue, worker_id) for row in claimed]

    return Verb("claim", Kind.SINGLE, script, relaxed=True)


def _visit(s: Statements, params: dict[str, Any], limit: int, walk: Walk) -> Script[list[Row]]:
    """Claim from one priority after the other, beginning at their floors."""
    claimed: list[Row] = []
    if s.dialect.lateral:
        levels = walk.levels()
        visited = [level[0] for level in levels]
        gaps = {"above": [HIGHEST + 1, *visited], "below": [*visited, LOWEST - 1]}
        claimed += yield Statement(s.claim, params | gaps | {"most": limit}, levels)
        _sort(claimed)
        if not {row[3] for row in claimed} <= {*visited} and len(claimed) < limit:
            # Of each gap one new priority was visited, and there may be more of them.
            walk.claimed(visited, _worst(s, claimed), full=False)
            claimed += yield from _visit(s, params, limit - len(claimed), walk)
            _sort(claimed)
            return claimed
    else:
        visited = []
        for (priority,) in (yield Statement(s.levels, {"queue": params["queue"]})):
            if priority is not None and len(claimed) < limit:
                visited.append(priority)
                level = dict(zip(_LEVEL, walk.level(priority), strict=True))
                level["most"] = limit - len(claimed)
                claimed += sorted((yield from _claim_level(s, params | level)), key=_BY_TIME)
    walk.claimed(visited, _worst(s, claimed), full=len(claimed) == limit)
    return claimed


def _sort(claimed: list[Row]) -> None:
    claimed.sort(key=_BY_TIME)
    claimed.sort(key=_BY_PRIORITY, reverse=True)


def _worst(s: Statements, claimed: list[Row]) -> tuple[int, Any, Any] | None:
    if not claimed:
        return None
    row = claimed[-1]
    return row[3], s.dialect.instant(row[10]), row[0]


def _claim_level(s: Statements, params: dict[str, Any]) -> Script[list[Row]]:
    """Lease the due jobs of one priority: look, then lease what was seen."""
    picked = {row[0]: row for row in (yield Statement(s.pick, params))}
    if not picked:
        return []
    rows = [(job_id, row[2]) for job_id, row in picked.items()]
    [(count,)] = yield Statement(s.claim, params, rows)
    if count != len(picked):  # impossible under the write lock; but only a lease counts
        held = {(s.dialect.uuid(id_), token) for id_, token in (yield Statement(s.held, params))}
        picked = {job_id: row for job_id, row in picked.items() if row[:2] in held}
    if long := [(job_id,) for job_id, row in picked.items() if row[4] is None]:
        for id_, payload, headers in (yield Statement(s.long_texts, {}, long)):
            row = picked[s.dialect.uuid(id_)]
            picked[row[0]] = (*row[:4], payload, *row[5:9], headers, *row[10:])
    return list(picked.values())


def beat(s: Statements, leases: Sequence[Lease]) -> Verb[dict[UUID, Beat]]:
    """Extend leases. What was not extended is lost, unless its row is only locked just now."""

    def script() -> Script[dict[UUID, Beat]]:
        answers = dict.fromkeys((lease.job_id for lease in leases), Beat.LOST)
        extended = yield Statement(s.beat, {}, leases)
        if s.beat.counted:
            if extended[0][0] == len(answers):
                answers = dict.fromkeys(answers, Beat.OK)
            extended = yield Statement(s.still_held, {}, leases)
        for job_id, cancel_requested in extended:
            answers[s.dialect.uuid(job_id)] = Beat.CANCEL if cancel_requested else Beat.OK
        missing = [lease for lease in leases if answers[lease.job_id] is Beat.LOST]
        if missing and not s.beat.counted:
            for job_id, _ in (yield Statement(s.still_held, {}, missing)):
                answers[s.dialect.uuid(job_id)] = Beat.UNKNOWN
        return answers

    return Verb("beat", Kind.SINGLE, script, urgent=True)


def settle_succeeded(s: Statements, worker_id: UUID, reports: Sequence[Report]) -> Verb[set[UUID]]:
    """End runs of one worker that succeeded, of jobs that nobody waits for.

    The answer has the accepted ones; the others are for ``settle``.
    """
    values = [
        (lease[0], lease[1], outcome.result)
        for lease, outcome in reports
        if isinstance(outcome, Succeeded)
    ]

    def script() -> Script[set[UUID]]:
        [(count,)] = yield Statement(s.settle_succeeded, {"worker": worker_id}, values)
        if count == len(reports):
            return {job_id for job_id, _, _ in values}
        return (yield from settled_before(s, reports))

    return Verb("settle", Kind.SINGLE, script)


def settle(s: Statements, w: WorkflowStatements, reports: Sequence[Report]) -> Verb[Settled]:
    """End runs in any way, and tell those who wait; the answer has the accepted ones."""
    failed = {
        report.lease: report.outcome for report in reports if isinstance(report.outcome, Failed)
    }
    forgotten = {
        report.lease.job_id for report in reports if isinstance(report.outcome, SucceededForGood)
    }
    ids = [report.lease.job_id for report in reports]

    def script() -> Script[Settled]:
        locked = any(map(may_be_a_child, ids))
        if locked:
            yield from lock_families(w, ids)
        ended = yield Statement(s.settle, {}, [_report_values(report) for report in reports])
        accepted = {s.dialect.uuid(row[0]) for row in ended}
        if failed:
            yield from _record_failures(s, _failures_among(s, ended, failed))
        if forgotten & accepted:
            yield Statement(w.forget_steps, {}, _one_column(forgotten & accepted))
        told = yield from effects(w, ended, locked=locked)
        missing = [report for report in reports if report.lease.job_id not in accepted]
        if missing:
            accepted |= yield from settled_before(s, missing)
        return Settled(accepted, told)

    return Verb("settle", Kind.TRANSACTION, script)


def may_be_a_child(job_id: UUID) -> bool:
    """Whether an id looks like one made from others: a child's, or an occurrence's.

    Only a hint at the shorter way. The statements decide by the row.
    """
    return job_id.bytes[6] >> 4 == 5


def settled_before(s: Statements, reports: Sequence[Report]) -> Script[set[UUID]]:
    """Find those whose very report went through, in this try or in an earlier one."""
    values = [_report_values(report) for report in reports]
    before = yield Statement(s.settled_before, {}, values)
    return {s.dialect.uuid(row[0]) for row in before}


def watchdog(
    s: Statements, w: WorkflowStatements, tick: float, grace: float, limit: int
) -> Verb[tuple[WatchdogTick, Effects]]:
    """Stamp the tick, then end the runs of silent workers as failures."""

    def script() -> Script[tuple[WatchdogTick, Effects]]:
        stamped = yield Statement(s.stamp_tick, {"tick": tick, "grace": grace})
        if stamped:
            yield Statement(s.forget_workers, {"age": SILENT_WORKERS_ARE_FORGOTTEN_AFTER})
        else:
            stamped = yield Statement(s.read_grace, {})
        if stamped[0][0]:
            return WatchdogTick([], in_grace=True), Effects()
        ended = yield Statement(s.reap, {"most": limit})
        yield from _record_failures(
            s,
            [(row[0], row[4], row[5], row[7], row[6], LEASE_EXPIRED, None) for row in ended],
        )
        uid = s.dialect.uuid
        reaped = [Reaped(uid(row[0]), row[8], Status(row[1]), uid(row[7])) for row in ended]
        return WatchdogTick(reaped, in_grace=False), (yield from effects(w, ended))

    return Verb("watchdog", Kind.TRANSACTION, script)


def held(s: Statements, worker_id: UUID) -> Verb[list[Lease]]:
    """List a worker's leases as the database has them."""

    def script() -> Script[list[Lease]]:
        found = yield Statement(s.held, {"worker": worker_id})
        return [Lease(s.dialect.uuid(job_id), token, worker_id) for job_id, token in found]

    return Verb("held", Kind.READ, script)


def set_progress(s: Statements, lease: Lease, progress: str) -> Verb[bool]:
    """Store a run's progress under its lease."""

    def script() -> Script[bool]:
        return bool((yield Statement(s.set_progress, {"progress": progress}, [lease])))

    return Verb("set_progress", Kind.SINGLE, script)


def cancel(
    s: Statements, w: WorkflowStatements, ids: Sequence[UUID]
) -> Verb[tuple[dict[UUID, Status], Effects]]:
    """Cancel waiting jobs, ask running ones to stop."""

    def script() -> Script[tuple[dict[UUID, Status], Effects]]:
        yield from lock_families(w, ids)
        ended = yield Statement(s.cancel, {}, _one_column(ids))
        told = yield from effects(w, ended)
        standing = yield Statement(s.standing, {}, _one_column(ids))
        return {s.dialect.uuid(row[0]): Status(row[1]) for row in standing}, told

    return Verb("cancel", Kind.TRANSACTION, script)


def replay(
    s: Statements, w: WorkflowStatements, ids: Sequence[UUID], *, fresh: bool
) -> Verb[dict[UUID, tuple[bool, Status]]]:
    """Send parked jobs back to PENDING with fresh attempts, and what failed in them with them."""
    act = uuid.uuid4()
    params = {"act": act, "fresh": int(fresh)}

    def script() -> Script[dict[UUID, tuple[bool, Status]]]:
        replayed = yield Statement(s.replay, params, _one_column(ids))
        jobs = [tuple(row) for row in replayed]
        if jobs and fresh:
            yield Statement(w.forget_steps, {}, jobs)
        while jobs and not fresh:
            yield Statement(w.forget_failed_steps, {}, jobs)
            yield Statement(w.reopen_fan_outs, {}, jobs)
            children = yield Statement(w.unsuccessful_children, {}, jobs)
            replayed = yield Statement(s.replay, params, [tuple(row) for row in children])
            jobs = [tuple(row) for row in replayed]
        answers = {}
        for job_id, status, outcome, actor in (yield Statement(s.standing, {}, _one_column(ids))):
            mine = outcome == "REPLAYED" and s.dialect.uuid(actor) == act
            answers[s.dialect.uuid(job_id)] = (mine, Status(status))
        return answers

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
        standing = yield Statement(s.standing, {}, _one_column(ids))
        seen.update({s.dialect.uuid(row[0]): Status(row[1]) for row in standing})
        gone = yield Statement(s.delete, {}, _one_column(ids))
        yield from _forget(s, w, [(row[0],) for row in gone])
        woken = yield from wake_waiters(w, [row[0] for row in gone if row[1]])
        left = {s.dialect.uuid(row[0]) for row in standing} - {
            s.dialect.uuid(row[0]) for row in gone
        }
        answers = {job_id: (job_id not in left, status) for job_id, status in seen.items()}
        return answers, woken

    return Verb("delete", Kind.TRANSACTION, script)


def _forget(s: Statements, w: WorkflowStatements, removed: list[tuple[Any]]) -> Script[None]:
    """Remove what belongs to jobs that are no more."""
    if removed:
        for statement in (s.delete_failures, w.forget_steps, w.forget_signals):
            yield Statement(statement, {}, removed)


def prune(
    s: Statements,
    w: WorkflowStatements,
    ages: Mapping[Status, float],
    limit: int,
    since: Mapping[Status, datetime],
) -> Verb[Pruned]:
    """Remove finished jobs that ended too long ago, with all that belongs to them."""

    def script() -> Script[Pruned]:
        removed, reached = dict.fromkeys(ages, 0), dict(since)
        for status, age in ages.items():
            left = limit - sum(removed.values())
            if left > 0:
                params = {"status": status.value, "age": age, "most": left}
                gone = yield Statement(s.prune, params | {"since": since.get(status, EPOCH)})
                if gone:
                    yield from _forget(s, w, [(job_id,) for job_id, _ in gone])
                    removed[status] = len(gone)
                    reached[status] = s.dialect.time(max(ended for _, ended in gone))
        return Pruned(removed, reached)

    return Verb("prune", Kind.TRANSACTION, script)


def prunable(s: Statements, ages: Mapping[Status, float]) -> Verb[dict[Status, int]]:
    """Count the finished jobs that ended too long ago."""

    def script() -> Script[dict[Status, int]]:
        found = {}
        for status, age in ages.items():
            counted = yield Statement(s.prunable, {"status": status.value, "age": age})
            found[status] = counted[0][0]
        return found

    return Verb("prunable", Kind.READ, script, broad=True)


def take_turn(s: Statements, length: float) -> Verb[bool]:
    """Take the turn at pruning, if nobody has it. A repeated try may lose it: the next is near."""

    def script() -> Script[bool]:
        return bool((yield Statement(s.take_turn, {"length": length})))

    return Verb("take_turn", Kind.SINGLE, script)


def get(s: Statements, ids: Sequence[UUID]) -> Verb[dict[UUID, JobRow]]:
    """Read jobs by id."""

    def script() -> Script[dict[UUID, JobRow]]:
        found = yield Statement(s.get, {}, _one_column(ids))
        jobs = [decode.job(s.dialect, row) for row in found]
        return {job.id: job for job in jobs}

    return Verb("get", Kind.READ, script)


def list_jobs(
    s: Statements, where: JobFilter, limit: int, before: UUID | None
) -> Verb[list[JobRow]]:
    """Read a page of jobs, newest id first."""
    conditions, params = _conditions(s, where)
    if before is not None:
        conditions.append("id < :before::uuid")
        params["before"] = before
    sql = s.dialect.sql(
        f"""SELECT {JOB_COLUMNS} FROM {s.dialect.jobs} AS j WHERE {_all(conditions)}
        ORDER BY id DESC LIMIT :most::int"""
    )

    def script() -> Script[list[JobRow]]:
        found = yield Statement(sql, params | {"most": limit})
        return [decode.job(s.dialect, row) for row in found]

    return Verb("list", Kind.READ, script, broad=True)


def counts(s: Statements, where: JobFilter) -> Verb[dict[Status, int]]:
    """Count jobs by status."""
    conditions, params = _conditions(s, where)
    sql = s.dialect.sql(
        f"SELECT status, count(*) FROM {s.dialect.jobs} AS j WHERE {_all(conditions)} "
        "GROUP BY status"
    )

    def script() -> Script[dict[Status, int]]:
        found: dict[str, int] = {row[0]: row[1] for row in (yield Statement(sql, params))}
        return {status: found.get(status.value, 0) for status in Status}

    return Verb("counts", Kind.READ, script, broad=True)


def failures(s: Statements, job_id: UUID) -> Verb[list[Failure]]:
    """Read a job's failed attempts, oldest first."""
    return _read("failures", s, Statement(s.read_failures, {"job": job_id}), decode.failure)


def workers(s: Statements) -> Verb[list[WorkerInfo]]:
    """Read the presence rows."""
    return _read("workers", s, Statement(s.read_workers, {}), decode.worker)


def announce(s: Statements, worker: WorkerInfo) -> Verb[None]:
    """Write or refresh a presence row."""
    params = {
        "worker": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": _json(worker.queues),
        "topics": _json(worker.topics),
        "slots": worker.slots,
        "running": worker.running,
        "stuck": worker.stuck,
        "state": worker.state,
        "version": worker.version,
    }
    return _write("announce", Statement(s.announce, params))


def retire(s: Statements, worker_id: UUID) -> Verb[None]:
    """Remove a presence row."""
    return _write("retire", Statement(s.retire, {"worker": worker_id}))


def audit(s: Statements, w: WorkflowStatements, slack: float) -> Verb[Audit]:
    """Count the jobs that break an invariant."""

    def script() -> Script[Audit]:
        counted = (yield Statement(s.audit, {"slack": slack}))[0]
        running, leaseless, overspent, overdue = counted
        last_tick, in_grace = (yield Statement(s.read_tick, {}))[0]
        looked = None if last_tick is None else s.dialect.time(last_tick)
        waits = (yield Statement(w.audit, {"slack": slack}))[0]
        return Audit(running, leaseless, overspent, overdue, looked, bool(in_grace), *waits)

    return Verb("audit", Kind.READ, script, broad=True)


def backlog(s: Statements) -> Verb[list[Backlog]]:
    """Count the due jobs by queue and topic."""

    def script() -> Script[list[Backlog]]:
        found = yield Statement(s.backlog, {})
        return [Backlog(row[0], row[1], row[2], s.dialect.time(row[3])) for row in found]

    return Verb("backlog", Kind.READ, script, broad=True)


def now(s: Statements) -> Verb[datetime]:
    """Read the clock."""
    return Verb("now", Kind.READ, lambda: clock(s))


def clock(s: Statements) -> Script[datetime]:
    """Read the clock, as part of a verb."""
    return s.dialect.time((yield Statement(s.read_clock, {}))[0][0])


# -- parts ---------------------------------------------------------------------------------------


def _read(
    name: str, s: Statements, statement: Statement, one: Callable[[Any, Row], T]
) -> Verb[list[T]]:
    def script() -> Script[list[T]]:
        return [one(s.dialect, row) for row in (yield statement)]

    return Verb(name, Kind.READ, script)


def _write(name: str, statement: Statement) -> Verb[None]:
    def script() -> Script[None]:
        yield statement

    return Verb(name, Kind.SINGLE, script)


_NEW_JOB_FIELDS = {
    name: {"priority": 0, "delay": 0.0, "tags": ()}.get(name) for name in NewJob.__struct_fields__
}
"""The fields of a new job, and the value of each that need not be stored."""


def _shared(fields: Iterable[tuple[tuple[str, Any], Any]]) -> dict[str, Any]:
    """Return the columns of fields that jobs have in common, without those left unset."""
    given = {
        name: value
        for (name, unset), value in fields
        if value is not unset and (unset is None or value != unset)
    }
    for name in _CONVERTED & given.keys():
        given.update((column, one) for column, (one,) in _stored(name, [given.pop(name)]))
    return given


_CONVERTED = {"backoff", "timeout", "lease", "headers", "tags"}


def _stored(name: str, values: Sequence[Any]) -> Iterable[tuple[str, Sequence[Any]]]:
    """Return the columns that a field of some new jobs is stored in."""
    if name not in _CONVERTED:
        return [(name, values)]
    if name in ("timeout", "lease"):
        return [(f"{name}_ms", [_milliseconds(value) for value in values])]
    if name in ("headers", "tags"):
        return [(name, [_json(value) if value else None for value in values])]
    return zip(_POLICY, zip(*map(_policy, values), strict=True), strict=True)


_POLICY = tuple(f"backoff_{part}" for part in ("base", "power", "factor", "cap", "jitter"))


def _policy(backoff: Backoff | None) -> tuple[float | None, ...]:
    if backoff is None:
        return (None,) * len(_POLICY)
    parts = (backoff.base, backoff.power, backoff.factor, backoff.cap, backoff.jitter)
    return tuple(map(float, parts))


@functools.lru_cache(maxsize=64)
def topics_as_json(topics: tuple[TopicPolicy, ...]) -> str:
    """Write what a worker's handlers say about their topics."""
    return _json(
        [
            {
                "t_topic": topic.topic,
                "t_max_attempts": topic.max_attempts,
                "t_base": topic.backoff.base,
                "t_power": topic.backoff.power,
                "t_factor": topic.backoff.factor,
                "t_cap": topic.backoff.cap,
                "t_jitter": topic.backoff.jitter,
                "t_timeout_ms": _milliseconds(topic.timeout),
                "t_lease_ms": _milliseconds(topic.lease),
            }
            for topic in topics
        ]
    )


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
    for job_id, _, _, _, token, attempts, started_at, worker in ended:
        lease = Lease(s.dialect.uuid(job_id), token, s.dialect.uuid(worker))
        outcome = failed.get(lease)
        if outcome is not None:
            error, trace = clean_text(outcome.error), _cleaned(outcome.traceback)
            yield (lease.job_id, token, attempts, lease.worker_id, started_at, error, trace)


def _record_failures(s: Statements, found: Iterable[tuple[Any, ...]]) -> Script[None]:
    values = list(found)
    if values:
        yield Statement(s.record_failures, {}, values)


def _conditions(s: Statements, where: JobFilter) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    params: dict[str, Any] = {}

    def add(condition: str, name: str, value: object) -> None:
        if value is not None:
            conditions.append(condition)
            params[name] = value

    if where.status:
        conditions.append(f"status IN {words(where.status)}")
    add("topic = :topic::text", "topic", where.topic)
    add("queue = :queue::text", "queue", where.queue)
    add("parent_id = :parent::uuid", "parent", where.parent)
    add("parent_step = :step::text", "step", where.parent_step)
    add("submitted_at >= :since::timestamptz", "since", where.since)
    add("submitted_at < :until::timestamptz", "until", where.until)
    tagged = f"EXISTS (SELECT 1 FROM {s.dialect.elements('tags')} WHERE e.value = :tag::text)"
    add(tagged, "tag", where.tag)
    pattern = None if where.error is None else f"%{_like_literal(where.error)}%"
    # Both sides are lowered by the database, which may know fewer letters than Python does.
    add("lower(last_error) LIKE lower(:pattern::text) ESCAPE '~'", "pattern", pattern)
    return conditions, params


def _all(conditions: list[str]) -> str:
    return " AND ".join(conditions) or "true"


def _like_literal(text: str) -> str:
    return text.replace("~", "~~").replace("%", "~%").replace("_", "~_")


def _one_column(ids: Iterable[UUID]) -> list[tuple[UUID]]:
    return [(job_id,) for job_id in dict.fromkeys(ids)]


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()

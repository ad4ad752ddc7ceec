"""Reading jobs, backlogs and the audit of invariants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from pulsed.model.job import Failure, JobPlace, JobRow
from pulsed.model.page import AUDITED, SEARCHED
from pulsed.store.results import Audit, Backlog, Running
from pulsed.store.sql import rows as decode
from pulsed.store.sql.reader import Reader
from pulsed.store.sql.statement import ANY_NUMBER, Statement, one_column
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb
from pulsed.store.verbs.ticks import Ticks
from pulsed.store.verbs.watchdog import read_ticks

T = TypeVar("T", bound=msgspec.Struct)

MOST_QUEUES = 100
"""Queues that one check reads."""

MOST_NOTIFIED = 1_000
"""Queues whose workers are notified at once, of something that may concern any queue."""

MOST_WAITS = 5_000
"""Jobs that one check scans for lost wake-ups: each costs several look-ups."""

LEAST_EACH = 100
"""Jobs of each priority of each queue that a check reads, however many of those there are."""

MOST_BACKLOGS = 1_000
"""Pairs of a queue and a topic in one answer."""


def now(engine: Engine) -> Verb[datetime]:
    """Read the clock."""
    return Verb("now", VerbKind.READ, lambda: clock(engine))


def clock(engine: Engine) -> Script[datetime]:
    """Read the clock, as part of a verb."""
    return engine.dialect.time((yield Statement(engine.reading.read_clock, {}))[0][0])


@verb(VerbKind.READ)
def get(engine: Engine, ids: Sequence[UUID]) -> Script[dict[UUID, JobRow]]:
    """Read jobs by id."""
    found = yield Statement(engine.reading.get, {}, one_column(ids))
    jobs = decode.job.all(engine.dialect, found)
    return {job.id: job for job in jobs}


def places(engine: Engine, ids: Sequence[UUID], *, urgent: bool) -> Verb[dict[UUID, JobPlace]]:
    """Read the topic, queue and parent of jobs."""
    to_uuid = engine.dialect.uuid

    def script() -> Script[dict[UUID, JobPlace]]:
        found = yield Statement(engine.reading.places, {}, one_column(ids))
        return {
            to_uuid(job_id): JobPlace(topic, queue, None if parent is None else to_uuid(parent))
            for job_id, topic, queue, parent in found
        }

    return Verb("places", VerbKind.READ, script, urgent=urgent)


def failures(
    engine: Engine, job_id: UUID, after: int, before: int | None, limit: int | None
) -> Verb[list[Failure]]:
    """Read a job's failed attempts: oldest first, or newest first from ``before`` on."""
    params = {"job": job_id, "after": after, "most": ANY_NUMBER if limit is None else limit}
    statement = Statement(engine.reading.read_failures, params)
    if before is not None:
        statement = Statement(engine.reading.read_last_failures, params | {"before": before})
    return read_all("failures", engine, statement, decode.failure)


def read_all(name: str, engine: Engine, statement: Statement, one: Reader[T]) -> Verb[list[T]]:
    """Return the verb that runs one statement and reads each of its rows."""

    def script() -> Script[list[T]]:
        return one.all(engine.dialect, (yield statement))

    return Verb(name, VerbKind.READ, script)


@verb(VerbKind.READ)
def audit(engine: Engine, slack: float) -> Script[Audit]:
    """Count the jobs that break an invariant, among a bounded number of them."""
    params = {"slack": slack, "most": AUDITED}
    checks = engine.health
    [(running, leaseless, overdue, longest_ms)] = yield Statement(checks.audit_leases, params)
    [(unleased, overspent)] = yield Statement(checks.audit_newest, params)
    found, now, _ = yield from read_ticks(engine)
    longest = timedelta(milliseconds=longest_ms or 0)
    in_grace = Ticks.known(found, now).reaped_before(longest) < now
    last_tick = max((tick.at for tick in found), default=None)
    reasonless, overslept = 0, 0
    for place in _shared((yield from _stretches(engine)), MOST_WAITS):
        waits = checks.audit_limited_waits if place.limited else checks.audit_waits
        [(aimless, come)] = yield Statement(waits, place.params)
        reasonless, overslept = reasonless + aimless, overslept + come
    [(untold,)] = yield Statement(checks.audit_cascades, params)
    leaseless += unleased
    return Audit(
        running, leaseless, overspent, overdue, last_tick, in_grace,
        reasonless, overslept, untold,
    )  # fmt: skip


class _Stretch(NamedTuple):
    """A range of an index of claimable jobs, and how many of them a check reads."""

    queue: str
    priority: int
    limited: bool
    """Whether it is the index of jobs with a limit."""
    most: int = 0

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a statement."""
        return {"queue": self.queue, "priority": self.priority, "most": self.most}


def _stretches(engine: Engine) -> Script[list[_Stretch]]:
    """Find the queues with claimable jobs, each with its priorities: ranges of the claim index."""
    found = yield Statement(engine.health.queues, {})
    stretches: list[_Stretch] = []
    for queue in [name for (name,) in found if name is not None][:MOST_QUEUES]:
        levels = yield Statement(engine.claiming.levels, {"queue": queue})
        stretches += [_Stretch(queue, each, False) for each, *_ in levels if each is not None]
        if levels[0][2]:
            limited = yield Statement(engine.health.limited_levels, {"queue": queue})
            stretches += [_Stretch(queue, each, True) for (each,) in limited if each is not None]
    return stretches


def _shared(stretches: list[_Stretch], most: int) -> list[_Stretch]:
    """Divide ``most`` jobs among stretches."""
    each = max(LEAST_EACH, most // max(1, len(stretches)))
    return [stretch._replace(most=each) for stretch in stretches]


@verb(VerbKind.READ)
def backlog(engine: Engine) -> Script[list[Backlog]]:
    """Count the due jobs by queue and topic, the longest due first and up to a bound."""
    backlogs: dict[tuple[str, str], Backlog] = {}
    for place in _shared((yield from _stretches(engine)), SEARCHED):
        health = engine.health
        head = yield Statement(
            health.limited_backlog if place.limited else health.backlog, place.params
        )
        is_cut = sum(due for _, due, _ in head) == place.most
        for topic, due, oldest in head:
            key = place.queue, topic
            new = Backlog(*key, due, engine.dialect.time(oldest), is_cut)
            backlogs[key] = _together(backlogs[key], new) if key in backlogs else new
    in_order = sorted(backlogs.values(), key=lambda one: (one.oldest, one.queue, one.topic))
    return in_order[:MOST_BACKLOGS]


@verb(VerbKind.READ)
def running(engine: Engine) -> Script[list[Running]]:
    """Count the running jobs by queue and topic, the busiest first and up to a bound."""
    found = yield Statement(engine.health.running, {"most": SEARCHED})
    is_cut = sum(number for *_, number in found) == SEARCHED
    lanes = [Running(queue, topic, number, is_cut) for queue, topic, number in found]
    lanes.sort(key=lambda one: (-one.running, one.queue, one.topic))
    return lanes[:MOST_BACKLOGS]


def _together(one: Backlog, other: Backlog) -> Backlog:
    """Add the due jobs of two priorities."""
    return one._replace(
        due=one.due + other.due,
        oldest=min(one.oldest, other.oldest),
        at_least=one.at_least or other.at_least,
    )


@verb(VerbKind.READ, name="due_queues")
def busy_queues(engine: Engine) -> Script[set[str]]:
    """Find queues that have claimable jobs, up to a bound."""
    found = yield Statement(engine.health.queues, {})
    return {name for (name,) in found[:MOST_NOTIFIED] if name is not None}


@verb(VerbKind.READ)
def due_queues(engine: Engine, besides: Sequence[str]) -> Script[dict[str, datetime]]:
    """Find the queues that have due jobs, and the oldest due instant of each."""
    found = yield Statement(engine.health.queues, {})
    others = [name for (name,) in found if name is not None and name not in besides]
    due = {}
    for queue in others[:MOST_QUEUES]:
        [(oldest,)] = yield Statement(engine.health.oldest_due, {"queue": queue})
        [(limited,)] = yield Statement(engine.health.oldest_limited_due, {"queue": queue})
        if known := [each for each in (oldest, limited) if each is not None]:
            due[queue] = engine.dialect.time(min(known))
    return due

"""When a schedule is due: pure computations on instants, all of them in UTC.

A schedule has a cursor, the earliest occurrence that has not been fired. ``plan`` says what to do
when the cursor is due: which occurrences become jobs, how many are passed over, and where the
cursor goes. Nothing here looks at a clock.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from pulsed.backoff import Backoff
from pulsed.errors import InvalidOption, checked_seconds

NAMESPACE = UUID("7d8c1d5e-6a0f-5b6e-9a44-3c1f0b7e52d1")
"""Every occurrence's job id is made under this; it can never change."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

SHORTEST_INTERVAL = 0.1
ON_TIME = timedelta(seconds=60)
"""With catch-up ``skip``, an occurrence later than this was missed."""

MOST_COUNTED = 10_000
"""Occurrences passed over are counted up to here; beyond, the number is a lower bound."""

LONGEST_OVERLAP = timedelta(hours=3)
"""Clocks are never set back by more than this."""

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")


class CatchUp(StrEnum):
    """What happens to occurrences that passed while nobody looked."""

    ONE = "one"
    """The latest of them becomes a job, the others are passed over."""
    SKIP = "skip"
    """All of them are passed over."""
    ALL = "all"
    """Each becomes a job, the latest ``limit`` of them if there is a limit."""


class Overlap(StrEnum):
    """What happens when the job of the last occurrence has not ended."""

    ALLOW = "allow"
    SKIP = "skip"


class ScheduleState(StrEnum):
    """Whether a schedule produces jobs."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    DONE = "DONE"
    """It has no further occurrence."""
    ERROR = "ERROR"
    """It could not be fired; its ``error`` says why, and an edit or a resume starts it again."""


@dataclass(frozen=True, slots=True)
class Once:
    """One instant."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Every:
    """``anchor + k · interval``: late or missed occurrences never shift the later ones."""

    interval: timedelta


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a zone's wall time.

    A wall time that a change of clocks leaves out runs once right after the gap, one that comes
    twice runs on the first pass; a job with a wildcard hour follows elapsed time.
    """

    expression: str
    zone: str = "UTC"


Timetable: TypeAlias = Once | Every | Cron


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule says: when, and which job. Stored as JSON; equal specs are one schedule."""

    topic: str
    payload: str
    cron: str | None = None
    zone: str = "UTC"
    every: int | None = None
    """Microseconds."""
    at: datetime | None = None
    catch_up: CatchUp = CatchUp.ONE
    limit: int | None = None
    overlap: Overlap = Overlap.ALLOW
    jitter: float = 0.0
    start: datetime | None = None
    end: datetime | None = None
    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    lease: float | None = None
    headers: dict[str, str] | None = None
    tags: tuple[str, ...] = ()

    @property
    def times(self) -> tuple[object, ...]:
        """Everything that decides when it is due."""
        return (self.cron, self.zone, self.every, self.at, self.start, self.end)

    @property
    def timetable(self) -> Timetable:
        """When it is due."""
        if self.cron is not None:
            return Cron(self.cron, self.zone)
        if self.every is not None:
            return Every(timedelta(microseconds=self.every))
        assert self.at is not None
        return Once(self.at)


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the database has it."""

    id: UUID
    app: str
    name: str
    spec_text: str
    state: ScheduleState
    error: str | None
    anchor: datetime
    next_run_at: datetime | None
    """The cursor: the earliest occurrence that has not been fired."""
    last_occurrence: datetime | None
    last_fired_at: datetime | None
    missed: int
    revision: int
    created_at: datetime
    updated_at: datetime
    declared: bool
    """Written by a program's declarations, not by hand."""

    @property
    def spec(self) -> ScheduleSpec:
        """What it says; raises if somebody else has written it and it cannot be read."""
        try:
            return msgspec.json.decode(self.spec_text, type=ScheduleSpec)
        except msgspec.MsgspecError as error:
            raise InvalidOption(
                f"Schedule {self.name!r} cannot be read: {error}. Put it anew, or delete it."
            ) from error


class Plan(NamedTuple):
    """What to do with a schedule whose cursor is due."""

    fire: list[datetime]
    """Occurrences that become jobs, in order."""
    missed: int
    """Occurrences passed over."""
    next: datetime | None
    """Where the cursor goes; None if there is no further occurrence."""


# -- making a timetable ----------------------------------------------------------------------------


def every_timetable(seconds: float | timedelta) -> Every:
    """Return the timetable of an interval."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    checked_seconds("every", seconds, least=SHORTEST_INTERVAL)
    return Every(timedelta(microseconds=round(seconds * 1_000_000)))


def cron_timetable(expression: str, zone: str = "UTC") -> Cron:
    """Return the timetable of a cron expression, or say which field is wrong."""
    made = Cron(normalized_cron(expression), zone)
    zone_of(zone)
    if next_after(made, EPOCH + timedelta(days=366 * 50), anchor=EPOCH) is None:
        raise InvalidOption(f"The cron expression {expression!r} has no occurrence at all.")
    return made


def normalized_cron(expression: str) -> str:
    """Return five fields for a nickname or an expression, or say which field is wrong."""
    if not isinstance(expression, str):
        raise InvalidOption(f"cron must be a text such as '0 9 * * MON-FRI', not {expression!r}.")
    text = NICKNAMES.get(expression.strip().lower(), expression.strip())
    if text.startswith("@"):
        known = ", ".join(NICKNAMES)
        raise InvalidOption(f"{text!r} is not a cron nickname; there are {known}.")
    fields = text.split()
    if len(fields) != len(FIELDS):
        raise InvalidOption(
            f"The cron expression {expression!r} has {len(fields)} fields; it needs five: "
            f"{', '.join(FIELDS)}."
        )
    for position, name in enumerate(FIELDS):
        alone = ["*"] * len(FIELDS)
        alone[position] = fields[position]
        _check_cron(alone, f"{name} field {fields[position]!r} of {expression!r}")
    _check_cron(fields, f"expression {expression!r}")
    return " ".join(fields)


def _check_cron(fields: list[str], what: str) -> None:
    try:
        CronSim(" ".join(fields), EPOCH)
    except (CronSimError, ValueError, AssertionError) as error:
        raise InvalidOption(f"The cron {what} is not valid.") from error


def zone_of(name: str) -> ZoneInfo:
    """Return an IANA zone, from the system or from ``tzdata``."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise InvalidOption(
            f"There is no time zone {name!r}; give an IANA name such as 'Europe/Berlin'."
        ) from error


def checked_jitter(seconds: float | timedelta) -> float:
    """Return the seconds over which the jobs of one instant are spread."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return checked_seconds("jitter", seconds, most=86_400)


def describe(timetable: Timetable) -> str:
    """Say in plain words when a schedule runs."""
    match timetable:
        case Once(at):
            return f"Once at {at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case Every(interval):
            return f"Every {_shown(interval)}"
        case Cron(expression, zone):
            return f"{CronSim(expression, EPOCH).explain()} ({zone})"


def _shown(interval: timedelta) -> str:
    seconds = interval.total_seconds()
    sizes = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
    size, unit = next(((size, unit) for size, unit in sizes if seconds % size == 0), sizes[-1])
    return unit if seconds == size else f"{seconds / size:g} {unit}s"


# -- occurrences -----------------------------------------------------------------------------------


def next_after(timetable: Timetable, after: datetime, *, anchor: datetime) -> datetime | None:
    """Return the first occurrence later than ``after``."""
    match timetable:
        case Once(at):
            return at if at > after else None
        case Every(interval):
            steps = max(0, (after - anchor) // interval + 1)
            return anchor + steps * interval
        case Cron():
            return next(_cron_after(timetable, after), None)


def latest_until(timetable: Timetable, until: datetime, *, anchor: datetime) -> datetime | None:
    """Return the last occurrence that is not later than ``until``."""
    match timetable:
        case Once(at):
            return at if at <= until else None
        case Every(interval):
            return anchor + (until - anchor) // interval * interval if until >= anchor else None
        case Cron():
            return _latest_cron(timetable, until)


def upcoming(
    timetable: Timetable, after: datetime, *, anchor: datetime, end: datetime | None = None
) -> Iterator[datetime]:
    """Yield the occurrences later than ``after``, in order."""
    if isinstance(timetable, Cron):
        found: Iterator[datetime] = _cron_after(timetable, after)
    else:
        found = _one_after_another(timetable, after, anchor)
    for occurrence in found:
        if end is not None and occurrence > end:
            return
        yield occurrence


def _one_after_another(
    timetable: Timetable, after: datetime, anchor: datetime
) -> Iterator[datetime]:
    occurrence = next_after(timetable, after, anchor=anchor)
    while occurrence is not None:
        yield occurrence
        occurrence = next_after(timetable, occurrence, anchor=anchor)


def _cron_after(timetable: Cron, after: datetime) -> Iterator[datetime]:
    """Yield a cron's occurrences in UTC, each later than the one before."""
    minute, hour, *_ = timetable.expression.split()
    if minute.startswith("*") or hour.startswith("*"):
        return _by_elapsed_time(timetable, after)
    return _by_wall_time(timetable, after)


def _by_wall_time(timetable: Cron, after: datetime) -> Iterator[datetime]:
    """Yield each matching wall time once.

    cronsim counts these in wall time, where the second pass of an overlap lies before its first;
    what is not later in UTC is not an occurrence.
    """
    latest = after
    local = after.astimezone(zone_of(timetable.zone))
    for wall in CronSim(timetable.expression, local):
        occurrence = wall.astimezone(UTC)
        if occurrence > latest:
            latest = occurrence
            yield occurrence


def _by_elapsed_time(timetable: Cron, after: datetime) -> Iterator[datetime]:
    """Yield every instant whose wall time matches: none in a gap, both in an overlap.

    Asked for wall times without a zone, for cronsim steps by whole hours where clocks may change
    by half of one. What comes twice waits in a heap until nothing earlier can follow.
    """
    zone = zone_of(timetable.zone)
    local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    waiting: list[datetime] = []
    for wall in CronSim(timetable.expression, local - _coming_back(after, zone)):
        passes = _passes(wall, zone)
        while waiting and passes and waiting[0] < passes[0]:
            yield heappop(waiting)
        for instant in passes:
            if instant > after:
                heappush(waiting, instant)
    yield from sorted(waiting)


def _coming_back(after: datetime, zone: ZoneInfo) -> timedelta:
    """Return how much of the wall time before ``after`` comes once more after it."""
    soon = after + LONGEST_OVERLAP
    offsets = [instant.astimezone(zone).utcoffset() or timedelta(0) for instant in (after, soon)]
    return max(timedelta(0), offsets[0] - offsets[1])


def _passes(wall: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return the instants at which a wall clock shows this: one, two in an overlap, or none."""
    instants = {wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(
        instant
        for instant in instants
        if instant.astimezone(zone).replace(tzinfo=None, fold=0) == wall
    )


def _latest_cron(timetable: Cron, until: datetime) -> datetime | None:
    """Look back over growing stretches: the rarer the occurrences, the longer the stretch."""
    for hours in (2, 50, 24 * 33, 24 * 367, 24 * 366 * 9, 24 * 366 * 41):
        found = None
        for occurrence in _cron_after(timetable, until - timedelta(hours=hours)):
            if occurrence > until:
                break
            found = occurrence
        if found is not None:
            return found
    return None


def first_occurrence(
    timetable: Timetable,
    *,
    now: datetime,
    anchor: datetime,
    start: datetime | None = None,
    end: datetime | None = None,
) -> datetime | None:
    """Return where a new schedule's cursor begins.

    An interval without a start begins one interval after its creation, a cron at its next instant;
    an instant in the past is due at once.
    """
    if isinstance(timetable, Once):
        return timetable.at
    if start is not None:
        after = max(start - MICROSECOND, now if start <= now else start - MICROSECOND)
    else:
        after = now
    occurrence = next_after(timetable, after, anchor=anchor)
    return None if occurrence is None or (end is not None and occurrence > end) else occurrence


def plan(
    timetable: Timetable,
    cursor: datetime,
    now: datetime,
    *,
    anchor: datetime,
    end: datetime | None = None,
    catch_up: CatchUp = CatchUp.ONE,
    limit: int | None = None,
    most: int = 1_000,
) -> Plan:
    """Decide what a due schedule does at ``now``.

    With catch-up ``all`` at most ``most`` occurrences are fired at a time; the cursor then stays
    due, and the rest follows.
    """
    horizon = now if end is None else min(now, end)
    if catch_up is CatchUp.ALL:
        return _plan_all(timetable, cursor, horizon, anchor, end, limit, most)
    latest, passed = cursor, 0
    following = next_after(timetable, cursor, anchor=anchor)
    if following is not None and following <= horizon:
        latest = latest_until(timetable, horizon, anchor=anchor) or cursor
        passed = _count(timetable, cursor, latest, anchor)
        following = next_after(timetable, latest, anchor=anchor)
    following = _within(following, end)
    if catch_up is CatchUp.SKIP and now - latest > ON_TIME:
        return Plan([], passed + 1, following)
    return Plan([latest], passed, following)


def _plan_all(
    timetable: Timetable,
    cursor: datetime,
    horizon: datetime,
    anchor: datetime,
    end: datetime | None,
    limit: int | None,
    most: int,
) -> Plan:
    first = cursor
    if limit is not None:
        first = _first_of_latest(timetable, cursor, horizon, anchor, limit)
    missed = _count(timetable, cursor, first, anchor)
    later = upcoming(timetable, first, anchor=anchor, end=horizon)
    fire = [first, *islice(later, most - 1)]
    following = next_after(timetable, fire[-1], anchor=anchor)
    return Plan(fire, missed, _within(following, end))


def _first_of_latest(
    timetable: Timetable, cursor: datetime, horizon: datetime, anchor: datetime, limit: int
) -> datetime:
    """Return the first of the latest ``limit`` occurrences from the cursor to the horizon."""
    if isinstance(timetable, Every):
        latest = latest_until(timetable, horizon, anchor=anchor) or cursor
        return max(cursor, latest - (limit - 1) * timetable.interval)
    stretch = timedelta(hours=1)
    while horizon - stretch > cursor:  # as far back as it takes to find enough of them
        later = upcoming(timetable, horizon - stretch, anchor=anchor, end=horizon)
        found = deque(later, maxlen=limit)
        if len(found) == limit:
            return found[0]
        stretch *= 4
    return deque([cursor, *upcoming(timetable, cursor, anchor=anchor, end=horizon)], limit)[0]


def _count(timetable: Timetable, cursor: datetime, latest: datetime, anchor: datetime) -> int:
    """Count the occurrences from the cursor up to, but not with, the latest."""
    if isinstance(timetable, Every):
        return (latest - cursor) // timetable.interval
    if cursor >= latest:
        return 0
    counted = 1
    for occurrence in islice(upcoming(timetable, cursor, anchor=anchor), MOST_COUNTED):
        if occurrence >= latest:
            break
        counted += 1
    return counted


def _within(occurrence: datetime | None, end: datetime | None) -> datetime | None:
    return None if occurrence is not None and end is not None and occurrence > end else occurrence


def occurrence_id(schedule_id: UUID, occurrence: datetime) -> UUID:
    """Return the id of the job of one occurrence: the same from whoever fires it."""
    micros = (occurrence - EPOCH) // MICROSECOND
    return uuid.uuid5(NAMESPACE, f"{schedule_id}|{micros}")

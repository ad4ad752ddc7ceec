"""When something is due: once, at an interval, or by a cron expression in a zone's wall time.

Pure computations on instants, all of them in UTC. Nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from pulsed.errors import InvalidOption, checked_seconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SHORTEST_INTERVAL = 0.1
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


def to_micros(instant: datetime) -> int:
    """Return microseconds since the epoch, exactly."""
    return (instant - EPOCH) // MICROSECOND


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

"""When something is due: once, at an interval, or by a cron expression in a zone's wall time.

Pure computations on instants, all of them in UTC. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from pulsed.errors import InvalidOption, UnknownZone, checked_seconds

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
EVERY = "@every"
UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_TIMES = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_ZONE_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S*)\s*(.*)", re.DOTALL)
_RANGE_OF_ONE = re.compile(r"(\w+)-(\w+)/\d+")


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

    At a clock change, a skipped wall time runs once right after the gap, and a repeated one runs on
    the first pass. An expression with a wildcard minute or hour follows elapsed time.
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


def cron_timetable(text: str, zone: str | None = None) -> Cron | Every:
    """Return the timetable of a cron text, or raise an error that names the wrong field.

    Besides five fields and a nickname, it may be an interval (``@every 1h30m``), and may begin with
    its zone: ``CRON_TZ=Europe/Berlin`` or ``TZ=``.
    """
    if not isinstance(text, str):
        raise InvalidOption(f"cron must be a text such as '0 9 * * MON-FRI', not {text!r}.")
    named, expression = split_zone(text)
    if named is not None and zone is not None and named != zone:
        raise InvalidOption(f"The cron text {text!r} names a zone other than tz={zone!r}.")
    zone = zone if named is None else named
    if is_interval(expression):
        if zone is not None:
            raise InvalidOption(f"{EVERY} is an interval, which is the same in every time zone.")
        return _every_text(expression)
    made = Cron(normalized_cron(expression), "UTC" if zone is None else zone)
    zone_of(made.zone)
    if next_after(made, EPOCH + timedelta(days=366 * 50), anchor=EPOCH) is None:
        raise InvalidOption(f"The cron expression {expression!r} has no occurrence at all.")
    return made


def split_zone(text: str) -> tuple[str | None, str]:
    """Return the zone that a cron text names, if it does, and the text without it."""
    found = _ZONE_PREFIX.fullmatch(text.strip())
    return (found[1], found[2]) if found else (None, text.strip())


def is_interval(text: str) -> bool:
    """Whether a cron text is an ``@every`` interval."""
    return text.lower().split(maxsplit=1)[:1] == [EVERY]


def _every_text(text: str) -> Every:
    """Return the interval of ``@every 1h30m``."""
    written = text.lower().removeprefix(EVERY).strip()
    parts = _TIMES.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        raise InvalidOption(f"{text!r} is not an interval; write it as '@every 5m' or '1h30m'.")
    return every_timetable(sum(float(number) * UNITS[unit] for number, unit in parts))


def normalized_cron(expression: str) -> str:
    """Return the five fields of a nickname or an expression; an error names the wrong field."""
    text = NICKNAMES.get(expression.strip().lower(), expression.strip())
    if text.startswith("@"):
        known = ", ".join((*NICKNAMES, f"{EVERY} 5m"))
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


def simulation(expression: str, start: datetime) -> CronSim:
    """Return cronsim's iterator, with ``5`` for ``5-5/3``, which it would read as ``5/3``."""
    return CronSim(_RANGE_OF_ONE.sub(_one_value, expression), start)


def _one_value(found: re.Match[str]) -> str:
    first, last = (text.lstrip("0") or "0" for text in found.group(1, 2))
    return first if first.upper() == last.upper() else found[0]


def _check_cron(fields: list[str], what: str) -> None:
    try:
        simulation(" ".join(fields), EPOCH)
    except (CronSimError, ValueError, AssertionError) as error:
        raise InvalidOption(f"The cron {what} is not valid.") from error


def zone_of(name: str) -> ZoneInfo:
    """Return an IANA zone, from the system or from ``tzdata``."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise UnknownZone(
            f"There is no time zone {name!r} on this machine; give an IANA name such as "
            "'Europe/Berlin', or update tzdata."
        ) from error


def describe(timetable: Timetable) -> str:
    """Return in plain words when a schedule runs."""
    match timetable:
        case Once(at):
            return f"Once at {at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case Every(interval):
            return f"Every {_shown(interval)}"
        case Cron(expression, zone):
            return f"{simulation(expression, EPOCH).explain()} ({zone})"


def _shown(interval: timedelta) -> str:
    """Write an interval in its largest units, without loss: ``2 hours``, ``1 day 30 minutes``."""
    left, parts = interval // MICROSECOND, []
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        number, left = divmod(left, size * 1_000_000)
        if number:
            parts.append(_counted(str(number), unit))
    if left:
        seconds = f"{left // 1_000_000}.{left % 1_000_000:06}".rstrip("0").rstrip(".")
        parts.append(_counted(seconds, "second"))
    shown = " ".join(parts)
    return shown.removeprefix("1 ") if len(parts) == 1 else shown


def _counted(number: str, unit: str) -> str:
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


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

    cronsim counts these in wall time, where the second pass of an overlap lies before its first.
    A result that is not later in UTC than the last one is dropped.
    """
    latest = after
    local = after.astimezone(zone_of(timetable.zone))
    for wall in simulation(timetable.expression, local):
        occurrence = wall.astimezone(UTC)
        if occurrence > latest:
            latest = occurrence
            yield occurrence


def _by_elapsed_time(timetable: Cron, after: datetime) -> Iterator[datetime]:
    """Yield every instant whose wall time matches: none in a gap, both in an overlap.

    cronsim gets wall times without a zone: with one it steps by whole hours, but clocks may change
    by half an hour. Repeated times stay in a heap until nothing earlier can follow.
    """
    zone = zone_of(timetable.zone)
    local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    waiting: list[datetime] = []
    for wall in simulation(timetable.expression, local - _coming_back(after, zone)):
        passes = _passes(wall, zone)
        while waiting and passes and waiting[0] < passes[0]:
            yield heappop(waiting)
        for instant in passes:
            if instant > after:
                heappush(waiting, instant)
    yield from sorted(waiting)


def _coming_back(after: datetime, zone: ZoneInfo) -> timedelta:
    """Return how much of the wall time before ``after`` repeats after it."""
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
    """Return the last occurrence up to ``until``, from a search back over ever longer intervals."""
    for hours in (2, 50, 24 * 33, 24 * 367, 24 * 366 * 9, 24 * 366 * 41):
        found = None
        for occurrence in _cron_after(timetable, until - timedelta(hours=hours)):
            if occurrence > until:
                break
            found = occurrence
        if found is not None:
            return found
    return None

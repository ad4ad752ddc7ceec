"""Occurrences of cron expressions, found minute by minute: slow, and simple enough to be right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pulsed.model.timetable import EPOCH, Timetable, upcoming

MINUTE = timedelta(minutes=1)


DAY = timedelta(days=1)


RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


NOW = utc(2026, 5, 1, 12, 0, 30)


def values(field: str, least: int, most: int) -> set[int]:
    """What a field allows, in the syntax that the tests use: ``*``, ``a-b``, steps and lists."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            low, high = least, most
        else:
            low = int(first)
            high = int(last) if last else most if step else low
        found |= set(range(low, high + 1, int(step or 1)))
    return found


class Fields(NamedTuple):
    minutes: set[int]
    hours: set[int]
    days: set[int]
    months: set[int]
    weekdays: set[int]
    both_days: bool
    """A star in one of the two fields of days: both must match. Otherwise one is enough."""
    fixed: bool
    """Runs at wall times; with a star in minute or hour it follows elapsed time."""

    def match(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours:
            return False
        if wall.month not in self.months:
            return False
        day = wall.day in self.days
        weekday = wall.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.both_days else (day or weekday)


def parsed(expression: str) -> Fields:
    fields = expression.split()
    minutes, hours, days, months, weekdays = (
        values(field, *bounds) for field, bounds in zip(fields, RANGES, strict=True)
    )
    return Fields(
        minutes,
        hours,
        days,
        months,
        {day % 7 for day in weekdays},
        both_days=fields[2].startswith("*") or fields[4].startswith("*"),
        fixed=not fields[0].startswith("*") and not fields[1].startswith("*"),
    )


class Look(NamedTuple):
    """One minute: the instant, its wall time, and the wall times that have passed with it."""

    instant: datetime
    wall: datetime
    new: tuple[datetime, ...]
    """The wall time itself and those that were jumped over; none if it comes again."""


@lru_cache(maxsize=64)
def looks(zone: str, start: datetime, end: datetime) -> tuple[Look, ...]:
    there = ZoneInfo(zone)
    found = []
    latest = start.astimezone(there).replace(tzinfo=None) - MINUTE
    instant = start
    while instant <= end:
        wall = instant.astimezone(there).replace(tzinfo=None, fold=0)
        new = []
        while latest < wall:
            latest += MINUTE
            new.append(latest)
        found.append(Look(instant, wall, tuple(new)))
        instant += MINUTE
    return tuple(found)


def oracle(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    fields = parsed(expression)
    return [
        look.instant
        for look in looks(zone, start, end)
        if (
            any(map(fields.match, look.new))
            if fields.fixed and look.new != (look.wall,)
            else fields.match(look.wall)
        )
    ]


def computed(timetable: Timetable, after: datetime, end: datetime) -> list[datetime]:
    return list(upcoming(timetable, after, anchor=EPOCH, end=end))


class Window(NamedTuple):
    zone: str
    start: datetime
    days: int
    what: str

    @property
    def end(self) -> datetime:
        return self.start + self.days * DAY

    def __str__(self) -> str:
        return f"{self.zone}-{self.what}"

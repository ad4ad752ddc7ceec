"""Counts the occurrences of a cron in an interval, by days and not one by one.

A day without a clock change has an occurrence at each of the expression's times, or none if its
date does not match. Occurrences are enumerated only around a clock change.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from pulsed.model.timetable import (
    EPOCH,
    LONGEST_OVERLAP,
    MICROSECOND,
    Cron,
    simulation,
    upcoming,
    zone_of,
)

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


def count_between(cron: Cron, start: datetime, end: datetime) -> int:
    """Return the number of occurrences from ``start`` to ``end``, exclusive."""
    return _Tally(cron).count(start, end)


class _Tally:
    """Counts for one expression in one zone."""

    def __init__(self, cron: Cron) -> None:
        self._cron = cron
        self._zone = zone_of(cron.zone)
        self._fields = fields = simulation(cron.expression, EPOCH)
        self._minutes = sorted(60 * hour + each for hour in fields.hours for each in fields.minutes)

    def count(self, start: datetime, end: datetime) -> int:
        counted = 0
        while start < end:
            day = start.astimezone(self._zone).date()
            is_quiet, following = self._is_quiet(day), day + DAY
            while not is_quiet and not self._is_quiet(following):
                following += DAY
            until = min(end, _midnight(following, self._zone).astimezone(UTC))
            counted += self._on(day, start, until) if is_quiet else self._among(start, until)
            start = until
        return counted

    def _is_quiet(self, day: date) -> bool:
        """Whether the clocks do not change on a day, nor near its ends."""
        before = _midnight(day, self._zone) - LONGEST_OVERLAP
        after = _midnight(day + DAY, self._zone) + LONGEST_OVERLAP
        return before.utcoffset() == after.utcoffset()

    def _on(self, day: date, start: datetime, until: datetime) -> int:
        if day.month not in self._fields.months or not self._fields.match_day(day):
            return 0
        midnight = _midnight(day, self._zone).astimezone(UTC)
        first, last = (-((midnight - each) // MINUTE) for each in (start, until))
        return bisect_left(self._minutes, last) - bisect_left(self._minutes, first)

    def _among(self, start: datetime, until: datetime) -> int:
        found = upcoming(self._cron, start - MICROSECOND, anchor=start, end=until - MICROSECOND)
        return sum(1 for _ in found)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), tzinfo=zone)

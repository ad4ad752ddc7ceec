"""Statistics of runs: counts and histograms of a span of time, and how they add up.

A recorder in each worker counts by minute, queue and topic. Rows of several recorders, minutes or
topics are added by ``+``; the database does the same with ``sum``. Everything here is pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from itertools import accumulate
from operator import add
from typing import Any, Literal, NamedTuple, TypeVar

from pulsed.errors import InvalidOption
from pulsed.model.buckets import BOUNDS, BUCKETS
from pulsed.model.timetable import EPOCH

MINUTE, TEN_MINUTES, HOUR, DAY = 60, 600, 3_600, 86_400
SPANS = (MINUTE, TEN_MINUTES, HOUR)
"""Seconds that a row covers once the rows of recorders have been folded. A row is folded into one
of each span, so that a chart reads about as many rows as it has points."""
KEPT = {MINUTE: 26 * HOUR, TEN_MINUTES: 8 * DAY}
"""Seconds for which rows of a span are kept; those of an hour for as long as ``Retention`` says."""
RECORDED = 0
"""The span of a row that a recorder writes: its own part of a minute."""
LATEST = 600.0
"""Seconds after which the database ignores what a recorder still has of a minute…"""
FOLD_AFTER = 900.0
"""…and after which it folds the minute: nothing is added to what has been folded."""

MOST_STEPS = 1_500
"""Steps in one series: a day of minutes."""
MOST_LANES = 1_000
"""Pairs of a queue and a topic that a recorder tells apart in one minute; ``OTHERS`` has the
rest. Also the number of them in one answer."""
MOST_ERRORS = 50
"""Kinds of errors that a recorder tells apart in one minute."""
LONGEST_ERROR = 200
"""Characters of the name of an error…"""
LONGEST_MESSAGE = 500
"""…and of its message."""
MOST_ERROR_KINDS = 1_000
"""Kinds of errors in one answer."""
OTHERS = ""
"""The queue, topic or error of everything beyond those bounds: no real name is empty."""

By = Literal["queue", "topic"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in buckets of fixed bounds."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    seconds: float = 0.0
    """The sum of all durations."""

    @classmethod
    def of(cls, durations: Iterable[float]) -> Histogram:
        """Return the histogram of some durations."""
        counts, seconds = [0] * BUCKETS, 0.0
        for each in durations:
            counts[bisect_left(BOUNDS, each)] += 1
            seconds += each
        return cls(tuple(counts), seconds)

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The average in seconds; None without any duration."""
        return self.seconds / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """Estimate a quantile in seconds, such as 0.95; None without any duration.

        Interpolates between the bounds of the bucket that has it. Beyond the largest bound, the
        answer is that bound.
        """
        total = self.count
        if not total:
            return None
        rank = max(0.0, min(1.0, q)) * total
        bucket = bisect_left([*accumulate(self.counts)], max(rank, 1e-9))
        if bucket == len(BOUNDS):
            return BOUNDS[-1]
        lower = BOUNDS[bucket - 1] if bucket else 0.0
        share = (rank - sum(self.counts[:bucket])) / self.counts[bucket]
        return lower + (BOUNDS[bucket] - lower) * share

    @property
    def p50(self) -> float | None:
        """The median."""
        return self.quantile(0.50)

    @property
    def p95(self) -> float | None:
        """The duration that 95 % do not exceed."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float | None:
        """The duration that 99 % do not exceed."""
        return self.quantile(0.99)

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of the durations of both."""
        counts = map(add, self.counts, other.counts)
        return Histogram(tuple(counts), self.seconds + other.seconds)


NO_DURATIONS = Histogram()


class Durations:
    """A histogram that is being counted."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.seconds = 0.0

    def add(self, seconds: float, buckets: Mapping[int, int]) -> None:
        """Add durations: their sum, and how many are in each bucket."""
        self.seconds += seconds
        for bucket, count in buckets.items():
            self.counts[bucket] += count

    def histogram(self) -> Histogram:
        """Return what was counted so far."""
        return Histogram(tuple(self.counts), self.seconds)


@dataclass(frozen=True, slots=True)
class Stats:
    """What happened to jobs in a span of time."""

    submitted: int = 0
    """Jobs that were enqueued."""
    started: int = 0
    """Runs that began, retries among them."""
    succeeded: int = 0
    failed: int = 0
    """Attempts that failed and will be retried."""
    dead_lettered: int = 0
    """Attempts that failed for good."""
    cancelled: int = 0
    expired: int = 0
    """Jobs that ended because no worker started them in time."""
    wait: Histogram = NO_DURATIONS
    """How long jobs were due before their runs began."""
    run: Histogram = NO_DURATIONS
    """How long runs took that ended."""

    @property
    def ended(self) -> int:
        """Attempts that succeeded, failed or were cancelled."""
        return self.succeeded + self.failed + self.dead_lettered + self.cancelled

    @property
    def failure_rate(self) -> float | None:
        """The share of attempts that failed, 0 to 1; None if none has succeeded or failed."""
        failures = self.failed + self.dead_lettered
        decided = self.succeeded + failures
        return failures / decided if decided else None

    def __add__(self, other: Stats) -> Stats:
        """Return what happened in both."""
        return Stats(*(getattr(self, name) + getattr(other, name) for name in _STATS))


_STATS = tuple(field.name for field in fields(Stats))
COUNTS = _STATS[:-2]
"""The names of the counts."""
NO_STATS = Stats()


def total(stats: Iterable[Stats]) -> Stats:
    """Return what happened in all of these."""
    return sum((each for each in stats if each is not NO_STATS), NO_STATS)


@dataclass(frozen=True, slots=True)
class Rollup:
    """The statistics of a queue and topic from ``at`` on."""

    at: datetime
    queue: str | None
    """None: of all queues. Empty: of those beyond ``MOST_LANES``."""
    topic: str | None
    stats: Stats

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from others of its recorder."""
        return self.at, self.queue, self.topic

    def in_span(self, seconds: int) -> Rollup:
        """Return it as a part of the span that its minute is in."""
        return replace(self, at=floor(self.at, seconds))

    def __add__(self, other: Rollup) -> Rollup:
        """Return both as one."""
        return Rollup(self.at, self.queue, self.topic, self.stats + other.stats)


@dataclass(frozen=True, slots=True)
class ErrorRollup:
    """How often one kind of error happened to a topic's jobs from ``at`` on."""

    at: datetime
    queue: str
    topic: str
    error: str
    """The name of the exception's class. Empty: of all kinds beyond ``MOST_ERRORS``."""
    count: int
    dead_lettered: int
    """How many of these made the job a dead letter."""
    last_at: datetime
    message: str
    """The message of the last one, cut."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from others of its recorder."""
        return self.at, self.queue, self.topic, self.error

    def in_span(self, seconds: int) -> ErrorRollup:
        """Return it as a part of the span that its minute is in."""
        return replace(self, at=floor(self.at, seconds))

    def __add__(self, other: ErrorRollup) -> ErrorRollup:
        """Return both as one, with the later message."""
        last = max(self, other, key=lambda each: each.last_at)
        return replace(
            last,
            at=self.at,
            count=self.count + other.count,
            dead_lettered=self.dead_lettered + other.dead_lettered,
        )


def error_text(error: str, message: str) -> tuple[str, str]:
    """Return the name and message of an error, cut to what is kept of them."""
    return error[:LONGEST_ERROR], message[:LONGEST_MESSAGE]


R = TypeVar("R", Rollup, ErrorRollup)


def folded(rows: Iterable[R]) -> list[tuple[int, R]]:
    """Return the sums of recorded rows for each span, by span and key."""
    sums: dict[tuple[Any, ...], R] = {}
    for each in rows:
        for span in SPANS:
            part: R = each.in_span(span)
            key = (span, *part.key)
            known = sums.get(key)
            sums[key] = part if known is None else known + part
    return [(key[0], sums[key]) for key in sorted(sums)]


class Errors(list[ErrorRollup]):
    """Kinds of errors, the most frequent first."""

    def __init__(self, errors: Iterable[ErrorRollup] = (), *, is_cut: bool = False) -> None:
        super().__init__(errors)
        self.is_cut = is_cut
        """Whether there are more kinds than asked for."""


class Totals(list[Rollup]):
    """The statistics of each queue and topic over a span of time, the busiest first."""

    def __init__(self, rollups: Iterable[Rollup] = (), *, is_cut: bool = False) -> None:
        super().__init__(rollups)
        self.is_cut = is_cut
        """Whether there are more pairs of a queue and a topic than one answer has."""

    @property
    def stats(self) -> Stats:
        """The sum of all of them."""
        return total(each.stats for each in self)


class Point(NamedTuple):
    """One step of a series."""

    at: datetime
    """When it begins; it ends a step later."""
    stats: Stats


class Series(NamedTuple):
    """Statistics over time, in steps of equal length, without gaps."""

    since: datetime
    until: datetime
    step: int
    """Seconds."""
    points: list[Point]

    @property
    def stats(self) -> Stats:
        """The sum over all steps."""
        return total(point.stats for point in self.points)

    def last(self, seconds: int) -> Series:
        """Return its last steps, of so many seconds together."""
        points = self.points[-(seconds // self.step) :]
        return self._replace(since=points[0].at if points else self.since, points=points)


class RollupFilter(NamedTuple):
    """Which statistics to read: of a span of time, and perhaps of one queue or topic only."""

    since: datetime
    until: datetime | None = None
    """None: now."""
    queue: str | None = None
    topic: str | None = None


class Range(NamedTuple):
    """What to read for a series: whole steps, from rows of one span."""

    since: datetime
    until: datetime
    step: int
    span: int

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return -(-int((self.until - self.since).total_seconds()) // self.step)


class SeriesRows(NamedTuple):
    """The steps of a series that have any statistics, perhaps for each queue or topic."""

    range: Range
    rollups: list[Rollup]
    is_cut: bool = False

    def series(self, rollups: Sequence[Rollup] | None = None) -> Series:
        """Return all steps of the series, of these rollups or of all."""
        since, until, step, _ = self.range
        found: dict[datetime, Stats] = {}
        for each in self.rollups if rollups is None else rollups:
            found[each.at] = found[each.at] + each.stats if each.at in found else each.stats
        times = (since + timedelta(seconds=step * n) for n in range(self.range.steps))
        return Series(since, until, step, [Point(at, found.get(at, NO_STATS)) for at in times])


def range_of(since: datetime, until: datetime | None, step: int | None, now: datetime) -> Range:
    """Return what to read for a series; ``step`` None chooses one for the length.

    The first step begins at or before ``since``, at a multiple of the step. Where minutes are no
    longer kept, the step is longer than asked for.
    """
    until = floor(now, MINUTE) + timedelta(seconds=MINUTE) if until is None else until
    if since >= until:
        raise InvalidOption(f"since must be before until: {since} is not before {until}.")
    seconds = (until - since).total_seconds()
    wanted = _fitting_step(seconds) if step is None else step
    if wanted < MINUTE or wanted % MINUTE:
        raise InvalidOption(f"step must be whole minutes in seconds, not {step!r}.")
    span = _span_for(wanted, (now - since).total_seconds())
    wanted = -(-wanted // span) * span
    begin = floor(since, wanted)
    if (until - begin).total_seconds() > wanted * MOST_STEPS:
        raise InvalidOption(
            f"A step of {wanted} s makes more than {MOST_STEPS:,} steps of this time; choose a "
            "longer step."
        )
    return Range(begin, until, wanted, span)


def range_of_total(since: datetime, until: datetime | None, now: datetime) -> Range:
    """Return what to read for the sum of a span of time, as a single step."""
    found = range_of(since, until, None, now)
    return found._replace(step=max(1, int((found.until - found.since).total_seconds()) + 1))


def floor(instant: datetime, seconds: int) -> datetime:
    """Return the last instant before or at this one that is a multiple of so many seconds."""
    return instant - (instant - EPOCH) % timedelta(seconds=seconds)


def _fitting_step(seconds: float) -> int:
    """Return a step of which there are at most about three hundred."""
    for step in (MINUTE, TEN_MINUTES, HOUR, 6 * HOUR):
        if seconds <= 300 * step:
            return step
    return -(-int(seconds) // (300 * DAY)) * DAY


def _span_for(step: int, age: float) -> int:
    """Return the longest span that divides a step, or a longer one if that is not kept any more."""
    fitting = max(span for span in SPANS if step % span == 0)
    return next(each for each in SPANS if each >= fitting and age <= KEPT.get(each, age))

"""Histograms and statistics: how they add up, and what their quantiles are worth."""

from bisect import bisect_left
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pulsed.errors import InvalidOption
from pulsed.model.buckets import BOUNDS, BUCKETS
from pulsed.model.rollup import (
    DAY,
    HOUR,
    KEPT,
    MINUTE,
    MOST_STEPS,
    SPANS,
    TEN_MINUTES,
    ErrorRollup,
    Histogram,
    Point,
    Rollup,
    Series,
    SeriesRows,
    Stats,
    floor,
    folded,
    range_of,
    range_of_total,
    total,
)

NOW = datetime(2030, 1, 1, 12, 34, 56, 789, tzinfo=UTC)

durations = some.lists(some.floats(0, 100_000), max_size=60)
shares = some.floats(0, 1)


def bucket_of(seconds: float) -> int:
    return bisect_left(BOUNDS, seconds)


def test_every_duration_has_a_bucket():
    assert len(Histogram().counts) == BUCKETS == len(BOUNDS) + 1
    assert list(BOUNDS) == sorted(set(BOUNDS))
    edges = Histogram.of([0.0, BOUNDS[0], BOUNDS[-1], BOUNDS[-1] + 1])
    assert (edges.counts[0], edges.counts[-2], edges.counts[-1]) == (2, 1, 1)


@given(durations, durations)
def test_a_sum_is_the_histogram_of_all(one, other):
    both, summed = Histogram.of(one + other), Histogram.of(one) + Histogram.of(other)
    assert summed.counts == both.counts
    assert summed.seconds == pytest.approx(both.seconds)
    assert summed.count == len(one) + len(other)


@given(durations.filter(bool), shares)
def test_a_quantile_is_in_the_bucket_that_has_it(values, q):
    """So the estimate is as good as the bounds are close."""
    estimate = Histogram.of(values).quantile(q)
    rank = max(1, -(-len(values) * q // 1))
    true = sorted(values)[int(rank) - 1]
    assert estimate is not None
    if bucket_of(true) == len(BOUNDS):
        assert estimate == BOUNDS[-1]
    else:
        lower = 0.0 if bucket_of(true) == 0 else BOUNDS[bucket_of(true) - 1]
        assert lower <= estimate <= BOUNDS[bucket_of(true)] + 1e-9


@given(durations.filter(bool), shares, shares)
def test_a_larger_share_has_no_smaller_quantile(values, one, other):
    histogram = Histogram.of(values)
    low, high = (histogram.quantile(q) for q in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert low <= high + 1e-9


def test_quantiles_are_interpolated():
    histogram = Histogram.of([1.5] * 100)  # between 1 and 2.5 seconds
    assert histogram.p50 == pytest.approx(1.75)
    assert histogram.p95 == pytest.approx(2.425)
    assert histogram.p99 == pytest.approx(2.485)
    assert histogram.mean == pytest.approx(1.5)


def test_there_is_no_quantile_of_nothing():
    empty = Histogram()
    assert (empty.p50, empty.p95, empty.p99, empty.mean) == (None, None, None, None)


def test_statistics_add_up():
    one = Stats(1, 2, 3, 4, 5, 6, 7, Histogram.of([1.0]), Histogram.of([2.0]))
    assert one + one == Stats(2, 4, 6, 8, 10, 12, 14, one.wait + one.wait, one.run + one.run)
    assert total([]) == Stats()
    assert one.ended == 18
    assert one.failure_rate == pytest.approx(9 / 12)
    assert Stats(cancelled=1).failure_rate is None


minutes = some.integers(0, 3 * 24 * 60).map(lambda n: floor(NOW, MINUTE) + timedelta(minutes=n))
rollups = some.builds(
    Rollup,
    minutes,
    some.sampled_from("ab"),
    some.sampled_from("xy"),
    some.builds(Stats, started=some.integers(1, 9)),
)


@given(some.lists(rollups, max_size=30))
def test_folding_keeps_the_sum_in_each_span(rows):
    made = folded(rows)
    for span in SPANS:
        parts = [each for width, each in made if width == span]
        assert sum(each.stats.started for each in parts) == sum(r.stats.started for r in rows)
        assert all(each.at == floor(each.at, span) for each in parts)
        assert len({each.key for each in parts}) == len(parts)
    assert [(span, each.key) for span, each in made] == sorted(
        (span, each.key) for span, each in made
    )


def test_folded_errors_keep_the_last_message():
    def error(minute, message):
        at = floor(NOW, HOUR) + timedelta(minutes=minute)
        return ErrorRollup(at, "q", "t", "E", 1, 1, at, message)

    hours = [each for span, each in folded([error(5, "new"), error(1, "old")]) if span == HOUR]
    assert [(each.count, each.dead_lettered, each.message) for each in hours] == [(2, 2, "new")]


# -- which steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seconds, step",
    [(HOUR, MINUTE), (DAY, TEN_MINUTES), (7 * DAY, HOUR), (30 * DAY, 6 * HOUR)],
    ids=["1h", "24h", "7d", "30d"],
)
def test_a_step_suits_the_length(seconds, step):
    found = range_of(NOW - timedelta(seconds=seconds), None, None, NOW)
    assert found.step == step
    assert 40 <= found.steps <= 301


@given(
    some.integers(1, 400 * DAY),
    some.one_of(some.none(), some.integers(1, 3 * 24 * 60).map(lambda n: n * MINUTE)),
)
def test_steps_are_whole_spans_that_are_still_kept(ago, step):
    since = NOW - timedelta(seconds=ago)
    try:
        found = range_of(since, None, step, NOW)
    except InvalidOption:
        assert step is not None
        assert ago + step >= step * (MOST_STEPS - 1)
        return
    assert found.since <= since < found.since + timedelta(seconds=found.step)
    assert found.since == floor(found.since, found.step)
    assert found.step % found.span == 0
    assert found.steps <= MOST_STEPS + 1
    assert ago <= KEPT.get(found.span, ago)
    assert found.until > NOW


def test_a_total_is_one_step():
    for ago in (1, HOUR, 3 * DAY, 40 * DAY):
        assert range_of_total(NOW - timedelta(seconds=ago), None, NOW).steps == 1


def test_a_series_has_no_gaps():
    found = range_of(NOW - timedelta(minutes=10), None, MINUTE, NOW)
    at = found.since + timedelta(minutes=3)
    rows = [Rollup(at, q, None, Stats(started=2)) for q in "ab"]
    series = SeriesRows(found, rows).series()
    assert [point.stats.started for point in series.points] == [0, 0, 0, 4, *[0] * 7]
    assert SeriesRows(found, rows).series(rows[:1]).stats.started == 2


def test_the_end_of_a_series_is_one_of_its_last_steps():
    begin = datetime(2026, 11, 10, tzinfo=UTC)
    times = [begin + timedelta(hours=n) for n in range(168)]
    points = [Point(at, Stats(succeeded=n)) for n, at in enumerate(times)]
    week = Series(begin, begin + timedelta(days=7), HOUR, points)
    day = week.last(DAY)
    assert (day.since, day.until, len(day.points)) == (times[144], week.until, 24)
    assert day.stats.succeeded == sum(range(144, 168))
    assert Series(begin, begin, HOUR, []).last(DAY).points == []

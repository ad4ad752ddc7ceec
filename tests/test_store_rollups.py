"""Statistics in the store: recorded once, summed by readers, folded, removed."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from pulsed.errors import InvalidOption
from pulsed.model.rollup import (
    DAY,
    FOLD_AFTER,
    HOUR,
    KEPT,
    LATEST,
    MINUTE,
    MOST_STEPS,
    SPANS,
    TEN_MINUTES,
    ErrorRollup,
    Histogram,
    Rollup,
    RollupFilter,
    Stats,
    floor,
    total,
)
from pulsed.store.sql.rollups import FIGURES
from pulsed.store.verbs import rollups as verbs
from tests.support.backends import only_postgres
from tests.support.faults import Fault

postgres = only_postgres
ALICE, BOB = UUID(int=1), UUID(int=2)
FAST, SLOW = Histogram.of([2**-9]), Histogram.of([20.0, 40.0])
EVERYTHING = Stats(1, 2, 3, 4, 5, 6, 7, FAST, SLOW)


def a_rollup(at, queue="default", topic="t", stats=None, **counts):
    return Rollup(floor(at, MINUTE), queue, topic, stats or Stats(**counts))


def an_error(at, error="ValueError", queue="default", topic="t", count=1, dead=0, message="no"):
    return ErrorRollup(floor(at, MINUTE), queue, topic, error, count, dead, at, message)


async def read(store, clock, seconds=HOUR, step=None, by=(), **lane):
    since, until = clock() - timedelta(seconds=seconds), clock() + timedelta(seconds=1)
    return await store.rollups.series(RollupFilter(since, until, **lane), step, by=by)


async def all_stats(store, clock, seconds=HOUR):
    return (await read(store, clock, seconds)).series().stats


async def fold(store, keep=30.0 * DAY, limit=500):
    return await store.rollups.fold(keep=keep, limit=limit)


def spans_of(backend, table="pulse_rollups"):
    return dict(backend.execute(f"SELECT span, count(*) FROM {table} GROUP BY span"))


# -- recording ------------------------------------------------------------------------------------


async def test_what_a_recorder_writes_is_read_back(store, clock):
    told = await store.rollups.record(ALICE, [a_rollup(clock(), stats=EVERYTHING)])
    assert told == clock()
    found = await read(store, clock)
    assert [(each.at, each.stats) for each in found.rollups] == [
        (floor(clock(), MINUTE), EVERYTHING)
    ]


async def test_a_flush_is_a_total_so_a_repeated_one_counts_once(store, clock):
    """A worker that got no answer sends the same again, and more of the same minute later."""
    first, second = Stats(started=2, wait=FAST), Stats(started=5, wait=FAST + SLOW)
    for stats in (first, first, second, second):
        await store.rollups.record(ALICE, [a_rollup(clock(), stats=stats)])
    assert await all_stats(store, clock) == second


async def test_a_flush_that_arrives_after_a_later_one_changes_nothing(store, clock):
    """A call that timed out may still be on its way when the next one is done."""
    late, latest = Stats(started=2), Stats(started=5)
    for stats in (latest, late):
        await store.rollups.record(
            ALICE,
            [a_rollup(clock(), stats=stats)],
            [an_error(clock(), count=stats.started, message=f"{stats.started}")],
        )
    assert await all_stats(store, clock) == latest
    [error] = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=1)), limit=5)
    assert (error.count, error.message) == (5, "5")


async def test_a_lost_answer_does_not_count_twice(store, clock, when, times):
    rollups, errors = [a_rollup(clock(), stats=EVERYTHING)], [an_error(clock(), count=3, dead=1)]
    await store.rollups.record(BOB, rollups)
    fault = Fault(store, "record_rollups", when, times)
    await store.rollups.record(ALICE, rollups, errors)
    assert fault.hits == times
    assert await all_stats(store, clock) == EVERYTHING + EVERYTHING
    [error] = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=1)), limit=5)
    assert (error.count, error.dead_lettered) == (3, 1)


async def test_recorders_do_not_touch_each_others_rows(store, clock):
    await store.rollups.record(ALICE, [a_rollup(clock(), started=2)])
    await store.rollups.record(BOB, [a_rollup(clock(), started=3)])
    await store.rollups.record(ALICE, [a_rollup(clock(), started=4)])
    assert (await all_stats(store, clock)).started == 7


async def test_a_minute_that_may_be_folded_already_is_ignored(store, clock):
    minute = floor(clock(), MINUTE)
    clock.advance(MINUTE - (clock() - minute).total_seconds() + LATEST - MINUTE)
    too_late = [a_rollup(minute, started=1)], [an_error(minute)]
    await store.rollups.record(ALICE, *too_late)
    assert (await all_stats(store, clock)).started == 0
    assert await store.rollups.errors(RollupFilter(minute - timedelta(hours=1)), limit=5) == []
    in_time = minute + timedelta(seconds=MINUTE)
    await store.rollups.record(ALICE, [a_rollup(in_time, started=1)], [an_error(in_time)])
    assert (await all_stats(store, clock)).started == 1
    assert LATEST < FOLD_AFTER


async def test_the_same_row_twice_in_a_flush_is_written_once(store, clock):
    rollup, error = a_rollup(clock(), started=2), an_error(clock())
    await store.rollups.record(ALICE, [rollup, rollup], [error, error])
    assert (await all_stats(store, clock)).started == 2


async def test_an_empty_flush_only_reads_the_clock(store, clock):
    assert await store.rollups.record(ALICE, []) == clock()


@pytest.mark.embedded("statements are counted where they run")
async def test_a_flush_is_one_statement_and_a_look_at_the_clock(store, clock):
    def statements(*parts):
        script = verbs.record(store.engine, ALICE, *parts).script()
        next(script)
        made = 1
        while True:
            try:
                script.send([(clock(),)] if store.dialect.engine == "postgres" else [(0,)])
            except StopIteration:
                return made
            made += 1

    lanes = [a_rollup(clock(), topic=f"t{n}", started=1) for n in range(50)]
    assert statements(lanes, []) == 2
    assert statements(lanes, [an_error(clock())]) == 3


# -- reading --------------------------------------------------------------------------------------


async def test_a_series_has_every_step_and_sums_recorders_queues_and_topics(store, clock):
    for minutes, who in ((0, ALICE), (0, BOB), (2, ALICE)):
        at = clock() - timedelta(minutes=minutes)
        lanes = [a_rollup(at, queue, started=1) for queue in ("a", "b")]
        await store.rollups.record(who, lanes)
    series = (await read(store, clock, 5 * MINUTE)).series()
    assert series.step == MINUTE
    assert [point.stats.started for point in series.points][-3:] == [2, 0, 4]
    assert [point.at for point in series.points] == [
        floor(clock(), MINUTE) - timedelta(minutes=n) for n in (5, 4, 3, 2, 1, 0)
    ]
    assert series.stats.started == 6


async def test_a_series_is_of_one_queue_or_topic_if_asked(store, clock):
    lanes = {("a", "x"): 1, ("a", "y"): 2, ("b", "x"): 4}
    rollups = [a_rollup(clock(), *lane, started=number) for lane, number in lanes.items()]
    await store.rollups.record(ALICE, rollups)

    async def started(**where):
        return (await read(store, clock, **where)).series().stats.started

    assert await started() == 7
    assert (await started(queue="a"), await started(queue="b")) == (3, 4)
    assert (await started(topic="x"), await started(queue="a", topic="x")) == (5, 1)
    assert await started(queue="none") == 0


async def test_rows_are_told_apart_by_queue_or_topic_if_asked(store, clock):
    await store.rollups.record(
        ALICE, [a_rollup(clock(), q, t, started=1) for q in "ab" for t in "xyz"]
    )

    async def lanes(*by):
        found = await read(store, clock, by=by)
        return sorted((each.queue, each.topic, each.stats.started) for each in found.rollups)

    assert await lanes("queue") == [("a", None, 3), ("b", None, 3)]
    assert await lanes("topic") == [(None, "x", 2), (None, "y", 2), (None, "z", 2)]
    assert len(await lanes("queue", "topic")) == 6


async def test_an_answer_is_cut_at_its_bound_and_says_so(store, clock, monkeypatch):
    monkeypatch.setattr(verbs, "MOST_ROWS", 4)
    monkeypatch.setattr(verbs, "MOST_LANES", 2)
    for minute in (1, 0):
        at = clock() - timedelta(minutes=minute)
        lanes = [a_rollup(at, topic=t, started=n + 1) for n, t in enumerate("xyz")]
        await store.rollups.record(ALICE, lanes)
    found = await read(store, clock, by=["topic"])
    assert found.is_cut
    assert [each.at == floor(clock(), MINUTE) for each in found.rollups].count(True) == 3
    totals = await store.rollups.totals(RollupFilter(clock() - timedelta(hours=1)))
    assert totals.is_cut
    assert [each.topic for each in totals] == ["z", "y"]


async def test_totals_are_by_queue_and_topic_the_busiest_first(store, clock):
    for minutes in (0, 1, 7):
        at = clock() - timedelta(minutes=minutes)
        rollups = [a_rollup(at, "q", "few", started=1), a_rollup(at, "q", "many", started=2)]
        await store.rollups.record(ALICE, rollups)
    totals = await store.rollups.totals(RollupFilter(clock() - timedelta(minutes=30)))
    assert [(each.topic, each.stats.started) for each in totals] == [("many", 6), ("few", 3)]
    assert totals.stats.started == 9
    assert not totals.is_cut


async def test_errors_come_by_kind_the_most_frequent_first_each_with_its_last_message(store, clock):
    now = clock()
    before = now - timedelta(minutes=3)
    await store.rollups.record(ALICE, [], [an_error(now, count=2, dead=1, message="new")])
    await store.rollups.record(BOB, [], [an_error(before, count=2, message="old")])
    await store.rollups.record(BOB, [], [an_error(now, "KeyError", count=3, topic="u")])
    found = await store.rollups.errors(RollupFilter(now - timedelta(hours=1)), limit=5)
    assert [(each.error, each.topic, each.count) for each in found] == [
        ("ValueError", "t", 4),
        ("KeyError", "u", 3),
    ]
    assert (found[0].message, found[0].last_at, found[0].dead_lettered) == ("new", now, 1)
    assert (found[0].at, found.is_cut) == (floor(before, MINUTE), False)
    cut = await store.rollups.errors(RollupFilter(now - timedelta(hours=1)), limit=1)
    assert ([each.error for each in cut], cut.is_cut) == (["ValueError"], True)
    only = await store.rollups.errors(RollupFilter(now - timedelta(hours=1), topic="u"), limit=5)
    assert [each.error for each in only] == ["KeyError"]


async def test_what_no_reader_can_be_asked_is_refused(store, clock):
    now = clock()
    for since, until, step in (
        (now, now, None),
        (now - timedelta(hours=1), None, 30),
        (now - timedelta(hours=1), None, 90),
        (now - timedelta(seconds=MINUTE * (MOST_STEPS + 2)), now, MINUTE),
    ):
        with pytest.raises(InvalidOption):
            await store.rollups.series(RollupFilter(since, until), step)


# -- folding --------------------------------------------------------------------------------------


async def some_minutes(store, clock, minutes=25, recorders=(ALICE, BOB)):
    """Let recorders count for some minutes; returns the sum."""
    stats = Stats(started=1, succeeded=1, wait=FAST, run=SLOW)
    for _ in range(minutes):
        for recorder in recorders:
            lanes = [a_rollup(clock(), topic=topic, stats=stats) for topic in "xy"]
            await store.rollups.record(recorder, lanes, [an_error(clock())])
        clock.advance(MINUTE)
    return total([stats] * (minutes * len(recorders) * 2))


class KilledHere(Exception):
    """Stands for the end of a process."""


def dying(script, after):
    """Run so many statements of a script, and die before the next."""
    rows = None
    for _ in range(after):
        rows = yield next(script) if rows is None else script.send(rows)
    raise KilledHere


async def test_a_fold_leaves_every_sum_as_it_was(store, backend, clock):
    summed = await some_minutes(store, clock)
    clock.advance(FOLD_AFTER)
    before = (await read(store, clock, 2 * HOUR, by=["topic"])).rollups
    errors = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=2)), limit=5)
    assert await fold(store) == 100
    assert spans_of(backend) == {
        MINUTE: 50,
        TEN_MINUTES: spans_of(backend)[TEN_MINUTES],
        HOUR: spans_of(backend)[HOUR],
    }
    assert (await read(store, clock, 2 * HOUR, by=["topic"])).rollups == before
    for step in (*SPANS, 2 * HOUR):
        assert (await read(store, clock, 2 * HOUR, step)).series().stats == summed
    assert (await store.rollups.totals(RollupFilter(clock() - timedelta(hours=2)))).stats == summed
    [after] = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=2)), limit=5)
    assert (after.count, after.last_at) == (errors[0].count, errors[0].last_at)
    assert await fold(store) == 0


async def test_only_minutes_that_no_recorder_can_write_any_more_are_folded(store, backend, clock):
    await some_minutes(store, clock, minutes=20, recorders=[ALICE])
    while floor(clock(), MINUTE) != clock():
        clock.advance((floor(clock(), MINUTE) + timedelta(minutes=1) - clock()).total_seconds())
    await fold(store)
    left = spans_of(backend)[0] / 2
    assert left == FOLD_AFTER / MINUTE
    assert FOLD_AFTER - LATEST >= 5 * MINUTE


async def test_a_fold_is_bounded_and_goes_on_where_it_stopped(store, clock):
    summed = await some_minutes(store, clock, minutes=5)
    clock.advance(FOLD_AFTER)
    done: list[int] = []
    while not done or done[-1]:
        done.append(await fold(store, limit=8))
        assert await all_stats(store, clock) == summed
    assert done == [8, 8, 4, 0]


async def test_a_lost_answer_of_a_fold_loses_and_doubles_nothing(store, clock, when, times):
    summed = await some_minutes(store, clock, minutes=3)
    clock.advance(FOLD_AFTER)
    fault = Fault(store, "fold_rollups", when, times)
    await fold(store)
    assert fault.hits == times
    assert await all_stats(store, clock) == summed
    [error] = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=1)), limit=5)
    assert error.count == 6


async def test_folds_at_the_same_time_lose_and_double_nothing(store, backend, clock):
    summed = await some_minutes(store, clock, minutes=6)
    clock.advance(FOLD_AFTER)
    others = [backend.open() for _ in range(3)]
    await asyncio.gather(*(fold(each, limit=5) for each in [store, *others] for _ in range(4)))
    for other in others:
        await other.aclose()
    await fold(store)
    assert await all_stats(store, clock) == summed


@pytest.mark.embedded("the transaction is the server's")
@pytest.mark.parametrize("after", [1, 2, 3, 4])
async def test_a_fold_that_dies_between_two_statements_changes_nothing(
    store, backend, clock, after
):
    summed = await some_minutes(store, clock, minutes=3)
    clock.advance(FOLD_AFTER)
    before = spans_of(backend), spans_of(backend, "pulse_error_rollups")
    verb = verbs.fold(store.engine, None, 500)
    with pytest.raises(KilledHere):
        await store.perform(replace(verb, script=lambda: dying(verb.script(), after)))
    assert (spans_of(backend), spans_of(backend, "pulse_error_rollups")) == before
    assert await all_stats(store, clock) == summed


async def test_rows_of_each_span_are_removed_when_their_time_is_up(store, backend, clock):
    await some_minutes(store, clock, minutes=1, recorders=[ALICE])
    clock.advance(FOLD_AFTER + MINUTE)
    keep = 30.0 * DAY
    await fold(store, keep)
    assert set(spans_of(backend)) == set(SPANS)
    for span, age in (*KEPT.items(), (HOUR, keep)):
        start = {at: floor(clock(), at) for at in SPANS}
        assert start
        clock.advance(age)
        await fold(store, keep)
        assert span not in spans_of(backend)
        assert span not in spans_of(backend, "pulse_error_rollups")
    assert spans_of(backend) == {}


async def test_hours_stay_for_ever_if_they_are_to(store, backend, clock):
    await some_minutes(store, clock, minutes=1, recorders=[ALICE])
    clock.advance(1000 * DAY)
    await fold(store, None)
    await fold(store, None)
    assert spans_of(backend) == {HOUR: 2}
    assert (await all_stats(store, clock, 1001 * DAY)).started == 2


async def test_a_chart_of_any_length_finds_what_was_folded_long_ago(store, clock):
    """The step is longer than asked for where minutes are gone."""
    summed = await some_minutes(store, clock, minutes=2, recorders=[ALICE])
    for age, span in ((FOLD_AFTER, MINUTE), (2 * DAY, TEN_MINUTES), (9 * DAY, HOUR)):
        clock.advance(age)
        await fold(store)
        since = clock() - timedelta(days=12)
        assert (await store.rollups.totals(RollupFilter(since))).stats == summed
        length = {MINUTE: HOUR, TEN_MINUTES: 3 * DAY, HOUR: 12 * DAY}[span]
        found = await read(store, clock, length, max(span, length // MOST_STEPS // 60 * 60))
        assert found.range.span == span
        assert found.series().stats == summed


# -- the table ------------------------------------------------------------------------------------


async def test_the_table_has_a_column_for_each_figure(store, backend):
    await store.now()
    with closing(backend.connect()) as connection:
        cursor = connection.execute("SELECT * FROM pulse_rollups")
        names = [column[0] for column in cursor.description]
    assert sorted(names) == sorted(["span", "at", "queue", "topic", "recorder", *FIGURES])


def test_sqlite_knows_what_folding_needs():
    assert sqlite3.sqlite_version_info >= (3, 35)  # RETURNING


async def test_recorders_of_one_minute_never_wait_for_each_other(postgres, clock):
    """Their rows are their own: an open transaction of one does not stop another."""
    store = postgres.open()
    await store.rollups.record(ALICE, [a_rollup(clock(), started=1)])
    with closing(postgres.connect()) as connection, connection.transaction():
        connection.execute("UPDATE pulse_rollups SET started = 2")
        await asyncio.wait_for(store.rollups.record(uuid4(), [a_rollup(clock(), started=1)]), 5)
    await store.aclose()

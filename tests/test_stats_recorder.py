"""The recorder of a worker: counts its runs, flushes totals, and never hurts a run."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pulsed import JobFailed, NoRetry, Pulse
from pulsed.engine import stats as stats_module
from pulsed.engine.stats import MOST_MINUTES, StatsRecorder
from pulsed.engine.upkeep.pruner import Pruner
from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import ServerTooOld, TransientStorageError
from pulsed.model.events import (
    JobDeadLettered,
    JobRetryScheduled,
    RunCancelled,
    RunHandedBack,
    RunStarted,
    RunSucceeded,
    counts_of,
)
from pulsed.model.retention import Retention
from pulsed.model.rollup import (
    FOLD_AFTER,
    LONGEST_MESSAGE,
    MINUTE,
    MOST_ERRORS,
    MOST_LANES,
    RollupFilter,
    floor,
)
from pulsed.store.event_bus import Events
from tests.support.clock import Clock
from tests.support.jobs import running

WORKER = UUID(int=7)
WHOLE_DAY = timedelta(days=1)


def event(kind, clock, queue="default", topic="t", waited=0.5, ran=2.0, worker=WORKER, **more):
    fields = {"job_id": uuid4(), "topic": topic, "queue": queue, "at": clock()}
    fields |= {"worker_id": worker, "attempt": 1, "waited": waited}
    return kind(**fields, **({} if kind is RunStarted else {"ran": ran}), **more)


def failure(clock, error_type="ValueError", error="ValueError: no", kind=JobRetryScheduled, **more):
    return event(kind, clock, error_type=error_type, error=error, **more)


def publish(store, events, worker=WORKER):
    """Publish events as a worker does, or as a watchdog: without a worker."""
    store.events.publish([*events, *counts_of(events, worker)])


async def recorded(store, clock):
    return (await store.rollups.totals(RollupFilter(clock() - timedelta(hours=1)))).stats


@pytest.fixture
def recorder(store):
    made = StatsRecorder(store, WORKER)
    made.start()
    return made


# -- counting -------------------------------------------------------------------------------------


async def test_each_kind_of_event_is_counted(store, clock, recorder):
    publish(store, [event(RunStarted, clock)] * 6)
    publish(store, [event(RunSucceeded, clock)] * 2 + [event(RunCancelled, clock)])
    publish(
        store, [failure(clock), failure(clock, kind=JobDeadLettered), event(RunHandedBack, clock)]
    )
    await recorder.flush()
    stats = await recorded(store, clock)
    assert (stats.started, stats.succeeded, stats.failed) == (6, 2, 1)
    assert (stats.dead_lettered, stats.cancelled) == (1, 1)
    assert (stats.wait.count, stats.wait.seconds) == (6, 3.0)
    assert (stats.run.count, stats.run.seconds) == (stats.ended, 10.0)
    [error] = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=1)), limit=5)
    assert (error.error, error.count, error.dead_lettered) == ("ValueError", 2, 1)
    assert error.message == "ValueError: no"


async def test_only_its_own_workers_runs_are_counted(store, clock, recorder):
    """Two workers of a process share a bus, and a watchdog publishes the runs of silent ones."""
    publish(store, [event(RunSucceeded, clock, worker=uuid4())], worker=uuid4())
    publish(store, [failure(clock, waited=None, ran=None)], worker=None)
    await recorder.flush()
    assert (await recorded(store, clock)).ended == 0


async def test_what_its_own_watchdog_has_recovered_is_counted(store, clock, recorder):
    recorder.count([failure(clock, "LeaseExpired", waited=None, ran=None, worker=uuid4())])
    await recorder.flush()
    stats = await recorded(store, clock)
    assert (stats.failed, stats.run.count) == (1, 0)
    [error] = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=1)), limit=5)
    assert error.error == "LeaseExpired"


async def test_a_watchdog_hands_over_the_ends_of_silent_runs(store, clock):
    await running(store, max_attempts=5)
    seen: list[Any] = []
    upkeep = Watchdog(store, tick=10, on_ended=seen.extend)
    await upkeep.tick()
    for _ in range(20):
        clock.advance(10)
        await upkeep.tick()
    assert [type(each) for each in seen] == [JobRetryScheduled]


# -- flushing -------------------------------------------------------------------------------------


async def test_a_flush_writes_only_what_has_changed(store, clock, recorder):
    calls = []
    record = store.rollups.record

    async def counting(who, rollups, errors=()):
        calls.append((len(rollups), len(errors)))
        return await record(who, rollups, errors)

    store.rollups.record = counting
    publish(store, [event(RunStarted, clock, topic=topic) for topic in "abc"])
    await recorder.flush()
    await recorder.flush()
    publish(store, [event(RunStarted, clock, topic="b"), failure(clock, topic="b")])
    await recorder.flush()
    assert calls == [(3, 0), (1, 1)]
    assert (await recorded(store, clock)).started == 4


async def test_totals_of_a_minute_go_on_over_several_flushes_and_minutes(store, clock, recorder):
    for _ in range(3):
        for _ in range(2):
            publish(store, [event(RunSucceeded, clock)])
            await recorder.flush()
        clock.advance(MINUTE)
    rows = await store.rollups.series(RollupFilter(clock() - timedelta(minutes=5)), step=MINUTE)
    assert [each.stats.succeeded for each in rows.rollups] == [2, 2, 2]


async def test_what_a_flush_could_not_write_goes_with_the_next(store, clock, recorder):
    async def away(*_):
        raise TransientStorageError("away")

    record, store.rollups.record = store.rollups.record, away
    for _ in range(3):
        publish(store, [event(RunSucceeded, clock), failure(clock)])
        with pytest.raises(TransientStorageError):
            await recorder.flush()
        clock.advance(MINUTE)
    store.rollups.record = record
    await recorder.flush()
    stats = await recorded(store, clock)
    assert (stats.succeeded, stats.failed) == (3, 3)
    [error] = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=1)), limit=5)
    assert error.count == 3


async def test_a_flush_that_is_cancelled_loses_nothing(store, clock, recorder):
    async def never(*_):
        await asyncio.Event().wait()

    record, store.rollups.record = store.rollups.record, never
    publish(store, [event(RunSucceeded, clock)])
    flushing = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([flushing])
    store.rollups.record = record
    await recorder.close()
    assert (await recorded(store, clock)).succeeded == 1


async def test_the_end_writes_what_is_left_and_ends_the_subscription(store, clock, recorder):
    publish(store, [event(RunSucceeded, clock)])
    await recorder.close()
    publish(store, [event(RunSucceeded, clock)])
    await recorder.flush()
    assert (await recorded(store, clock)).succeeded == 1
    assert store.events.wanted == frozenset()


async def test_a_clock_that_was_set_back_overwrites_no_total(store, clock, recorder):
    """The same minute comes a second time: a new recorder counts it."""
    start = clock()
    for _ in range(3):
        publish(store, [event(RunSucceeded, clock)])
        await recorder.flush()
        clock.advance(2 * MINUTE)
    clock.advance((start - clock()).total_seconds())
    publish(store, [event(RunSucceeded, clock)])
    await recorder.flush()
    clock.advance(10 * MINUTE)
    assert (await recorded(store, clock)).succeeded == 4


async def test_a_clock_that_is_a_little_behind_counts_in_the_newest_minute(store, clock, recorder):
    clock.advance(MINUTE)
    publish(store, [event(RunSucceeded, clock)])
    clock.advance(-0.01)
    publish(store, [event(RunSucceeded, clock)])
    clock.advance(0.01)
    await recorder.flush()
    rows = await store.rollups.series(RollupFilter(clock() - timedelta(minutes=5)), step=MINUTE)
    assert [(each.at, each.stats.succeeded) for each in rows.rollups] == [
        (floor(clock(), MINUTE), 2)
    ]


# -- bounds ---------------------------------------------------------------------------------------


@dataclass
class Kept:
    """A store that keeps what is recorded."""

    fails: bool = False
    flushes: list[Any] = field(default_factory=list)
    events: Events = field(default_factory=Events)

    @property
    def rollups(self):
        return self

    async def record(self, recorder, rollups, errors=()):
        self.flushes.append((recorder, rollups, errors))
        if self.fails:
            raise TransientStorageError("away")


async def test_what_is_too_much_to_tell_apart_is_counted_in_one_row():
    store: Any = Kept()
    clock = Clock()
    recorder = StatsRecorder(store, WORKER)
    recorder.start()
    publish(store, [event(RunStarted, clock, topic=f"t{n}") for n in range(MOST_LANES + 50)])
    publish(store, [failure(clock, f"Error{n}") for n in range(MOST_ERRORS + 50)])
    await recorder.flush()
    [(_, rollups, errors)] = store.flushes
    assert len(rollups) <= MOST_LANES + 1
    assert sum(each.stats.started for each in rollups) == MOST_LANES + 50
    assert len(errors) == MOST_ERRORS + 1
    assert sum(each.count for each in errors) == MOST_ERRORS + 50
    assert {each.error for each in errors if not each.topic} == {""}


async def test_texts_of_errors_are_cut():
    store: Any = Kept()
    clock = Clock()
    recorder = StatsRecorder(store, WORKER)
    recorder.count([failure(clock, "E" * 10_000, "m" * 100_000)])
    await recorder.flush()
    [(_, _, [error])] = store.flushes
    assert len(error.error) == 200
    assert len(error.message) == LONGEST_MESSAGE


async def test_minutes_that_cannot_be_written_are_bounded():
    store: Any = Kept(fails=True)
    clock = Clock()
    recorder = StatsRecorder(store, WORKER)
    recorder.start()
    for _ in range(3 * MOST_MINUTES):
        publish(store, [event(RunSucceeded, clock)])
        with pytest.raises(TransientStorageError):
            await recorder.flush()
        clock.advance(MINUTE)
    assert len(store.flushes[-1][1]) == MOST_MINUTES


async def test_a_server_that_is_too_old_is_mentioned_once(caplog):
    class Old(Kept):
        async def record(self, recorder, rollups, errors=()):
            raise ServerTooOld("recording statistics failed: the pulsed server is too old for it")

    store: Any = Old()
    clock = Clock()
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 8:
            raise asyncio.CancelledError

    recorder = StatsRecorder(store, WORKER, sleep=pause)
    recorder.count([event(RunSucceeded, clock)])
    with caplog.at_level(logging.INFO, "pulsed.stats"), pytest.raises(asyncio.CancelledError):
        await recorder.run()
    assert len(caplog.records) == 1
    assert "too old" in caplog.records[0].getMessage()
    assert pauses[-1] == stats_module.LONGEST_PAUSE


# -- a real worker --------------------------------------------------------------------------------


def jobs_of(app):
    @app.job
    async def fine() -> None: ...

    @app.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no luck")

    @app.job
    async def hopeless() -> None:
        raise NoRetry("never")

    return fine, broken, hopeless


async def worked_off(app, jobs, **options):
    worker = app.worker(schedules=False, **options)
    working = asyncio.create_task(worker.run())
    for job in jobs:
        await until_ended(job)
    worker.stop()
    await working


async def until_ended(job):
    with contextlib.suppress(JobFailed):
        await job.aresult(timeout=20)


async def test_a_worker_records_what_it_has_done(url):
    async with Pulse(url) as app:
        fine, broken, hopeless = jobs_of(app)
        jobs = [await fine.aenqueue() for _ in range(3)]
        jobs += [await broken.aenqueue(), await hopeless.aenqueue()]
        await worked_off(app, jobs)
        totals = await app.stats.atotals()
        counts = {each.topic: each.stats for each in totals}
        assert counts["fine"].started == counts["fine"].succeeded == 3
        assert counts["fine"].wait.count == counts["fine"].run.count == 3
        assert counts["broken"].dead_lettered == counts["hopeless"].dead_lettered == 1
        errors = await app.stats.aerrors()
        assert {each.topic: each.error for each in errors}["broken"] == "ValueError"
        assert {each.topic for each in errors} == {"broken", "hopeless"}
        series = await app.stats.aseries(timedelta(minutes=10))
        assert series.stats.started == 5
        by_topic = await app.stats.aseries_by("topic")
        assert by_topic["fine"].stats.succeeded == 3


@pytest.mark.parametrize("where", ["app", "worker"])
async def test_statistics_can_be_switched_off(url, where):
    async with Pulse(url, stats=where != "app") as app:
        fine, *_ = jobs_of(app)
        await worked_off(
            app, [await fine.aenqueue()], **({"stats": False} if where == "worker" else {})
        )
        assert (await app.stats.atotals(WHOLE_DAY)).stats.started == 0


async def test_a_recorder_that_fails_hurts_no_run(url, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(StatsRecorder, "_minute_of", broken)
    async with Pulse(url) as app:
        fine, *_ = jobs_of(app)
        await worked_off(app, [await fine.aenqueue()])


async def test_the_pruner_folds_when_it_has_the_turn(store, clock):
    recorder = StatsRecorder(store, WORKER)
    recorder.count([event(RunSucceeded, clock)])
    await recorder.flush()
    clock.advance(FOLD_AFTER + MINUTE)

    async def no_rest(_):
        pass

    calls = []
    fold = store.rollups.fold

    async def counting(**options):
        calls.append(options["keep"])
        return await fold(**options)

    store.rollups.fold = counting
    await Pruner(store, Retention(stats=2 * WHOLE_DAY), rest=no_rest).tick()
    assert calls in ([2 * 86_400.0], [])  # a server folds by itself
    assert (await recorded(store, clock)).succeeded == 1

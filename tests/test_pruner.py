"""The loop that removes finished jobs: how much at a time, how long it rests, whose turn it is."""

import asyncio
import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pulsed import Pulse, Retention
from pulsed.engine.upkeep import pruner as pruner_module
from pulsed.engine.upkeep.pruner import BATCH, BUDGET, EVERY, REST, TURN, Pruner, prune_all
from pulsed.errors import TransientStorageError
from pulsed.model.job import Status
from pulsed.model.outcome import Failed, Report, Succeeded
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from tests.support.clock import Clock
from tests.support.jobs import EVERYTHING, a_job, claim
from tests.support.workers import until, working

POLICY = Retention(succeeded=60, cancelled=60, dead_lettered=3600)


async def ended(store: SqlStore, number: int, outcome: Any = None) -> None:
    """Let so many jobs end now."""
    await store.submit([a_job(max_attempts=1) for _ in range(number)])
    for _ in range(0, number, 1000):
        runs = await claim(store, limit=1000)
        await store.settle([Report.of(run, outcome or Succeeded()) for run in runs])


async def left(store: SqlStore) -> int:
    return sum((await store.counts(EVERYTHING)).values())


class Stopwatch:
    """Time that passes only where the test says so: so much for each batch, and while resting."""

    def __init__(self, store: SqlStore, *, batch: float) -> None:
        self.now = 0.0
        self.rests: list[float] = []
        self.batches: list[int] = []
        prune = store.prune

        async def timed(*args: Any, **options: Any) -> Any:
            pruned = await prune(*args, **options)
            self.now += batch
            self.batches.append(pruned.total)
            return pruned

        setattr(store, "prune", timed)  # noqa: B010 - an instance's own method

    def __call__(self) -> float:
        return self.now

    async def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


def a_pruner(store: SqlStore, *, batch: float = 0.01) -> tuple[Pruner, Stopwatch]:
    watch = Stopwatch(store, batch=batch)
    return Pruner(store, POLICY, rest=watch.rest, clock=watch), watch


async def test_a_tick_removes_what_the_policy_says_and_nothing_else(store, clock: Clock):
    await ended(store, 3)
    await ended(store, 2, Failed("x"))
    clock.advance(61)
    await ended(store, 4)
    await store.submit([a_job() for _ in range(5)])
    pruner, _ = a_pruner(store)
    assert await pruner.tick() == {
        Status.SUCCEEDED: 3,
        Status.CANCELLED: 0,
        Status.DEAD_LETTERED: 0,
    }
    assert await left(store) == 2 + 4 + 5
    clock.advance(3600)
    removed = await pruner.tick()
    assert (removed[Status.SUCCEEDED], removed[Status.DEAD_LETTERED]) == (4, 2)
    assert await left(store) == 5


async def test_it_works_in_batches_and_rests_after_each(store, clock: Clock):
    await ended(store, 2 * BATCH + 1)
    clock.advance(61)
    pruner, watch = a_pruner(store, batch=0.01)
    assert (await pruner.tick())[Status.SUCCEEDED] == 2 * BATCH + 1
    assert watch.batches == [BATCH, BATCH, 1]
    assert watch.rests == pytest.approx([REST * 0.01] * 2)  # a fifth of the time, no more


async def test_a_busy_database_is_given_longer_rests(store, clock: Clock):
    await ended(store, BATCH + 1)
    clock.advance(61)
    pruner, watch = a_pruner(store, batch=1.5)
    await pruner.tick()
    assert watch.rests == pytest.approx([REST * 1.5])


async def test_a_tick_ends_with_its_budget_and_the_next_one_goes_on(store, clock: Clock):
    await ended(store, 3 * BATCH)
    clock.advance(61)
    pruner, watch = a_pruner(store, batch=BUDGET / 5)
    assert (await pruner.tick())[Status.SUCCEEDED] == 2 * BATCH
    assert watch.now < TURN  # it is over before the turn is
    clock.advance(TURN)
    assert (await pruner.tick())[Status.SUCCEEDED] == BATCH
    assert await left(store) == 0


async def test_of_many_workers_one_prunes(backend, clock: Clock):
    stores = [backend.open() for _ in range(4)]
    await ended(stores[0], 5)
    clock.advance(61)
    ticks = await asyncio.gather(*(Pruner(each, POLICY).tick() for each in stores))
    assert sorted(sum(tick.values()) for tick in ticks) == [0, 0, 0, 5]
    await ended(stores[0], 5)
    clock.advance(61)
    ticks = [await Pruner(each, POLICY).tick() for each in stores]
    assert [sum(tick.values()) for tick in ticks] == [5, 0, 0, 0]
    for each in stores:
        await each.aclose()


async def test_to_keep_everything_removes_no_job(store, clock: Clock):
    await ended(store, 2)
    clock.advance(1e9)
    assert await Pruner(store, Retention.forever()).tick() == {}
    assert await left(store) == 2


# -- the loop -------------------------------------------------------------------------------------


async def slept(store: SqlStore, number: int) -> list[float]:
    """Run the loop until it has paused so many times; returns for how long."""
    seconds: list[float] = []

    async def rest(wanted: float) -> None:
        seconds.append(wanted)
        if len(seconds) == number:
            raise asyncio.CancelledError

    with contextlib.suppress(asyncio.CancelledError):
        await Pruner(store, POLICY, rest=rest).run()
    return seconds


async def test_workers_that_start_together_spread_out(store):
    first = [await slept(store, 2) for _ in range(8)]
    assert len({seconds for seconds, _ in first}) == 8
    assert all(0 <= seconds <= EVERY for seconds, _ in first)
    assert all(0.9 * EVERY <= seconds <= 1.1 * EVERY for _, seconds in first)


async def test_trouble_does_not_end_the_loop(store, caplog):
    async def away(**_: Any) -> bool:
        raise TransientStorageError("the database is away")

    store.take_turn = away
    with caplog.at_level(logging.WARNING, "pulsed.retention"):
        assert len(await slept(store, 3)) == 3
    said = [record.message.rpartition(" in ")[0] for record in caplog.records]
    assert said == ["pruning failed (the database is away); again"] * 2


async def test_a_worker_prunes(store, clock: Clock, monkeypatch):
    async def quick() -> None:
        pass

    await ended(store, 3)
    clock.advance(61)
    monkeypatch.setattr(pruner_module, "EVERY", 0.01)
    async with working(store, quick, retention=POLICY):

        async def gone() -> bool:
            return not await left(store)

        await until(gone)


# -- on request -----------------------------------------------------------------------------------


async def test_all_at_once_for_somebody_who_asked(store, clock: Clock, monkeypatch):
    await ended(store, 2 * BATCH + 1)
    clock.advance(61)
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(pruner_module, "pause", rest)
    assert await prune_all(store, {Status.SUCCEEDED: 60.0, Status.CANCELLED: 60.0}) == {
        Status.SUCCEEDED: 2 * BATCH + 1,
        Status.CANCELLED: 0,
    }
    assert len(rests) == 2
    assert all(seconds > 0 for seconds in rests)


async def test_what_ends_meanwhile_is_not_waited_for(store, clock: Clock, monkeypatch):
    """Otherwise a prune of everything would go on for as long as workers do."""
    await ended(store, BATCH)
    clock.advance(61)

    def seconds() -> float:
        return clock.now.timestamp()

    watch = SimpleNamespace(monotonic=seconds)
    monkeypatch.setattr(pruner_module, "time", watch)

    async def more(seconds: float) -> None:
        await ended(store, BATCH)
        clock.advance(61)

    monkeypatch.setattr(pruner_module, "pause", more)
    assert await prune_all(store, {Status.SUCCEEDED: 0.0}) == {Status.SUCCEEDED: BATCH}


def test_through_the_app(url, live):
    with Pulse(url, retention=Retention(succeeded=None, cancelled=None)) as app:
        run_blocking(ended(live, 2))
        run_blocking(ended(live, 1, Failed("x")))
        assert app.jobs.prune() == {}
        assert app.jobs.prune(older_than=3600) == {Status.SUCCEEDED: 0, Status.CANCELLED: 0}
        assert app.jobs.prune(older_than=0) == {Status.SUCCEEDED: 2, Status.CANCELLED: 0}
        assert app.jobs.prune(older_than=0, status="DEAD_LETTERED") == {Status.DEAD_LETTERED: 1}
        assert run_blocking(left(live)) == 0

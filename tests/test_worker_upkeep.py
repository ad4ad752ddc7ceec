"""Recovering the jobs of the silent."""

import asyncio
from typing import Any

import pytest

from pulsed.engine.context import Context
from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import StorageFull
from pulsed.model.job import Status
from pulsed.model.outcome import Beat
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend
from tests.support.clock import Clock
from tests.support.jobs import BOB, NO_WAIT, a_policy, claim_one, never_away
from tests.support.workers import (
    a_worker,
    beat,
    finished,
    first_tick,
    in_status,
    result,
    submit_with,
    working,
)

LEASE = 30.0


async def test_the_jobs_of_a_silent_worker_are_run_again(store: SqlStore, clock: Clock):
    async def quick(ctx: Context) -> int:
        return ctx.attempt

    job_id = await submit_with(store, "quick", {"backoff": NO_WAIT})
    await claim_one(store, BOB, topics=[a_policy("quick")])
    clock.advance(LEASE + 1)
    await never_away(store)
    async with working(store, quick, tick=0.05):
        job = await finished(store, job_id)
    assert (result(job), job.attempts) == (2, 2)
    (failure,) = await store.failures(job_id)
    assert (failure.error, failure.worker_id) == ("worker lease expired", BOB)


async def test_after_an_outage_of_all_watchdogs_living_workers_beat_first(
    store: SqlStore, backend: Backend, clock: Clock
):
    release = asyncio.Event()

    async def slow(ctx: Context) -> int:
        await release.wait()
        return ctx.attempt

    job_id = await submit_with(store, "slow", {"backoff": NO_WAIT})
    async with working(store, slow) as it:
        await in_status(store, job_id, Status.RUNNING)
        await first_tick(backend)
        upkeep = Watchdog(store, tick=10, describe=it.worker.describe)
        await upkeep.tick()
        clock.advance(600)  # the database was down for all of them
        assert await upkeep.tick() == []
        clock.advance(10)
        assert set((await beat(it)).values()) == {Beat.OK}
        clock.advance(10)
        assert await upkeep.tick() == []
        release.set()
        job = await finished(store, job_id)
    assert (result(job), job.attempts) == (1, 1)


async def test_the_silent_are_reaped_when_the_grace_is_over(store: SqlStore, clock: Clock):
    async def quick() -> None:
        pass

    job_id = await submit_with(store, "quick", {"backoff": NO_WAIT})
    await claim_one(store, BOB, topics=[a_policy("quick")])
    upkeep = Watchdog(store, tick=10, describe=a_worker(store, quick).describe)
    await upkeep.tick()
    clock.advance(600)
    assert await upkeep.tick() == []
    clock.advance(8)
    assert await upkeep.tick() == []
    clock.advance(8)
    assert [reaped.job_id for reaped in await upkeep.tick()] == [job_id]


async def test_recovery_goes_on_when_presence_cannot_be_shown(
    store: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    async def full(info: Any) -> None:
        raise StorageFull("no room for one more worker")

    async def quick() -> None:
        pass

    monkeypatch.setattr(store, "announce", full)
    job_id = await submit_with(store, "quick", {"backoff": NO_WAIT})
    await claim_one(store, BOB, topics=[a_policy("quick")])
    clock.advance(LEASE + 1)
    await never_away(store)
    async with working(store, quick, tick=0.05):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 2)

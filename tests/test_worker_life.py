"""What happens around a worker's life: lifespan hooks, and its presence for others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pulsed.store.sql_store import SqlStore
from tests.support.clock import Clock
from tests.support.workers import (
    a_worker,
    all_finished,
    row,
    submit,
    submit_many,
    until,
    working,
)


async def test_lifespan_hooks_enclose_the_work(store: SqlStore):
    told: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        told.append("start")
        yield
        told.append("stop")

    async def quick(n: int) -> None:
        told.append(f"job {n}")

    ids = await submit_many(store, "quick", 2)
    async with working(store, quick, lifespan=lifespan, concurrency=1):
        await all_finished(store, ids)
    assert told == ["start", "job 0", "job 1", "stop"]


async def test_a_lifespan_hook_that_fails_ends_the_worker_before_it_claims(store: SqlStore):
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise ConnectionError("no cache")
        yield

    async def quick() -> None:
        pass

    job_id = await submit(store, "quick")
    with pytest.raises(ConnectionError, match="no cache"):
        await a_worker(store, quick, lifespan=lifespan).run()
    assert (await row(store, job_id)).attempts == 0


async def test_a_worker_can_be_seen_while_it_lives(store: SqlStore, clock: Clock):
    async def quick() -> None:
        pass

    async with working(store, quick, queues=["a", "b"], concurrency=7, tick=0.02) as it:
        await until(store.workers)
        (presence,) = await store.workers()
        assert (presence.id, presence.slots) == (it.worker.id, 7)
        assert (presence.queues, presence.topics) == (("a", "b"), ("quick",))
        assert (presence.state, presence.running, presence.stuck) == ("running", 0, 0)
    assert await store.workers() == []

"""Steps beside a handler that ends before they do."""

import asyncio

import pytest

from pulsed.engine.context import Context
from pulsed.errors import WorkflowError
from pulsed.model.backoff import Backoff
from pulsed.model.job import Status
from pulsed.store.sql_store.store import SqlStore
from tests.support.workers import (
    beat,
    finished,
    handler,
    in_status,
    outcome,
    result,
    row,
    submit,
    until,
    working,
)
from tests.support.workflows import names_of

LOOKS = 20
"""How often a test checks that something does not happen."""


class Slow:
    """A step that runs until it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0
        self.may_end = asyncio.Event()

    async def slow(self) -> int:
        self.calls += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.calls


async def test_a_handler_that_fails_waits_for_the_steps_beside_it(store: SqlStore):
    it = Slow()
    failed = asyncio.Event()

    async def fails() -> None:
        await until(lambda: it.calls)
        failed.set()
        raise ConnectionError

    async def work(ctx: Context) -> int:
        if ctx.attempt > 1:
            return await ctx.step(it.slow)
        await asyncio.gather(ctx.step(it.slow), ctx.step(fails))
        return 0

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=Backoff.fixed(0))):
        await failed.wait()
        for _ in range(LOOKS):
            job = await row(store, job_id)
            assert (job.status, job.attempts) == (Status.RUNNING, 1)
        it.may_end.set()
        assert result(await finished(store, job_id)) == 1
    assert it.calls == 1
    assert await names_of(store, job_id) == ["slow"]


async def test_so_does_one_that_is_about_to_wait(store: SqlStore):
    it = Slow()
    leaving = asyncio.Event()

    async def work(ctx: Context) -> None:
        beside = asyncio.ensure_future(ctx.step(it.slow))
        await until(lambda: it.calls)
        try:
            await ctx.sleep(3600)
            await beside
        finally:
            leaving.set()

    job_id = await submit(store, "work")
    async with working(store, work):
        await leaving.wait()
        for _ in range(LOOKS):
            assert (await row(store, job_id)).status is Status.RUNNING
        it.may_end.set()
        await in_status(store, job_id, Status.WAITING)
    assert await names_of(store, job_id) == ["slow", "sleep"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_they_are_cancelled_with_the_run(store: SqlStore, when: str):
    it = Slow()
    ended = asyncio.Event()

    async def work(ctx: Context) -> None:
        beside = asyncio.ensure_future(ctx.step(it.slow))
        await until(lambda: it.calls)
        try:
            if when == "before":
                await asyncio.Event().wait()
            raise ConnectionError
        finally:
            ended.set()
            assert not beside.done()

    job_id = await submit(store, "work")
    async with working(store, work) as worker:
        await until(lambda: it.calls)
        if when == "after":
            await ended.wait()
        await store.cancel([job_id])
        await beat(worker)
        assert (await finished(store, job_id)).status is Status.CANCELLED
    assert it.cancelled == 1
    assert await names_of(store, job_id) == []


async def test_none_begins_when_the_handler_has_ended(store: SqlStore):
    it = Slow()
    beside: list[asyncio.Future[int]] = []

    async def work(ctx: Context) -> int:
        beside.append(asyncio.ensure_future(ctx.step(it.slow)))
        return 5

    assert result(await outcome(store, work)) == 5
    with pytest.raises(WorkflowError, match="Await every step"):
        await beside[0]
    assert it.calls == 0

"""A workflow that failed for good and is replayed: what is tried again, and what stays."""

import asyncio

import pytest

from pulsed.engine.context import Context
from pulsed.engine.workflow.shared import Workflows
from pulsed.errors import FanOutFailed, NoRetry, SignalTimeout, StepFailed
from pulsed.model.job import Status
from pulsed.store.sql_store.store import SqlStore
from tests.support.clock import Clock
from tests.support.workers import finished, handler, in_status, result, submit, working
from tests.support.workflows import call_of, names_of


async def test_a_failure_that_the_code_has_dealt_with_stays(store: SqlStore, clock: Clock):
    """Were it tried again and succeeded, the step after it would be another than the stored one."""
    calls: list[str] = []

    async def charge() -> None:
        calls.append("charge")
        if len(calls) == 1:
            raise NoRetry("no cover")

    async def apologise() -> None:
        calls.append("apologise")

    async def ship() -> None:
        calls.append("ship")

    async def work(ctx: Context) -> None:
        try:
            await ctx.step(charge, retry=2)
        except StepFailed:
            clock.advance(1)
            await ctx.step(apologise)
            raise
        await ctx.step(ship)

    job_id = await submit(store, "work")
    async with working(store, work):
        assert "no cover" in ((await finished(store, job_id)).last_error or "")
        await store.replay([job_id])
        job = await finished(store, job_id)
    assert job.status is Status.DEAD_LETTERED
    assert "no cover" in (job.last_error or "")
    assert calls == ["charge", "apologise"]


async def test_it_goes_on_behind_a_time_out_that_the_code_has_dealt_with(
    store: SqlStore, clock: Clock
):
    is_broken = True

    async def escalate() -> None:
        pass

    async def close() -> str:
        if is_broken:
            raise NoRetry("broken")
        return "closed"

    async def work(ctx: Context) -> str:
        try:
            await ctx.wait_signal("approved", timeout=60)
        except SignalTimeout:
            clock.advance(1)
            await ctx.step(escalate)
        return await ctx.step(close)

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        clock.advance(61)
        assert (await finished(store, job_id)).status is Status.DEAD_LETTERED
        is_broken = False
        await store.replay([job_id])
        assert result(await finished(store, job_id)) == "closed"
    assert await names_of(store, job_id) == ["approved", "escalate", "close"]


async def test_so_it_does_behind_a_fan_out(store: SqlStore, clock: Clock):
    is_broken = True

    async def child() -> None:
        raise NoRetry("no stock")

    async def refund() -> str:
        if is_broken:
            raise NoRetry("broken")
        return "refunded"

    async def work(ctx: Context) -> str:
        try:
            await ctx.fan_out([call_of(of_child)])
        except FanOutFailed:
            clock.advance(1)
            return await ctx.step(refund)
        return "shipped"

    of_child = handler(child)
    job_id = await submit(store, "work")
    async with working(store, work, of_child):
        assert (await finished(store, job_id)).status is Status.DEAD_LETTERED
        is_broken = False
        await store.replay([job_id])
        assert result(await finished(store, job_id)) == "refunded"


async def test_a_failure_beside_a_step_that_succeeded_is_tried_again(
    store: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """Its number is higher, but it did not come after the failure."""
    calls: list[str] = []

    async def pause(_: float) -> None:
        clock.advance(1)

    monkeypatch.setattr(Workflows, "pause", staticmethod(pause))

    async def fails() -> str:
        calls.append("fails")
        if len(calls) < 4:
            raise ConnectionError
        return "works"

    async def fine() -> None:
        calls.append("fine")

    async def work(ctx: Context) -> str:
        first, _ = await asyncio.gather(ctx.step(fails, retry=2), ctx.step(fine))
        return str(first)

    job_id = await submit(store, "work")
    async with working(store, work):
        assert (await finished(store, job_id)).status is Status.DEAD_LETTERED
        calls.append("now it")
        await store.replay([job_id])
        assert result(await finished(store, job_id)) == "works"
    assert calls.count("fine") == 1

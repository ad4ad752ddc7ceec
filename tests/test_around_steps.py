"""``around_step``: context managers around the steps of workflows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import pytest

from pulsed import Context, Pulse, Status
from pulsed.engine.workflow.steps import StepCall
from tests.support.arounds import ended

seen: list[str] = []
colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


async def test_around_step_surrounds_calls_but_not_stored_results(app: Pulse):
    @app.job
    async def flow(ctx: Context) -> list[str]:
        found = [await ctx.step(on_the_loop), await ctx.step(in_a_thread), await ctx.step(late)]
        await ctx.sleep(0.01)
        return found

    async def on_the_loop() -> str:
        return colour.get()

    def in_a_thread() -> str:
        return colour.get()

    async def late() -> str:
        return colour.get()

    @app.around_step
    def paint(step: StepCall) -> Iterator[None]:
        token = colour.set(step.name)
        yield
        colour.reset(token)
        seen.append(f"{step.topic} {step.name} {step.tries}")

    @app.around_step
    async def wait() -> AsyncIterator[None]:
        await asyncio.sleep(0)
        yield

    job = await ended(app, await flow.aenqueue())
    assert await job.aresult() == ["on_the_loop", "in_a_thread", "late"]
    assert seen == ["flow on_the_loop 1", "flow in_a_thread 1", "flow late 1"]


async def test_around_step_sees_every_try_and_its_error(app: Pulse):
    @app.job
    async def flow(ctx: Context) -> str:
        return await ctx.step(flaky, retry=3)

    async def flaky() -> str:
        if len(seen) < 2:
            raise ConnectionError
        return "done"

    @app.around_step
    def note(step: StepCall) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            seen.append(f"try {step.tries} failed")
            raise

    assert await (await ended(app, await flow.aenqueue())).aresult() == "done"
    assert seen == ["try 1 failed", "try 2 failed"]


async def test_around_step_cannot_make_a_failed_step_succeed(app: Pulse):
    @app.job(max_attempts=1)
    async def flow(ctx: Context) -> None:
        await ctx.step(fails)

    async def fails() -> None:
        raise ConnectionError

    @app.around_step
    def forgive() -> Iterator[None]:
        with contextlib.suppress(ConnectionError):
            yield

    job = await ended(app, await flow.aenqueue())
    assert job.status is Status.DEAD_LETTERED
    assert "around_step caught its error" in (job.last_error or "")

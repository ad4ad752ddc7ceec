"""A handler that takes a context is called directly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pulsed import Context, Pulse, SignalTimeout, StepFailed, testing
from pulsed.errors import CannotSuspend, ConfigError


def test_a_plain_handler_gets_what_the_test_says(app: Pulse):
    @app.job
    def report(ctx: Context, name: str) -> str:
        ctx.progress({"done": 1})
        ctx.emit("a line")
        return f"{name} {ctx.attempt}/{ctx.max_attempts} {ctx.headers['trace']} {ctx.cancelled}"

    ctx = testing.context(attempt=2, headers={"trace": "x"}, cancelled=True)
    assert report(ctx, "ada") == "ada 2/3 x True"
    assert ctx.reported == [{"done": 1}]
    assert ctx.emitted == ["a line"]


async def test_a_workflow_runs_from_its_beginning_to_its_end(app: Pulse):
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError
        return len(tries)

    @app.job
    async def trial(ctx: Context) -> list[Any]:
        version = await ctx.version("new mail", 1, 2)
        stepped = await ctx.step(flaky, retry=3)
        await ctx.sleep(timedelta(days=5))
        await ctx.sleep_until(datetime(2040, 1, 1, tzinfo=UTC))
        first = await ctx.wait_signal("paid", int)
        rest = [each async for each in ctx.signals("paid", timeout=60)]
        return [version, stepped, first, rest]

    ctx = testing.context(signals={"paid": [7, "8"]})
    assert await trial(ctx) == [2, 2, 7, ["8"]]
    assert ctx.slept[1:] == [5 * 86_400.0, datetime(2040, 1, 1, tzinfo=UTC)]


async def test_signals_that_are_not_given(app: Pulse):
    @app.job
    async def wait(ctx: Context, most: float | None) -> None:
        await ctx.wait_signal("paid", timeout=most)

    with pytest.raises(SignalTimeout):
        await wait(testing.context(), 60)
    with pytest.raises(ConfigError, match=r"context\(signals=\{'paid'"):
        await wait(testing.context(), None)


async def test_the_result_of_a_step_is_what_a_replay_would_get(app: Pulse):
    async def pair() -> Any:
        return (1, 2)

    async def unstorable() -> Any:
        return object()

    @app.job
    async def work(ctx: Context, fn: str) -> Any:
        return await ctx.step({"pair": pair, "unstorable": unstorable}[fn])

    assert await work(testing.context(), "pair") == [1, 2]
    with pytest.raises(StepFailed, match="cannot be stored"):
        await work(testing.context(), "unstorable")


async def test_a_step_in_a_transaction_gets_the_given_connection(app: Pulse):
    def write(conn: list[int], n: int) -> int:
        conn.append(n)
        return n

    @app.job
    async def work(ctx: Context) -> int:
        return await ctx.step(write, 7, tx=True)

    connection: list[int] = []
    assert await work(testing.context(connection=connection)) == 7
    assert connection == [7]
    with pytest.raises(ConfigError, match=r"context\(connection="):
        await work(testing.context())


async def test_what_needs_other_jobs_needs_a_sandbox(app: Pulse):
    @app.job
    async def child() -> None: ...

    @app.job
    async def parent(ctx: Context) -> None:
        await ctx.fan_out([child.bind()])

    @app.job
    async def waits(ctx: Context) -> None:
        await ctx.wait_for(ctx.job_id)

    for handler in (parent, waits):
        with pytest.raises(ConfigError, match="sandbox"):
            await handler(testing.context())


def test_a_workflow_needs_an_event_loop_here_too(app: Pulse):
    @app.job
    def plain(ctx: Context, method: str) -> None:
        getattr(ctx, method)("x")

    for method in ("sleep", "sleep_until", "wait_signal"):
        with pytest.raises(CannotSuspend, match=method):
            plain(testing.context(signals={"x": [1]}), method)

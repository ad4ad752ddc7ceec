"""Steps that fail, are tried again, take too long, or cannot be stored."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from pulsed.engine.context import Context
from pulsed.engine.workflow.shared import Workflows
from pulsed.errors import NoRetry, RetryAfter, StepFailed
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Status
from pulsed.model.step import StepState
from pulsed.store.sql_store.store import SqlStore
from tests.support.jobs import NO_WAIT
from tests.support.workers import (
    finished,
    handler,
    outcome,
    result,
    submit,
    working,
)
from tests.support.workflows import parked, steps_of

# -- failures -------------------------------------------------------------------------------------


async def test_without_retry_an_error_passes_through_and_nothing_is_stored(store: SqlStore):
    errors: list[Exception] = []
    boom = ConnectionError("boom")

    async def fail() -> None:
        raise boom

    async def work(ctx: Context) -> None:
        try:
            await ctx.step(fail)
        except ConnectionError as error:
            errors.append(error)

    job = await outcome(store, work)
    assert errors == [boom]
    assert await steps_of(store, job.id) == []


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What steps paused for, without pausing."""
    taken: list[float] = []

    async def pause(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr(Workflows, "pause", staticmethod(pause))
    return taken


async def test_a_step_with_retries_is_tried_again_in_the_same_run(
    store: SqlStore, pauses: list[float]
):
    calls: list[int] = []

    async def flaky() -> str:
        calls.append(1)
        if len(calls) == 2:
            raise RetryAfter(77)
        if len(calls) < 4:
            raise ConnectionError("not yet")
        return "done"

    async def work(ctx: Context) -> list[Any]:
        policy = RetryPolicy(max_attempts=4, initial=1, multiplier=2, max=60, jitter=0)
        return [await ctx.step(flaky, retry=policy), ctx.attempt]

    job = await outcome(store, work)
    assert result(job) == ["done", 1]
    assert pauses == [1, 77, 4]
    assert (await steps_of(store, job.id))[0].tries == 4


async def test_a_step_that_has_used_up_its_tries_fails_the_same_in_every_run(
    store: SqlStore, pauses: list[float]
):
    calls: list[int] = []
    errors: list[StepFailed] = []

    def hopeless() -> None:
        calls.append(1)
        raise ConnectionError("nobody there")

    async def work(ctx: Context) -> None:
        try:
            await ctx.step(hopeless, retry=3)
        except StepFailed as error:
            errors.append(error)
        if len(errors) < 2:
            raise ConnectionError

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert (len(calls), len(pauses)) == (3, 2)
    first, second = errors
    assert str(first) == str(second)
    assert "'hopeless'" in str(first)
    assert "3 tries: ConnectionError: nobody there" in str(first)
    assert isinstance(first.__cause__, ConnectionError)
    (step,) = await steps_of(store, job_id)
    assert (step.state, step.tries) == (StepState.FAILED, 3)
    assert step.error == "ConnectionError: nobody there"


async def test_no_retry_ends_the_tries(store: SqlStore, pauses: list[float]):
    async def refused() -> None:
        raise NoRetry("no such address")

    async def work(ctx: Context) -> None:
        await ctx.step(refused, retry=5)

    assert "after 1 try: NoRetry: no such address" in await parked(store, handler(work))
    assert pauses == []


async def test_an_uncaught_step_failure_parks_the_job_at_once(store: SqlStore, pauses: list[float]):
    async def hopeless() -> None:
        raise ConnectionError("nobody there")

    async def work(ctx: Context) -> None:
        await ctx.step(hopeless, retry=2)

    said = await parked(store, handler(work, max_attempts=5))
    assert said.startswith("StepFailed: Step 'hopeless' of job ")


async def test_a_value_that_cannot_be_stored_parks_the_job(store: SqlStore):
    calls: list[int] = []

    async def make() -> object:
        calls.append(1)
        return object()

    async def work(ctx: Context) -> None:
        await ctx.step(make, retry=5)

    said = await parked(store, handler(work, max_attempts=5))
    assert "what it returned cannot be stored" in said
    assert calls == [1]


# -- time-outs ------------------------------------------------------------------------------------


async def test_a_try_that_takes_too_long_is_a_failed_try(store: SqlStore, pauses: list[float]):
    ends: list[str] = []

    async def slow() -> str:
        if not ends:
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("cancelled")
        return "in time"

    async def work(ctx: Context) -> str:
        return await ctx.step(slow, retry=2, timeout=0.01)

    assert result(await outcome(store, work)) == "in time"
    assert (ends, len(pauses)) == (["cancelled"], 1)


async def test_a_time_out_without_retries_names_the_step(store: SqlStore):
    async def slow() -> None:
        await asyncio.Event().wait()

    async def work(ctx: Context) -> None:
        await ctx.step(slow, timeout=timedelta(milliseconds=5))

    job = await outcome(store, work)
    assert job.last_error == "TimeoutError: step 'slow' took longer than 0.005 s"


async def test_a_plain_function_that_takes_too_long_is_left_behind(store: SqlStore):
    may_end = threading.Event()

    def slow() -> None:
        may_end.wait(30)
        raise ConnectionError("too late for anybody")

    async def work(ctx: Context) -> None:
        await ctx.step(slow, timeout=0.01)

    job = await outcome(store, work)
    may_end.set()
    assert "took longer" in (job.last_error or "")


async def test_a_value_that_comes_as_the_alarm_fires_is_kept(store: SqlStore):
    async def late() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "in the last moment"
        raise AssertionError

    async def work(ctx: Context) -> str:
        return await ctx.step(late, timeout=0.01)

    job = await outcome(store, work)
    assert result(job) == "in the last moment"
    assert [step.state for step in await steps_of(store, job.id)] == [StepState.DONE]

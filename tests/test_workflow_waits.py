"""Waits: a workflow gives its slot and its attempt back, and goes on when its time has come."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.context import Context
from pulsed.errors import (
    InvalidOption,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NoRetry,
    SignalTimeout,
    WaitTimeout,
)
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from pulsed.model.step import StepKind, StepState
from pulsed.model.workflow import Signal
from pulsed.store.sql_store.store import SqlStore
from tests.support.clock import Clock
from tests.support.jobs import NO_WAIT
from tests.support.workers import (
    finished,
    handler,
    in_status,
    outcome,
    result,
    row,
    submit,
    submit_with,
    until,
    working,
)
from tests.support.workflows import names_of, nothing, parked, steps_of


async def signal(store: SqlStore, job_id: UUID, name: str, payload: str) -> None:
    message = Signal(id=new_job_id(), job_id=job_id, name=name, payload=payload)
    assert (await store.workflows.signal(message)).stored


# -- sleeping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["seconds", "timedelta", "until"])
async def test_a_sleep_ends_at_its_time_and_not_before(store: SqlStore, clock: Clock, how: str):
    calls: list[int] = []
    wake_at = clock.after(3600)

    def note() -> None:
        calls.append(1)

    async def naps(ctx: Context) -> list[int]:
        await ctx.step(note)
        if how == "until":
            await ctx.sleep_until(wake_at)
        else:
            await ctx.sleep(3600 if how == "seconds" else timedelta(hours=1))
        return [ctx.attempt]

    job_id = await submit_with(store, "naps", {"max_attempts": 1})
    async with working(store, naps, concurrency=1):
        job = await in_status(store, job_id, Status.WAITING)
        assert (job.attempts, job.next_run_at) == (0, clock.after(3600))
        assert job.wait_kind == "SLEEP"
        clock.advance(3599)
        other = await submit(store, "naps")  # the only slot is free
        await in_status(store, other, Status.WAITING, Status.SUCCEEDED)
        assert (await row(store, job_id)).status is Status.WAITING
        clock.advance(1)
        assert result(await finished(store, job_id)) == [1]
    assert calls == [1, 1]  # one for each job
    assert await names_of(store, job_id) == ["note", "sleep"]


async def test_a_sleep_ends_at_once_when_the_job_is_run_now(store: SqlStore, clock: Clock):
    async def naps(ctx: Context) -> str:
        await ctx.sleep(3600)
        return "awake"

    job_id = await submit(store, "naps")
    async with working(store, naps, concurrency=1):
        await in_status(store, job_id, Status.WAITING)
        clock.advance(1)
        assert await store.expedite([job_id]) == {job_id: (True, Status.WAITING)}
        assert result(await finished(store, job_id)) == "awake"


async def test_several_sleeps_follow_one_another(store: SqlStore, clock: Clock):
    async def naps(ctx: Context) -> None:
        await ctx.sleep(10)
        await ctx.sleep(10, name="second")
        await ctx.sleep(10)

    job_id = await submit(store, "naps")
    async with working(store, naps):
        for turn in range(1, 4):
            await until(
                lambda n=turn: _is_waiting_with(store, job_id, n)  # type: ignore[misc]
            )
            clock.advance(10)
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert await names_of(store, job_id) == ["sleep", "second", "sleep (use 2)"]


async def _is_waiting_with(store: SqlStore, job_id: UUID, steps: int) -> bool:
    waits = (await row(store, job_id)).status is Status.WAITING
    return waits and len(await steps_of(store, job_id)) == steps


async def test_the_end_of_a_sleep_is_that_of_the_first_run(store: SqlStore, clock: Clock):
    """Neither a later run nor changed code moves it."""
    lengths = iter([100, 50, 1_000])

    async def naps(ctx: Context) -> None:
        await ctx.sleep(next(lengths))

    job_id = await submit(store, "naps")
    async with working(store, naps):
        job = await in_status(store, job_id, Status.WAITING)
        ends = job.next_run_at
        clock.advance(20)
        await store.cancel([job_id])
        await store.replay([job_id])
        await until(lambda: _is_waiting_with(store, job_id, 1))
        assert (await row(store, job_id)).next_run_at == ends
        clock.advance(80)
        assert (await finished(store, job_id)).status is Status.SUCCEEDED


@pytest.mark.parametrize("seconds", [0, -5, timedelta(seconds=-1)])
async def test_a_sleep_that_is_over_does_not_suspend_but_takes_its_place(
    store: SqlStore, seconds: Any
):
    async def naps(ctx: Context) -> None:
        await ctx.sleep(seconds)
        await ctx.step(nothing)

    job = await outcome(store, naps)
    assert [(step.name, step.seq) for step in await steps_of(store, job.id)] == [("nothing", 2)]


async def test_sleeping_until_what_is_past_does_not_suspend(store: SqlStore, clock: Clock):
    past = clock.after(-1)

    async def naps(ctx: Context) -> int:
        await ctx.sleep_until(past)
        return 1

    job = await outcome(store, naps)
    assert result(job) == 1
    assert await steps_of(store, job.id) == []


@pytest.mark.parametrize("seconds", [float("nan"), "5", 1e12, True])
async def test_a_sleep_that_is_no_time_is_refused(store: SqlStore, seconds: Any):
    async def naps(ctx: Context) -> None:
        with pytest.raises(InvalidOption):
            _ = ctx.sleep(seconds)
        with pytest.raises(InvalidOption, match="no time zone"):
            _ = ctx.sleep_until(datetime(2031, 1, 1))  # noqa: DTZ001

    assert (await outcome(store, naps)).last_error is None


# -- leaving the handler --------------------------------------------------------------------------


async def test_waiting_in_a_task_beside_the_handler_is_refused(store: SqlStore):
    async def work(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(5), ctx.step(nothing))

    said = await parked(store, handler(work))
    assert said.startswith("CannotSuspend: ")
    assert "asyncio.gather" in said


async def test_waiting_in_the_block_of_a_task_group_suspends(store: SqlStore, clock: Clock):
    async def work(ctx: Context) -> int:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ctx.step(lambda: 3, name="three"))
            await task
            await ctx.sleep(5)
        return task.result()

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        clock.advance(5)
        assert result(await finished(store, job_id)) == 3


async def test_except_exception_does_not_catch_a_suspension(store: SqlStore, clock: Clock):
    caught: list[Exception] = []

    async def work(ctx: Context) -> int:
        try:
            await ctx.sleep(5)
        except Exception as error:  # noqa: BLE001
            caught.append(error)
        return 1

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        clock.advance(5)
        assert result(await finished(store, job_id)) == 1
    assert caught == []


@pytest.mark.parametrize("then", ["returns", "raises"])
async def test_a_handler_that_swallows_a_suspension_is_parked(store: SqlStore, then: str):
    async def work(ctx: Context) -> int:
        try:
            await ctx.sleep(5)
        except BaseException:  # noqa: BLE001
            if then == "raises":
                raise ConnectionError("another") from None
        return 1

    said = await parked(store, handler(work))
    assert "caught the interruption" in said
    assert ("raised ConnectionError: another" in said) == (then == "raises")


async def test_cleaning_up_in_finally_waits_for_the_real_end(store: SqlStore, clock: Clock):
    """The handler passes ``finally`` at each suspension; a step there is not run by that."""
    calls: list[str] = []

    async def clean() -> None:
        calls.append("clean")

    async def work(ctx: Context) -> None:
        try:
            await ctx.sleep(5)
        finally:
            await ctx.step(clean)

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        assert calls == []
        clock.advance(5)
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert calls == ["clean"]


async def test_a_waiting_workflow_can_be_cancelled(store: SqlStore):
    async def work(ctx: Context) -> None:
        await ctx.wait_signal("never")

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        await store.cancel([job_id])
        assert (await finished(store, job_id)).status is Status.CANCELLED


# -- signals --------------------------------------------------------------------------------------


@dataclass
class Approval:
    by: str
    at: datetime


async def test_a_signal_wakes_the_workflow_that_waits_for_it(store: SqlStore, clock: Clock):
    async def work(ctx: Context) -> str:
        approval = await ctx.wait_signal("approved", Approval)
        assert approval == Approval("ada", clock.now)
        return approval.by

    job_id = await submit(store, "work")
    async with working(store, work):
        job = await in_status(store, job_id, Status.WAITING)
        assert (job.wait_kind, job.wait_key) == ("SIGNAL", "approved")
        await signal(store, job_id, "denied", "1")  # another one
        assert (await row(store, job_id)).status is Status.WAITING
        await signal(store, job_id, "approved", f'{{"by":"ada","at":"{clock.now.isoformat()}"}}')
        assert result(await finished(store, job_id)) == "ada"
    (step,) = await steps_of(store, job_id)
    assert (step.name, step.kind, step.state) == ("approved", StepKind.SIGNAL, StepState.DONE)


async def test_a_signal_that_came_before_is_there(store: SqlStore):
    async def work(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    job_id = await submit(store, "work")
    await signal(store, job_id, "go", '{"n":1}')
    async with working(store, work):
        assert result(await finished(store, job_id)) == {"n": 1}


async def test_each_wait_takes_one_signal_in_the_order_they_were_sent(
    store: SqlStore, clock: Clock
):
    async def work(ctx: Context) -> list[int]:
        numbers = [await ctx.wait_signal("n", int) for _ in range(3)]
        if ctx.attempt == 1:
            raise ConnectionError
        return numbers

    job_id = await submit(store, "work")
    for n in (1, 2, 3):
        await signal(store, job_id, "n", str(n))
        clock.advance(1)
    async with working(store, handler(work, backoff=NO_WAIT)):
        assert result(await finished(store, job_id)) == [1, 2, 3]


async def test_a_signal_that_does_not_come_in_time(store: SqlStore, clock: Clock):
    errors: list[str] = []

    async def work(ctx: Context) -> None:
        try:
            await ctx.wait_signal("approved", bool, timeout=60)
        except SignalTimeout as error:
            errors.append(str(error))
        if len(errors) < 2:
            raise ConnectionError

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):
        job = await in_status(store, job_id, Status.WAITING)
        assert job.next_run_at == clock.after(60)
        clock.advance(60)
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert errors[0] == errors[1]
    assert "'approved'" in errors[0]
    assert [step.state for step in await steps_of(store, job_id)] == [StepState.TIMED_OUT]


async def test_an_uncaught_time_out_parks_the_job(store: SqlStore, clock: Clock):
    async def work(ctx: Context) -> None:
        await ctx.wait_signal("approved", timeout=60)

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        clock.advance(60)
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)


@pytest.mark.parametrize("sent", [False, True])
async def test_a_timeout_of_zero_only_looks(store: SqlStore, sent: bool):
    async def work(ctx: Context) -> Any:
        try:
            return await ctx.wait_signal("go", timeout=0)
        except SignalTimeout:
            return "nothing"

    job_id = await submit(store, "work")
    if sent:
        await signal(store, job_id, "go", '"there"')
    async with working(store, work):
        job = await finished(store, job_id)
    assert result(job) == ("there" if sent else "nothing")
    assert len(await steps_of(store, job_id)) == 1  # a replay sees the same


async def test_signals_are_iterated_until_none_comes_in_time(store: SqlStore, clock: Clock):
    async def work(ctx: Context) -> list[int]:
        return [number async for number in ctx.signals("n", int, timeout=60)]

    job_id = await submit(store, "work")
    async with working(store, work):
        for n in (1, 2):
            await until(lambda n=n: _is_waiting_with(store, job_id, n))  # type: ignore[misc]
            await signal(store, job_id, "n", str(n))
        await until(lambda: _is_waiting_with(store, job_id, 3))
        clock.advance(60)
        assert result(await finished(store, job_id)) == [1, 2]


async def test_a_signal_of_another_type_is_said_to_be_so(store: SqlStore):
    async def work(ctx: Context) -> None:
        await ctx.wait_signal("approved", bool)

    job_id = await submit(store, "work")
    await signal(store, job_id, "approved", '"perhaps"')
    async with working(store, work):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
    assert "'approved' carries \"perhaps\"" in (job.last_error or "")


# -- other jobs -----------------------------------------------------------------------------------


async def other(n: int) -> int:
    """Ends in the way that its number says."""
    if n < 0:
        raise NoRetry("a negative number")
    return n + 1


async def test_waiting_for_a_job_returns_its_result(store: SqlStore):
    async def work(ctx: Context, job: UUID) -> Any:
        value = await ctx.wait_for(job)
        if ctx.attempt == 1:
            raise ConnectionError
        return value

    target = await submit(store, "other", n=1)
    job_id = await submit(store, "work", job=str(target))
    async with working(store, handler(work, backoff=NO_WAIT)):
        job = await in_status(store, job_id, Status.WAITING)
        assert (job.wait_kind, job.wait_key) == ("JOB", str(target))
        async with working(store, other):
            assert result(await finished(store, job_id)) == 2
    assert await names_of(store, job_id) == ["wait_for"]


async def test_a_job_that_has_ended_already_is_not_waited_for(store: SqlStore):
    async def work(ctx: Context, job: UUID) -> Any:
        return await ctx.wait_for(str(job))

    target = await submit(store, "other", n=1)
    async with working(store, other):
        await finished(store, target)
    job = await outcome(store, work, job=str(target))
    assert result(job) == 2


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_waiting_for_a_job_that_does_not_succeed(store: SqlStore, clock: Clock, how: str):
    errors: list[JobFailed | JobCancelled] = []

    async def work(ctx: Context, job: UUID) -> None:
        try:
            await ctx.wait_for(job)
        except (JobFailed, JobCancelled) as error:
            errors.append(error)
        if len(errors) < 2:
            raise ConnectionError

    target = await submit_with(store, "other", {"delay": 60}, n=-1)
    job_id = await submit(store, "work", job=str(target))
    async with working(store, handler(work, backoff=NO_WAIT)):
        await in_status(store, job_id, Status.WAITING)
        if how == "fails":
            async with working(store, other):
                clock.advance(60)
                await finished(store, job_id)
        else:
            await store.cancel([target])
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    first, second = errors
    assert type(first) is (JobFailed if how == "fails" else JobCancelled)
    assert (str(first), first.job_id) == (str(second), target)
    assert ("a negative number" in str(first)) == (how == "fails")


async def test_an_uncaught_failure_of_the_other_job_parks_this_one(store: SqlStore):
    async def work(ctx: Context, job: UUID) -> None:
        await ctx.wait_for(job)

    target = await submit(store, "other", n=-1)
    job_id = await submit(store, "work", job=str(target))
    async with working(store, work, other):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
    assert (job.last_error or "").startswith(f"JobFailed: Job {target} (other) was dead-lettered")


@pytest.mark.parametrize("within", [0, 60])
async def test_a_job_that_takes_too_long(store: SqlStore, clock: Clock, within: float):
    async def work(ctx: Context, job: UUID) -> str:
        try:
            await ctx.wait_for(job, timeout=within)
        except WaitTimeout as error:
            return str(error)
        return ""

    target = await submit(store, "other", n=1)  # no worker runs it
    job_id = await submit(store, "work", job=str(target))
    async with working(store, work):
        if within:
            await in_status(store, job_id, Status.WAITING)
            clock.advance(60)
        assert "did not end in time" in result(await finished(store, job_id))
    assert (await row(store, target)).status is Status.PENDING
    assert [step.state for step in await steps_of(store, job_id)] == [StepState.TIMED_OUT]


async def test_a_job_cannot_wait_for_itself_nor_for_what_is_not_there(store: SqlStore):
    async def work(ctx: Context) -> None:
        with pytest.raises(InvalidOption, match="wait for itself"):
            _ = ctx.wait_for(ctx.job_id)
        with pytest.raises(InvalidOption, match="a job or its id"):
            _ = ctx.wait_for("no id")
        with pytest.raises(JobNotFound):
            await ctx.wait_for(UUID(int=5))

    assert (await outcome(store, work)).last_error is None

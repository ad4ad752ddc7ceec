"""Code that changes under a workflow: what is noticed, and how a change is let in."""

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.context import Context
from pulsed.engine.workflow.flow import input_hash
from pulsed.errors import InvalidOption, NonDeterministic
from pulsed.model.job import JobRow, Status
from pulsed.store.sql_store import SqlStore
from tests.support.clock import Clock
from tests.support.workers import finished, handler, in_status, outcome, result, submit, working
from tests.support.workflows import call_of, names_of, steps_of

Code = Callable[[Context], Any]


def one(n: int = 0) -> int:
    return 1 + n


def two() -> int:
    return 2


async def _nobody(n: int) -> None: ...


NOBODY = handler(_nobody, topic="nobody's")


async def changed(
    store: SqlStore, clock: Clock, before: Code, after: Code, **options: Any
) -> JobRow:
    """Run a workflow with one code up to a sleep, and with another from the beginning."""
    code = [before]

    async def work(ctx: Context) -> Any:
        value = await code[0](ctx)
        await ctx.sleep(60, name="pause")
        return value

    job_id = await submit(store, "work")
    async with working(store, handler(work, **options)):
        await in_status(store, job_id, Status.WAITING)
        code[0] = after
        clock.advance(60)
        return await finished(store, job_id)


async def step_one(ctx: Context) -> Any:
    return await ctx.step(one)


async def step_one_with_another_argument(ctx: Context) -> Any:
    return await ctx.step(one, 5)


async def step_two(ctx: Context) -> Any:
    return await ctx.step(two)


async def step_two_first(ctx: Context) -> Any:
    await ctx.step(two)
    return await ctx.step(one)


async def step_one_is_gone(_: Context) -> Any:
    return None


async def sleep_called_one(ctx: Context) -> Any:
    await ctx.sleep(1, name="one")


@pytest.mark.parametrize(
    "after,said",
    [
        (step_one_with_another_argument, "call 1, step 'one', has other arguments"),
        (step_two, "call 1 is step 'two', but step 'one' is stored as call 1"),
        (step_two_first, "call 1 is step 'two', but step 'one' is stored as call 1"),
        (step_one_is_gone, "call 1 is sleep 'pause', but step 'one' is stored as call 1"),
        (sleep_called_one, "call 1 is sleep 'one', but step 'one' is stored as call 1"),
    ],
)
async def test_a_workflow_whose_code_asks_for_something_else_is_parked(
    store: SqlStore, clock: Clock, after: Code, said: str
):
    job = await changed(store, clock, step_one, after)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
    assert (job.last_error or "").startswith("NonDeterministic: ")
    assert said in (job.last_error or "")
    assert "ctx.version" in (job.last_error or "")


async def test_another_strategy_or_time_out_is_no_other_call(store: SqlStore, clock: Clock):
    async def before(ctx: Context) -> Any:
        return await ctx.step(one, retry=2, timeout=5)

    assert result(await changed(store, clock, before, step_one)) == 1


async def test_a_fan_out_with_other_children_is_parked(store: SqlStore, clock: Clock):
    """Results would be taken for those of other calls."""
    numbers = [1, 2]

    async def work(ctx: Context) -> None:
        await ctx.fan_out([call_of(NOBODY, n=n) for n in numbers], timeout=60)

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        numbers.append(3)
        clock.advance(60)
        job = await finished(store, job_id)
    assert "fan_out 'fan_out', has other arguments" in (job.last_error or "")


async def test_a_handler_that_goes_on_regardless_is_parked_as_well(store: SqlStore, clock: Clock):
    async def stubborn(ctx: Context) -> Any:
        for _ in range(2):
            with pytest.raises(NonDeterministic):
                await ctx.step(two)
        return "fine"

    async def first(ctx: Context) -> Any:
        value = await (stubborn if replaying else step_one)(ctx)
        if not replaying:
            await ctx.sleep(60)
        return value

    replaying: list[int] = []
    job_id = await submit(store, "first")
    async with working(store, first):
        await in_status(store, job_id, Status.WAITING)
        replaying.append(1)
        clock.advance(60)
        job = await finished(store, job_id)
    assert job.status is Status.DEAD_LETTERED
    assert (job.last_error or "").startswith("NonDeterministic: ")


async def test_a_handler_may_want_a_warning_only(
    store: SqlStore, clock: Clock, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "pulsed.job"):
        job = await changed(store, clock, step_one, step_two_first, determinism="warn")
    assert result(job) == 1
    assert "call 1 is step 'two', but step 'one' is stored" in caplog.text
    assert set(await names_of(store, job.id)) == {"one", "two", "pause"}


async def test_a_name_that_stood_for_something_else_is_parked_even_so(
    store: SqlStore, clock: Clock
):
    job = await changed(store, clock, step_one, sleep_called_one, determinism="warn")
    assert (job.last_error or "").startswith("NonDeterministic: ")


def test_the_digest_of_arguments_tells_them_apart_and_nothing_else():
    assert input_hash(()) == ""
    assert input_hash((1, "a")) == input_hash((1, "a"))
    assert input_hash(({"a": 1, "b": {2, 1}},)) == input_hash(({"b": {1, 2}, "a": 1},))
    different = [(1,), ("1",), (1, 1), (11,), ([1],), (None,), ("a", "b"), ("ab",), (object(),)]
    assert len({input_hash(inputs) for inputs in different}) == len(different)
    assert input_hash((object(),)) == input_hash((object(),))  # of what is not JSON, the type


# -- versions -------------------------------------------------------------------------------------


async def with_version(ctx: Context) -> Any:
    if await ctx.version("two instead of one", 1, 2) == 1:
        return await ctx.step(one)
    return await ctx.step(two)


async def test_a_workflow_that_was_past_a_change_keeps_the_old_way(store: SqlStore, clock: Clock):
    job = await changed(store, clock, step_one, with_version)
    assert result(job) == 1
    stored = {step.name: step.value for step in await steps_of(store, job.id)}
    assert stored["version:two instead of one"] == "1"


async def test_a_workflow_that_comes_to_a_change_later_goes_the_new_way(
    store: SqlStore, clock: Clock
):
    """Also when it began before it, and in all of its later runs."""

    async def before(ctx: Context) -> Any:
        await ctx.step(one, name="first")
        await ctx.sleep(60, name="early")

    async def after(ctx: Context) -> Any:
        await before(ctx)
        return await with_version(ctx)

    code = [before]

    async def work(ctx: Context) -> Any:
        value = await code[0](ctx)
        await ctx.sleep(60, name="late")
        return [value, await ctx.version("two instead of one", 1, 2)]

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        code[0] = after
        clock.advance(60)
        await until_asleep(store, job_id, "late")
        clock.advance(60)
        assert result(await finished(store, job_id)) == [2, 2]


async def until_asleep(store: SqlStore, job_id: UUID, name: str) -> None:
    while name not in await names_of(store, job_id):
        await in_status(store, job_id, Status.WAITING, Status.PENDING, Status.RUNNING)
    await in_status(store, job_id, Status.WAITING)


async def test_a_version_that_the_code_does_not_know_any_more_parks_the_job(
    store: SqlStore, clock: Clock
):
    async def without_the_old_way(ctx: Context) -> Any:
        await ctx.version("change", 2, 3)

    async def with_the_old_way(ctx: Context) -> Any:
        await ctx.version("change", 0, 1)

    job = await changed(store, clock, with_the_old_way, without_the_old_way)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
    assert "follows version 1 of 'change'" in (job.last_error or "")


@pytest.mark.parametrize("bounds", [(2, 1), (-1, 1), (0, True)])
async def test_versions_out_of_order_are_refused(store: SqlStore, bounds: tuple[int, int]):
    async def work(ctx: Context) -> None:
        with pytest.raises(InvalidOption):
            _ = ctx.version("change", *bounds)

    assert (await outcome(store, work)).last_error is None


async def test_the_name_of_a_change_fits_with_what_is_put_before_it(store: SqlStore):
    async def work(ctx: Context) -> None:
        with pytest.raises(InvalidOption, match="200 characters"):
            _ = ctx.version("x" * 195, 1, 2)
        await ctx.version("x" * 190, 1, 2)

    assert (await outcome(store, work)).status is Status.SUCCEEDED

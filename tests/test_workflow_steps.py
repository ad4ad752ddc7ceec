"""Steps: what runs once, what runs again, what a step's value is, and where one may stand."""

import asyncio
import contextvars
import functools
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from pulsed.engine.context import Context
from pulsed.errors import InvalidOption
from pulsed.model.job import Status
from pulsed.model.step import StepKind, StepState
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
from tests.support.workflows import names_of, nothing, parked, steps_of


async def test_a_step_that_is_done_does_not_run_again(store: SqlStore):
    calls: list[str] = []

    async def charge(order: int) -> str:
        calls.append(f"charge {order}")
        return "receipt"

    async def ship(order: int, receipt: str) -> str:
        calls.append(f"ship {order} {receipt}")
        if len(calls) < 4:
            raise ConnectionError("no parcels today")
        return "parcel"

    async def order(ctx: Context, n: int) -> list[str]:
        receipt = await ctx.step(charge, n)
        return [receipt, await ctx.step(ship, n, receipt)]

    job_id = await submit(store, "order", n=7)
    async with working(store, handler(order, backoff=NO_WAIT)):
        assert result(await finished(store, job_id)) == ["receipt", "parcel"]
    assert calls == ["charge 7", *["ship 7 receipt"] * 3]
    first, second = await steps_of(store, job_id)
    assert (first.name, first.nth, first.seq, first.kind) == ("charge", 1, 1, StepKind.STEP)
    assert (first.state, first.value, first.tries) == (StepState.DONE, '"receipt"', 1)
    assert (second.name, second.seq) == ("ship", 2)


async def test_uses_of_one_name_are_counted(store: SqlStore):
    async def double(n: int) -> int:
        return 2 * n

    async def work(ctx: Context) -> list[int]:
        return [await ctx.step(double, n) for n in (1, 2, 3)]

    job_id = await submit(store, "work")
    async with working(store, work):
        assert result(await finished(store, job_id)) == [2, 4, 6]
    assert await names_of(store, job_id) == ["double", "double (use 2)", "double (use 3)"]


@dataclass
class Receipt:
    number: int
    at: datetime


class Parcel(BaseModel):
    weight: Decimal


def a_receipt() -> Receipt:
    return Receipt(1, datetime(2030, 1, 1, tzinfo=UTC))


def a_parcel() -> Parcel:
    return Parcel(weight=Decimal("1.50"))


def a_time() -> datetime:
    return datetime(2030, 1, 1, 12, 30, tzinfo=UTC)


def a_pair() -> tuple[int, str]:
    return (1, "one")


def an_id() -> UUID:
    return UUID(int=5)


def no_hint():
    return {"a": [1, None]}


def a_wrong_hint() -> int:
    return "not a number"  # type: ignore[return-value]


def a_nul() -> str:
    return "a\0b"


@pytest.mark.parametrize(
    "fn",
    [
        a_receipt, a_parcel, a_time, nothing, a_pair, an_id, no_hint, a_wrong_hint, a_nul,
        functools.partial(Receipt, 5, datetime(2030, 1, 1, tzinfo=UTC)),
    ],
    ids=lambda fn: getattr(fn, "__name__", "partial of a class"),
)  # fmt: skip
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_a_replay_gets_an_equal_value_of_the_same_type(
    store: SqlStore, fn: Any, is_async: bool
):
    seen: list[Any] = []

    if is_async:

        @functools.wraps(fn if not isinstance(fn, functools.partial) else fn.func)
        async def step() -> Any:
            return fn()

    else:
        step = fn

    async def work(ctx: Context) -> None:
        seen.append(await ctx.step(step, name="make"))
        if len(seen) < 2:
            raise ConnectionError

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    first, second = seen
    assert first == second
    assert type(first) is type(second)
    if fn not in (a_nul, a_wrong_hint):
        assert first == fn()
        assert type(first) is type(fn())


async def test_a_plain_function_runs_in_a_thread_with_the_context_variables(store: SqlStore):
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    threads: list[threading.Thread] = []

    def look() -> str:
        threads.append(threading.current_thread())
        return tenant.get()

    async def work(ctx: Context) -> str:
        tenant.set("ada")
        return await ctx.step(look)

    job = await outcome(store, work)
    assert result(job) == "ada"
    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon


async def test_a_plain_wrapper_around_an_async_function_is_awaited(store: SqlStore):
    async def charge(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    async def work(ctx: Context) -> list[int]:
        by_partial = await ctx.step(functools.partial(charge, 1))
        return [by_partial, await ctx.step(lambda: charge(2), name="two")]

    assert result(await outcome(store, work)) == [2, 3]


async def test_steps_side_by_side_have_the_same_places_in_every_run(store: SqlStore):
    calls: list[str] = []
    slow_may_end = asyncio.Event()

    async def slow() -> str:
        calls.append("slow")
        await slow_may_end.wait()
        return "slow"

    async def fast() -> str:
        calls.append("fast")
        slow_may_end.set()
        return "fast"

    async def work(ctx: Context) -> list[str]:
        both = list(await asyncio.gather(ctx.step(slow), ctx.step(fast)))
        if ctx.attempt == 1:
            raise ConnectionError
        return both

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):
        assert result(await finished(store, job_id)) == ["slow", "fast"]
    assert calls == ["slow", "fast"]
    assert await names_of(store, job_id) == ["slow", "fast"]


# -- where a step may stand -----------------------------------------------------------------------


async def test_a_step_inside_a_step_is_part_of_it(store: SqlStore):
    async def inner() -> str:
        return "inner"

    async def outer(ctx: Context) -> str:
        return await ctx.step(inner)

    async def work(ctx: Context) -> str:
        return await ctx.step(outer, ctx)

    job = await outcome(store, work)
    assert result(job) == "inner"
    assert await names_of(store, job.id) == ["outer"]


async def test_a_wait_inside_a_step_is_refused(store: SqlStore):
    async def naps(ctx: Context) -> None:
        await ctx.sleep(5)

    async def work(ctx: Context) -> None:
        await ctx.step(naps, ctx)

    said = await parked(store, handler(work))
    assert said.startswith("CannotSuspend: ")
    assert "ctx.sleep() stands inside of a step" in said


@pytest.mark.parametrize(
    "method", ["step", "sleep", "sleep_until", "wait_signal", "wait_for", "fan_out", "version"]
)
async def test_a_plain_handler_is_told_at_once_to_be_async(store: SqlStore, method: str):
    """And not by a coroutine that is never awaited."""

    def work(ctx: Context) -> None:
        arguments: dict[str, tuple[Any, ...]] = {
            "step": (nothing,), "sleep": (1,), "sleep_until": (a_time(),), "wait_signal": ("a",),
            "wait_for": (UUID(int=1),), "fan_out": ([],), "version": ("a", 1, 2),
        }  # fmt: skip
        getattr(ctx, method)(*arguments[method])

    said = await parked(store, handler(work))
    assert said.startswith("CannotSuspend: ")
    assert f"ctx.{method}()" in said
    assert "`async def`" in said


async def test_another_loop_in_a_thread_is_no_way_around_that(store: SqlStore):
    async def inner(ctx: Context) -> None:
        await ctx.step(nothing)

    def work(ctx: Context) -> None:
        asyncio.run(inner(ctx))

    assert "CannotSuspend" in await parked(store, handler(work))


@pytest.mark.parametrize("name", ["a|b", "", "a,b", "a\nb"])
async def test_a_name_that_cannot_be_stored_is_refused(store: SqlStore, name: str):
    async def work(ctx: Context) -> None:
        with pytest.raises(InvalidOption, match="name of a step"):
            _ = ctx.step(nothing, name=name)

    assert (await outcome(store, work)).last_error is None


async def test_a_lambda_needs_a_name(store: SqlStore):
    async def work(ctx: Context) -> int:
        with pytest.raises(InvalidOption, match="name="):
            _ = ctx.step(lambda: 1)
        return await ctx.step(lambda: 1, name="one")

    job = await outcome(store, work)
    assert result(job) == 1
    assert await names_of(store, job.id) == ["one"]


async def test_a_partial_is_called_what_its_function_is_called(store: SqlStore):
    def charge(n: int) -> int:
        return n

    async def work(ctx: Context) -> int:
        return await ctx.step(functools.partial(functools.partial(charge), 4))

    job = await outcome(store, work)
    assert result(job) == 4
    assert await names_of(store, job.id) == ["charge"]


# -- plain jobs -----------------------------------------------------------------------------------


async def test_a_plain_job_has_nothing_to_do_with_workflows(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    async def refuse(*_: Any) -> Any:
        raise AssertionError

    for verb in ("history", "record", "outcomes", "add_children", "take_signal", "watch"):
        monkeypatch.setattr(store.workflows, verb, refuse)
    seen: list[Any] = []

    async def work(ctx: Context) -> int:
        await asyncio.sleep(0)
        seen.append(ctx._flow)
        return 1

    assert result(await outcome(store, work)) == 1
    assert seen == [None]


def test_determinism_is_strict_or_warns():
    with pytest.raises(ValueError, match="'strict' or 'warn'"):
        handler(nothing, determinism="lax")

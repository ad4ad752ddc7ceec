"""Steps: what runs once, what runs again, and what a step's value is."""

import asyncio
import contextvars
import functools
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from pulsed.backoff import Backoff, RetryPolicy
from pulsed.engine import patience
from pulsed.engine import steps as steps_module
from pulsed.engine.context import Context
from pulsed.errors import (
    InvalidOption,
    LeaseLost,
    NoRetry,
    RetryAfter,
    StepFailed,
    StorageFull,
    StorageRefused,
    TransientStorageError,
)
from pulsed.job import Status
from pulsed.step import StepKind, StepState
from pulsed.store.sqlstore import SqlStore
from pulsed.workflow import Record
from tests.support.workers import (
    beat,
    finished,
    handler,
    in_status,
    outcome,
    result,
    submit,
    submit_with,
    until,
    working,
)
from tests.support.workflows import names_of, parked, steps_of

AGAIN_AT_ONCE = Backoff.fixed(0)


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
    async with working(store, handler(order, backoff=AGAIN_AT_ONCE)):
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


def nothing() -> None:
    return None


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
    async with working(store, handler(work, backoff=AGAIN_AT_ONCE)):
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
    async with working(store, handler(work, backoff=AGAIN_AT_ONCE)):
        assert result(await finished(store, job_id)) == ["slow", "fast"]
    assert calls == ["slow", "fast"]
    assert await names_of(store, job_id) == ["slow", "fast"]


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

    monkeypatch.setattr(steps_module, "pause", pause)
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
    async with working(store, handler(work, backoff=AGAIN_AT_ONCE)):
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


# -- time-outs and cancellations ------------------------------------------------------------------


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


class Gate:
    """Holds back what is recorded until it is opened."""

    def __init__(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[Record]] = []
        self.open = asyncio.Event()
        record = store.record

        async def gated(records: Any) -> Any:
            self.batches.append(list(records))
            await self.open.wait()
            return await record(records)

        monkeypatch.setattr(store, "record", gated)


async def test_a_finished_step_is_stored_though_its_run_is_cancelled_meanwhile(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate(store, monkeypatch)
    heard: list[BaseException] = []

    async def charge() -> int:
        return 5

    async def work(ctx: Context) -> None:
        try:
            await ctx.step(charge)
        except BaseException as error:
            heard.append(error)
            raise

    job_id = await submit(store, "work")
    async with working(store, work) as it:
        await until(lambda: gate.batches)
        await store.cancel([job_id])
        await beat(it)
        await until(lambda: next(iter(it.worker._runner.runs)).stop is not None)
        assert heard == []  # it waits for the write
        gate.open.set()
        job = await finished(store, job_id)
    assert job.status is Status.CANCELLED
    assert isinstance(heard[0], asyncio.CancelledError)
    assert [step.value for step in await steps_of(store, job_id)] == ["5"]


async def test_a_thread_that_returns_after_the_cancellation_is_stored(store: SqlStore):
    begun, may_end = threading.Event(), threading.Event()

    def charge() -> int:
        begun.set()
        may_end.wait(30)
        return 5

    async def work(ctx: Context) -> None:
        await ctx.step(charge)

    job_id = await submit(store, "work")
    async with working(store, work) as it:
        await until(begun.is_set)
        await store.cancel([job_id])
        await beat(it)
        await until(lambda: next(iter(it.worker._runner.runs)).stop is not None)
        may_end.set()
        assert (await finished(store, job_id)).status is Status.CANCELLED
    assert [step.value for step in await steps_of(store, job_id)] == ["5"]


async def test_checkpoints_gather_while_one_is_on_its_way(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate(store, monkeypatch)

    async def note(n: int) -> int:
        return n

    async def work(ctx: Context, n: int) -> int:
        return await ctx.step(note, n)

    ids = [await submit(store, "work", n=n) for n in range(6)]
    async with working(store, work):
        await until(lambda: gate.batches)
        await until(lambda: len(asyncio.all_tasks()) > 6)
        gate.open.set()
        rows = [await finished(store, job_id) for job_id in ids]
    assert [result(row) for row in rows] == list(range(6))
    assert sum(map(len, gate.batches)) == 6
    assert len(gate.batches) < 6


async def test_a_run_that_has_lost_its_lease_hears_so(store: SqlStore):
    left: list[Context] = []

    async def charge() -> int:
        return 5

    async def work(ctx: Context) -> None:
        left.append(ctx)

    job = await outcome(store, work)
    with pytest.raises(LeaseLost) as lost:
        await left[0].step(charge)  # its run is over
    assert lost.value.job_id == job.id
    assert await steps_of(store, job.id) == []


@pytest.mark.parametrize("verb", ["history", "record"])
async def test_a_database_that_is_away_for_longer_does_not_cost_an_attempt(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, verb: str
):
    """Nor does a step run again that has run: its value waits."""
    monkeypatch.setattr(patience, "PATIENCE", RetryPolicy(initial=0, max=0))
    errors = [TransientStorageError("away"), StorageFull("no room")]
    original = getattr(store, verb)
    calls: list[int] = []

    async def away(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return await original(*args)

    monkeypatch.setattr(store, verb, away)

    async def charge() -> int:
        calls.append(1)
        return 5

    async def work(ctx: Context) -> int:
        return await ctx.step(charge)

    assert result(await outcome(store, work)) == 5
    assert (calls, errors) == ([1], [])


async def test_a_checkpoint_that_is_refused_does_not_take_others_with_it(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate(store, monkeypatch)
    gated = store.record

    async def picky(records: Any) -> Any:
        if any(record.checkpoint.name == "bad" for record in records):
            await gate.open.wait()
            raise StorageRefused("no such character")
        return await gated(records)

    monkeypatch.setattr(store, "record", picky)

    async def work(ctx: Context, name: str) -> None:
        if name != "first":  # which is held up alone, while the others gather
            await until(lambda: gate.batches)
        await ctx.step(nothing, name=name)

    names = ["first", "good", "bad", "better"]
    ids = [await submit_with(store, "work", {"max_attempts": 1}, name=name) for name in names]
    async with working(store, work):
        await until(lambda: gate.batches)
        gate.open.set()
        rows = [await finished(store, job_id) for job_id in ids]
    said = [row.last_error for row in rows]
    assert said == [None, None, "StorageRefused: no such character", None]


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
    """And not by a coroutine that nobody awaits."""

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
        monkeypatch.setattr(store, verb, refuse)
    seen: list[Any] = []

    async def work(ctx: Context) -> int:
        await asyncio.sleep(0)
        seen.append(ctx._flow)
        return 1

    assert result(await outcome(store, work)) == 1
    assert seen == [None]


async def test_a_history_is_read_once_for_each_run(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    reads: list[UUID] = []
    history = store.history

    async def counted(job_id: UUID) -> Any:
        reads.append(job_id)
        return await history(job_id)

    monkeypatch.setattr(store, "history", counted)

    async def work(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(nothing) for _ in range(3)))
        await ctx.step(nothing)

    await outcome(store, work)
    assert len(reads) == 1


async def test_a_success_may_drop_its_checkpoints(store: SqlStore):
    async def work(ctx: Context) -> None:
        await ctx.step(nothing)

    async def kept(ctx: Context) -> None:
        await ctx.step(nothing)

    ids = [await submit(store, name) for name in ("work", "kept")]
    async with working(store, handler(work, keep_steps=False), kept):
        for job_id in ids:
            assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert [await names_of(store, job_id) for job_id in ids] == [[], ["nothing"]]


async def test_only_a_success_drops_its_checkpoints(store: SqlStore):
    async def work(ctx: Context) -> None:
        await ctx.step(nothing)
        raise ConnectionError

    job_id = await submit_with(store, "work", {"max_attempts": 2})
    async with working(store, handler(work, keep_steps=False, backoff=Backoff.fixed(60))):
        await in_status(store, job_id, Status.RETRYING)
    assert await names_of(store, job_id) == ["nothing"]


def test_determinism_is_strict_or_warns():
    with pytest.raises(ValueError, match="'strict' or 'warn'"):
        handler(nothing, determinism="lax")

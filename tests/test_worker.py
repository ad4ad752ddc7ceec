"""What a handler gets, what it may do, and what becomes of its job."""

import asyncio
import json
import logging
import math
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from pulsed.backoff import Backoff
from pulsed.engine.context import Context, JobLogFilter, current_context
from pulsed.errors import CalledInEventLoop, ConfigError, NoRetry, RetryAfter, Snooze
from pulsed.job import JobRow, Status
from pulsed.store.sqlstore import SqlStore
from tests.support.clock import Clock
from tests.support.jobs import NO_WAIT
from tests.support.workers import (
    a_worker,
    finished,
    handler,
    in_status,
    result,
    submit,
    submit_with,
    until,
    working,
)


async def outcome(store: SqlStore, fn: Callable[..., Any], /, **arguments: Any) -> JobRow:
    """Run one job of this function, with a single attempt, to its end."""
    job_id = await submit_with(store, fn.__name__, {"max_attempts": 1}, **arguments)
    async with working(store, fn):
        return await finished(store, job_id)


# -- handlers, arguments, results -----------------------------------------------------------------


async def test_an_async_function_runs_in_the_event_loop(store: SqlStore):
    async def add(a: int, b: int = 10) -> list[int]:
        return [a + b, threading.get_ident()]

    job = await outcome(store, add, a=1)
    assert result(job) == [11, threading.get_ident()]
    assert (job.attempts, job.last_outcome, job.last_error) == (1, "SUCCEEDED", None)


async def test_a_plain_function_runs_in_a_thread(store: SqlStore):
    def add(a: int, b: int) -> list[int]:
        return [a + b, threading.get_ident()]

    total, thread = result(await outcome(store, add, a=1, b=2))
    assert total == 3
    assert thread != threading.get_ident()


async def test_plain_functions_run_at_the_same_time(store: SqlStore):
    together = threading.Barrier(5)

    def meet(n: int) -> None:
        together.wait(timeout=20)

    ids = [await submit(store, "meet", n=n) for n in range(5)]
    async with working(store, meet):
        assert {(await finished(store, job_id)).status for job_id in ids} == {Status.SUCCEEDED}


@dataclass
class Order:
    number: int
    placed: datetime


async def test_arguments_arrive_and_results_are_stored_by_their_hints(store: SqlStore):
    seen: list[Any] = []

    async def ship(order: Order, ids: list[UUID]) -> Order:
        seen.append((order, ids))
        return order

    placed = "2030-02-03T04:05:06Z"
    known = UUID(int=7)
    job = await outcome(store, ship, order={"number": 5, "placed": placed}, ids=[str(known)])
    assert seen == [(Order(5, datetime.fromisoformat(placed)), [known])]
    assert handler(ship).decode_result(job.result or "") == seen[0][0]


async def test_a_function_without_a_result_stores_null(store: SqlStore):
    async def nothing() -> None:
        pass

    assert result(await outcome(store, nothing)) is None


@pytest.mark.parametrize(
    "value, stored",
    [
        (math.nan, None),
        ({"text": "a\0b"}, {"text": "a\ufffdb"}),
        (["\ud800"], ["\ufffd"]),
    ],
)
async def test_a_result_that_no_database_takes_is_cleaned(store: SqlStore, value: Any, stored: Any):
    async def odd() -> Any:
        return value

    assert result(await outcome(store, odd)) == stored


@pytest.mark.parametrize(
    "value, said",
    [
        (object(), "cannot be stored as JSON"),
        ("x" * 2_000_000, "limit"),
        (threading.Lock(), "cannot be stored as JSON"),
    ],
    ids=["object", "too large", "lock"],
)
async def test_a_result_that_cannot_be_stored_parks_the_job(store: SqlStore, value: Any, said: str):
    async def odd() -> Any:
        return value

    job_id = await submit_with(store, "odd", {"max_attempts": 5})
    async with working(store, odd):
        job = await finished(store, job_id)
    assert job.status is Status.DEAD_LETTERED
    assert said in (job.last_error or "")
    assert job.attempts == 1, "the work is done; doing it again would not help"


async def test_an_error_while_encoding_a_result_is_reported(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    async def odd() -> int:
        return 1

    function = handler(odd)

    def encode_result(value: Any) -> str:
        raise LookupError("a hook of the user's own")

    monkeypatch.setattr(function, "encode_result", encode_result)
    job_id = await submit(store, "odd")
    async with working(store, function):
        job = await finished(store, job_id)
    assert (job.status, job.last_error) == (
        Status.DEAD_LETTERED,
        "LookupError: a hook of the user's own",
    )


async def test_a_key_the_handler_does_not_know_is_a_retried_failure(store: SqlStore, clock: Clock):
    called: list[str] = []

    async def greet(name: str) -> None:
        called.append(name)

    options = {"max_attempts": 2, "backoff": NO_WAIT}
    job_id = await submit_with(store, "greet", options, name="Ada", title="Countess")
    async with working(store, greet):
        job = await finished(store, job_id)
    assert (job.status, job.attempts, called) == (Status.DEAD_LETTERED, 2, [])
    assert "'title'" in (job.last_error or "")


async def test_a_worker_without_handlers_says_so(store: SqlStore):
    with pytest.raises(ConfigError, match=r"no handlers.*@app\.job"):
        await a_worker(store).run()


# -- context --------------------------------------------------------------------------------------


async def test_the_context_describes_the_run(store: SqlStore):
    seen: list[Context] = []

    async def look(ctx: Context, n: int) -> None:
        seen.append(ctx)
        if ctx.attempt == 1:
            raise ValueError("once more")

    options = {
        "headers": {"trace": "abc"},
        "queue": "mail",
        "backoff": NO_WAIT,
        "max_attempts": 2,
    }
    job_id = await submit_with(store, "look", options, n=1)
    async with working(store, look, queues=["mail"]):
        job = await finished(store, job_id)
    first, second = seen
    assert {each.job_id for each in seen} == {job_id}
    assert [each.attempt for each in seen] == [1, 2]
    assert second.lease_token > first.lease_token
    assert second.lease_token == job.lease_token
    assert (first.topic, first.queue, first.max_attempts) == ("look", "mail", 2)
    assert first.headers == {"trace": "abc"}
    assert first.submitted_at == job.submitted_at
    assert not first.cancelled


async def test_the_current_context_is_the_runs_own(store: SqlStore):
    together = asyncio.Barrier(2)
    found: dict[UUID, tuple[Any, Any]] = {}

    async def coroutine(ctx: Context) -> None:
        await together.wait()
        found[ctx.job_id] = (current_context(), ctx)

    def plain(ctx: Context) -> None:
        found[ctx.job_id] = (current_context(), ctx)

    ids = [await submit(store, topic) for topic in ("coroutine", "coroutine", "plain")]
    async with working(store, coroutine, plain):
        for job_id in ids:
            await finished(store, job_id)
    assert set(found) == set(ids)
    assert all(current is ctx for current, ctx in found.values())
    assert current_context() is None


async def test_context_variables_do_not_leak_from_one_run_into_another(store: SqlStore):
    variable: ContextVar[int] = ContextVar("variable", default=0)
    seen: list[int] = []

    async def coroutine(n: int) -> None:
        seen.append(variable.get())
        variable.set(n)

    def plain(n: int) -> None:
        seen.append(variable.get())
        variable.set(n)

    ids = [await submit(store, topic, n=n) for n in (1, 2, 3) for topic in ("coroutine", "plain")]
    async with working(store, coroutine, plain, concurrency=1):
        for job_id in ids:
            await finished(store, job_id)
    assert seen == [0] * 6


async def test_log_records_carry_the_job(store: SqlStore, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(JobLogFilter())

    async def chatty(ctx: Context) -> None:
        ctx.logger.info("through the context", extra={"shop": 7})
        logging.getLogger("shop").info("through any logger")

    job_id = await submit(store, "chatty")
    async with working(store, chatty):
        await finished(store, job_id)
    records: list[Any] = [
        record for record in caplog.records if record.getMessage().startswith("through")
    ]
    assert [(r.job_id, r.topic, r.attempt) for r in records] == [(str(job_id), "chatty", 1)] * 2
    assert records[0].shop == 7


async def test_progress_is_stored_while_the_job_runs(store: SqlStore):
    seen: list[Any] = []

    async def coroutine(ctx: Context) -> None:
        await ctx.aprogress({"done": 1})
        seen.append((await store.get([ctx.job_id]))[ctx.job_id].progress)
        with pytest.raises(CalledInEventLoop, match="aprogress"):
            ctx.progress(2)

    def plain(ctx: Context) -> None:
        ctx.progress(0.5)

    ids = [await submit(store, topic) for topic in ("coroutine", "plain")]
    async with working(store, coroutine, plain):
        jobs = [await finished(store, job_id) for job_id in ids]
    assert [job.last_error for job in jobs] == [None, None]
    assert json.loads(seen[0]) == {"done": 1}
    assert json.loads(jobs[1].progress or "") == 0.5


# -- how a run ends -------------------------------------------------------------------------------


async def test_a_failed_attempt_is_tried_again_after_its_backoff(store: SqlStore, clock: Clock):
    calls: list[int] = []

    async def flaky(ctx: Context) -> int:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return len(calls)

    job_id = await submit(store, "flaky")
    backoff = Backoff.linear(30, jitter=0)
    async with working(store, handler(flaky, backoff=backoff)):
        for attempt in (1, 2):
            await until(lambda n=attempt: len(calls) == n)  # type: ignore[misc]
            job = await in_status(store, job_id, Status.RETRYING)
            assert job.next_run_at == clock.after(30 * attempt)
            assert job.last_error == "ConnectionError: not yet"
            clock.advance(30 * attempt)
        assert result(await finished(store, job_id)) == 3
    failures = await store.failures(job_id)
    assert [failure.attempt for failure in failures] == [1, 2]
    assert all("in flaky" in (failure.traceback or "") for failure in failures)


async def test_retry_after_overrules_the_backoff(store: SqlStore, clock: Clock):
    async def limited() -> None:
        raise RetryAfter(120, "slow down")

    job_id = await submit(store, "limited")
    async with working(store, limited):
        job = await in_status(store, job_id, Status.RETRYING)
    assert (job.next_run_at, job.attempts) == (clock.after(120), 1)
    assert job.last_error == "slow down"


async def test_no_retry_parks_at_once(store: SqlStore):
    def hopeless() -> None:
        raise NoRetry("the address does not exist")

    job_id = await submit_with(store, "hopeless", {"max_attempts": 10})
    async with working(store, hopeless):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
    assert job.last_error == "the address does not exist"


async def test_a_snooze_gives_the_attempt_back(store: SqlStore, clock: Clock):
    calls: list[int] = []

    async def patient(ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise Snooze(60)

    job_id = await submit_with(store, "patient", {"max_attempts": 1})
    async with working(store, patient):
        for turn in (1, 2):
            await until(lambda n=turn: len(calls) == n)  # type: ignore[misc]
            job = await in_status(store, job_id, Status.PENDING)
            assert (job.attempts, job.next_run_at) == (0, clock.after(60))
            clock.advance(60)
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert calls == [1, 1, 1]
    assert await store.failures(job_id) == []


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Ruder(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "cancelled": (lambda: asyncio.CancelledError("mine"), "CancelledError: mine"),
    "generator exit": (lambda: GeneratorExit("odd"), "GeneratorExit: odd"),
    "own root": (lambda: type("Odd", (BaseException,), {})("x"), "Odd: x"),
    "unprintable": (Rude, "Rude: (its message cannot be shown)"),
    "exits when printed": (Ruder, "Ruder: (its message cannot be shown)"),
    "nul": (lambda: ValueError("a\0b"), "ValueError: a\ufffdb"),
    "surrogate": (lambda: ValueError("a\udc80b"), "ValueError: a\ufffdb"),
    "reason is no text": (lambda: NoRetry(17), "17"),  # type: ignore[arg-type]
    "group": (lambda: ExceptionGroup("all", [ValueError(1)]), "all (1 sub-exception)"),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_whatever_a_handler_raises_is_a_failure_of_its_job_only(
    store: SqlStore, name: str, plain: bool
):
    make, said = ERRORS[name]

    async def bad() -> None:
        raise make()

    def bad_in_thread() -> None:
        raise make()

    async def good() -> None:
        pass

    fn: Callable[..., Any] = bad_in_thread if plain else bad
    first = await submit_with(store, fn.__name__, {"max_attempts": 1})
    async with working(store, fn, good, concurrency=1):
        job = await finished(store, first)
        second = await submit(store, "good")
        assert (await finished(store, second)).status is Status.SUCCEEDED
    assert job.status is Status.DEAD_LETTERED
    assert said in (job.last_error or "")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_stop_iteration_is_a_failure_too(store: SqlStore, plain: bool):
    async def bad() -> None:
        raise StopIteration(5)

    def bad_in_thread() -> None:
        raise StopIteration(5)

    job = await outcome(store, bad_in_thread if plain else bad)
    assert job.status is Status.DEAD_LETTERED
    assert "StopIteration" in (job.last_error or "")


async def test_a_huge_error_is_cut_and_reported(store: SqlStore):
    async def verbose() -> None:
        raise ValueError("é" * 5_000_000 + "the end")

    job = await outcome(store, verbose)
    assert job.status is Status.DEAD_LETTERED
    assert len((job.last_error or "").encode()) < 100_000
    assert (job.last_error or "").endswith("the end")
    (failure,) = await store.failures(job.id)
    assert len((failure.traceback or "").encode()) < 100_000


async def test_endless_recursion_is_a_failure(store: SqlStore):
    def deep(n: int) -> int:
        return deep(n + 1) + 1

    job = await outcome(store, deep, n=0)
    assert (job.last_error or "").startswith("RecursionError")

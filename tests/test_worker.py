"""What a handler gets, what it may do, and what becomes of its job."""

import asyncio
import json
import logging
import math
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.context import Context, current_context
from pulsed.engine.job_logging import JobLogFilter
from pulsed.errors import CalledInEventLoop, ConfigError
from pulsed.model.job import Status
from pulsed.store.sql_store.store import SqlStore
from tests.support.clock import Clock
from tests.support.jobs import NO_WAIT
from tests.support.workers import (
    a_worker,
    finished,
    handler,
    outcome,
    result,
    submit,
    submit_with,
    working,
)

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
        together.wait(timeout=60)

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

    monkeypatch.setattr(function.codec, "encode_result", encode_result)
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

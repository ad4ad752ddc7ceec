"""Code around each run: a decorator below ``@app.job``, with the handler's signature kept."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import pytest

from pulsed.engine.context import Context
from pulsed.errors import InvalidArguments
from pulsed.handler import Handler
from pulsed.model.job import Status
from pulsed.store.base import Store
from tests.support.workers import finished, handler, outcome, result, submit, until, working

P = ParamSpec("P")
R = TypeVar("R")

events: list[str] = []
opened: ContextVar[str] = ContextVar("opened")


@dataclass
class Order:
    item: str
    count: int = 1


@pytest.fixture(autouse=True)
def _no_events() -> None:
    events.clear()


@contextlib.contextmanager
def resource() -> Iterator[None]:
    events.append("open")
    token = opened.set("a connection")
    try:
        yield
    finally:
        opened.reset(token)
        events.append("close")


@contextlib.asynccontextmanager
async def async_resource() -> AsyncIterator[None]:
    with resource():
        await asyncio.sleep(0)
        yield


def around(fn: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with resource():
            return fn(*args, **kwargs)

    return wrapper


def around_async(fn: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    @functools.wraps(fn)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        async with async_resource():
            return await fn(*args, **kwargs)

    return wrapper


def pack(ctx: Context, order: Order, note: str = "") -> str:
    events.append(f"run {ctx.attempt} {order.item} {opened.get()}")
    return f"{order.count} {order.item}{note}"


async def pack_async(ctx: Context, order: Order, note: str = "") -> str:
    await asyncio.sleep(0)
    return pack(ctx, order, note)


DECORATED = [
    pytest.param(around(pack), id="plain"),
    pytest.param(resource()(pack), id="plain, a context manager as the decorator"),
    pytest.param(around_async(pack_async), id="async"),
    pytest.param(async_resource()(pack_async), id="async, a context manager as the decorator"),
    pytest.param(around_async(around_async(pack_async)), id="async, twice"),
]


@pytest.mark.parametrize("decorated", DECORATED)
async def test_a_decorated_handler_runs_inside_of_its_decorator(store: Store, decorated):
    job = await outcome(store, decorated, order={"item": "pen", "count": 2}, note="!")
    assert (job.topic, result(job)) == (decorated.__name__, "2 pen!")
    depth = events.count("open")
    assert events == ["open"] * depth + ["run 1 pen a connection"] + ["close"] * depth


@pytest.mark.parametrize("decorated", DECORATED)
def test_its_arguments_are_checked_by_the_hints_of_the_function_inside(decorated):
    wrapped: Handler[str] = Handler(decorated)
    assert wrapped.takes_context
    assert wrapped.is_async == (decorated.__name__ == "pack_async")
    assert wrapped.decode(wrapped.encode((Order("pen"),), {})) == {"order": Order("pen")}
    with pytest.raises(InvalidArguments):
        wrapped.encode((), {"order": Order("pen"), "notes": ""})


async def test_what_a_handler_raises_closes_the_resource_and_is_reported_with_its_line(
    store: Store, caplog
):
    @around
    def broken() -> None:
        raise ConnectionError("503")

    job = await outcome(store, broken)
    assert job.last_error == "ConnectionError: 503"
    assert events == ["open", "close"]
    line = broken.__wrapped__.__code__.co_firstlineno + 2  # type: ignore[attr-defined]
    assert any(f"(test_around_runs.py:{line})" in message for message in caplog.messages)


async def test_an_async_run_that_is_cancelled_closes_its_resource(store: Store):
    @around_async
    async def wait() -> None:
        events.append("waiting")
        await asyncio.Event().wait()

    job_id = await submit(store, "wait")
    async with working(store, handler(wait, timeout=0.05, max_attempts=1)):
        await until(lambda: "waiting" in events)
        assert (await finished(store, job_id)).status is Status.DEAD_LETTERED
    assert events == ["open", "waiting", "close"]


async def test_a_plain_decorator_on_an_async_function_is_named_as_the_mistake_that_it_is(
    store: Store,
):
    """The resource would be closed before the function has begun."""
    job_id = await submit(store, "pack_async", order={"item": "pen"})
    async with working(store, around(pack_async)):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)  # an attempt more is no help
    assert job.last_error is not None
    assert "returned a coroutine that nothing awaits" in job.last_error
    assert "`async def`" in job.last_error


async def test_a_plain_decorator_may_run_an_async_function_itself(store: Store):
    @functools.wraps(pack_async)
    def in_a_loop_of_its_own(*args: Any, **kwargs: Any) -> str:
        with resource():
            return asyncio.run(pack_async(*args, **kwargs))

    assert result(await outcome(store, in_a_loop_of_its_own, order={"item": "pen"})) == "1 pen"

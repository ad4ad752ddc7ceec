"""``@app.around`` and its siblings: the user's code around runs, steps and enqueues."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import pytest

from pulsed import Context, NoRetry, Pulse, Router, Snooze, Status
from pulsed.client.job import Job
from pulsed.errors import ConfigError
from tests.support.arounds import ended, is_over, working
from tests.support.workers import until

seen: list[str] = []
colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def here() -> str:
    return "loop" if asyncio._get_running_loop() else "thread"


def plain(ctx: Context) -> Iterator[None]:
    seen.append(f"plain enters in {here()}")
    token = colour.set("red")
    try:
        yield
    finally:
        colour.reset(token)
        seen.append("plain exits")


async def on_loop(ctx: Context) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    seen.append(f"async enters in {here()}")
    token = colour.set("blue")
    try:
        yield
    finally:
        await asyncio.sleep(0)
        colour.reset(token)
        seen.append("async exits")


def declare_async(app: Pulse) -> Callable[[], Awaitable[Job[Any]]]:
    @app.job(max_attempts=1)
    async def work() -> str:
        seen.append(f"handler in {here()}, {colour.get()}")
        await asyncio.sleep(0)
        return colour.get()

    return work.aenqueue


def declare_plain(app: Pulse) -> Callable[[], Awaitable[Job[Any]]]:
    @app.job(max_attempts=1)
    def work() -> str:
        seen.append(f"handler in {here()}, {colour.get()}")
        return colour.get()

    return work.aenqueue


async def test_a_plain_one_runs_on_the_loop_around_an_async_handler(app: Pulse):
    enqueue = declare_async(app)
    app.around(plain)
    assert await (await ended(app, await enqueue())).aresult() == "red"
    assert seen == ["plain enters in loop", "handler in loop, red", "plain exits"]


async def test_a_plain_one_runs_in_the_thread_of_a_plain_handler(app: Pulse):
    enqueue = declare_plain(app)
    app.around(plain)
    assert await (await ended(app, await enqueue())).aresult() == "red"
    assert seen == ["plain enters in thread", "handler in thread, red", "plain exits"]


async def test_an_async_one_surrounds_an_async_handler(app: Pulse):
    enqueue = declare_async(app)
    app.around(on_loop)
    assert await (await ended(app, await enqueue())).aresult() == "blue"
    assert seen == ["async enters in loop", "handler in loop, blue", "async exits"]


async def test_an_async_one_surrounds_the_thread_of_a_plain_handler(app: Pulse):
    enqueue = declare_plain(app)
    app.around(plain)
    app.around(on_loop)
    assert await (await ended(app, await enqueue())).aresult() == "red"
    assert seen == [
        "async enters in loop",
        "plain enters in thread",
        "handler in thread, red",
        "plain exits",
        "async exits",
    ]


@pytest.mark.parametrize("declare", [declare_async, declare_plain])
async def test_the_first_one_declared_is_the_outermost(app: Pulse, declare: Any):
    enqueue = declare(app)
    for number in (1, 2, 3):

        @app.around
        def numbered(ctx: Context, number: int = number) -> Iterator[None]:
            seen.append(f"in {number}")
            yield
            seen.append(f"out {number}")

    await ended(app, await enqueue())
    order = [each for each in seen if not each.startswith("handler")]
    assert order == ["in 1", "in 2", "in 3", "out 3", "out 2", "out 1"]


async def test_it_gets_the_runs_context(app: Pulse):
    @app.job
    async def work() -> None: ...

    @app.around
    async def note(ctx: Context) -> AsyncIterator[None]:
        seen.append(f"{ctx.topic} {ctx.attempt} {ctx.headers['tenant']} {ctx.job_id}")
        yield
        await ctx.aprogress("nearly done")

    job = await ended(app, await work.using(headers={"tenant": "a"}).aenqueue())
    assert seen == [f"work 1 a {job.id}"]
    assert job.progress == "nearly done"


async def test_it_may_take_nothing_or_be_a_class(app: Pulse):
    enqueue = declare_plain(app)

    @app.around
    def without() -> Iterator[None]:
        seen.append("without")
        yield

    @app.around
    @contextlib.contextmanager
    def decorated(ctx: Context) -> Iterator[None]:
        seen.append("decorated")
        yield

    @app.around
    class Manager:
        def __init__(self, ctx: Context) -> None:
            self.topic = ctx.topic

        async def __aenter__(self) -> None:
            seen.append(self.topic)

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    await ended(app, await enqueue())
    assert seen[:3] == ["work", "without", "decorated"]


@pytest.mark.parametrize("given", [lambda ctx: contextlib.nullcontext(), print, 7])
def test_what_does_not_yield_is_refused(given: Any):
    with pytest.raises(ConfigError, match=r"@app\.around takes a function that yields once"):
        Pulse("sqlite://").around(given)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("around", [plain, on_loop])
async def test_an_error_of_the_handler_passes_through_it(app: Pulse, is_async: bool, around: Any):
    def fails() -> None:
        raise ValueError("mine")

    async def fails_on_loop() -> None:
        fails()

    app.around(around)
    work = app.job(topic="work", max_attempts=1)(fails_on_loop if is_async else fails)
    job = await ended(app, await work.aenqueue())
    assert (job.status, job.last_error) == (Status.DEAD_LETTERED, "ValueError: mine")
    assert seen[-1].endswith("exits")
    (failure,) = await app.jobs.afailures(job.id)
    assert "in fails" in (failure.traceback or "").splitlines()[1]


@pytest.mark.parametrize("is_async", [True, False])
async def test_it_may_turn_the_handlers_error_into_another(app: Pulse, is_async: bool):
    @app.job
    async def fails() -> None:
        raise KeyError("nobody")

    @app.job
    def fails_in_thread() -> None:
        raise KeyError("nobody")

    @app.around
    def turn() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise NoRetry("no such user") from error

    job = await ended(app, await (fails if is_async else fails_in_thread).aenqueue())
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
    assert job.last_error == "no such user"


async def test_an_error_that_it_catches_is_a_success(app: Pulse):
    @app.job
    async def fails() -> str:
        raise ValueError

    @app.around
    async def forgive() -> AsyncIterator[None]:
        with contextlib.suppress(ValueError):
            yield

    job = await ended(app, await fails.aenqueue())
    assert job.status is Status.SUCCEEDED
    assert await job.aresult() is None


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("around", ["plain", "async"])
async def test_its_own_error_is_the_runs(app: Pulse, when: str, around: str):
    @app.job(max_attempts=1)
    def work() -> None:
        seen.append("handler")

    def fail(now: str) -> None:
        if now == when:
            raise ConnectionError(now)

    if around == "plain":

        @app.around
        def bad() -> Iterator[None]:
            fail("before")
            yield
            fail("after")

    else:

        @app.around
        async def bad_on_loop() -> AsyncIterator[None]:
            fail("before")
            yield
            fail("after")

    job = await ended(app, await work.aenqueue())
    assert job.last_error == f"ConnectionError: {when}"
    assert seen == ([] if when == "before" else ["handler"])


async def test_a_run_may_be_snoozed_before_its_handler(app: Pulse):
    enqueue, times = declare_async(app), [1]

    @app.around
    async def not_yet() -> AsyncIterator[None]:
        if times:
            times.clear()
            raise Snooze(0)
        yield

    job = await ended(app, await enqueue())
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)
    assert len(seen) == 1


async def test_a_wait_passes_through_and_the_next_run_is_another(app: Pulse):
    @app.job
    async def flow(ctx: Context) -> str:
        seen.append(f"{await ctx.step(in_step)} {await ctx.step(in_thread)}")
        await ctx.sleep(0.01)
        return colour.get()

    async def in_step() -> str:
        return colour.get()

    def in_thread() -> str:
        return colour.get()

    @app.around
    def note() -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001
            seen.append(f"error: {error!r}")
        seen.append("returned")

    app.around(on_loop)
    job = await ended(app, await flow.aenqueue())
    assert await job.aresult() == "blue"
    runs = [each for each in seen if each in ("async enters in loop", "blue blue", "returned")]
    assert runs == ["async enters in loop", "blue blue"] * 2 + ["returned"]


@pytest.mark.parametrize("around", [plain, on_loop])
async def test_a_cancelled_handler_passes_through(app: Pulse, around: Any):
    begun = asyncio.Event()

    @app.job
    async def slow() -> None:
        begun.set()
        await asyncio.sleep(3600)

    app.around(around)
    async with working(app):
        job = await slow.aenqueue()
        await begun.wait()
        await job.acancel()
        await until(lambda: is_over(job))
    assert job.status is Status.CANCELLED
    assert seen[-1].endswith("exits")


async def test_a_timeout_holds_for_what_surrounds_the_handler_too(app: Pulse):
    @app.job(timeout=0.02, max_attempts=1)
    async def quick() -> None: ...

    @app.around
    async def slow() -> AsyncIterator[None]:
        await asyncio.sleep(3600)
        yield

    job = await ended(app, await quick.aenqueue())
    assert job.last_error == "timed out after 0.02 s"


async def test_a_plain_handler_that_times_out_is_reported_at_once_and_exits_later(app: Pulse):
    go_on, stuck = threading.Event(), threading.Event()

    @app.job(timeout=0.02, max_attempts=1)
    def slow() -> None:
        stuck.set()
        go_on.wait(30)

    app.around(on_loop)
    job = await slow.aenqueue()
    async with working(app, concurrency=10):
        await until(lambda: is_over(job))
        assert job.last_error == "timed out after 0.02 s"
        assert stuck.is_set()
        assert "async exits" not in seen
        go_on.set()
        await until(lambda: "async exits" in seen)


async def test_an_exit_of_the_process_inside_is_a_failure_of_the_run(app: Pulse):
    @app.job(max_attempts=1)
    def work() -> None: ...

    @app.around
    async def leave() -> AsyncIterator[None]:
        yield
        raise SystemExit(3)

    job = await ended(app, await work.aenqueue())
    assert job.last_error == "SystemExit: 3"


async def test_jobs_of_routers_and_lifespans_are_inside(app: Pulse):
    router = Router()

    @router.job
    async def work() -> None:
        seen.append("handler")

    @app.lifespan
    async def life(_: Pulse) -> AsyncIterator[None]:
        seen.append("life")
        yield
        seen.append("end of life")

    @app.around
    def note() -> Iterator[None]:
        seen.append("around")
        yield

    app.include(router)
    await ended(app, await work.aenqueue())
    assert seen == ["life", "around", "handler", "end of life"]

"""Workflows as an app's user meets them: steps by decorator, signals, waiting for jobs, retries."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from pulsed import (
    Context,
    InvalidJob,
    InvalidTransition,
    Job,
    JobNotFound,
    Pulse,
    Router,
    Status,
    collect_all,
)
from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import ConfigError, InvalidHandler
from pulsed.model.job import JobFilter
from pulsed.store.sql_store.store import SqlStore
from tests.support.apps import working
from tests.support.jobs import NO_WAIT
from tests.support.workers import finished, handler, in_status, submit, until
from tests.support.workers import working as working_on
from tests.support.workflows import call_of, names_of


@pytest.fixture
async def app(url: str) -> Any:
    app = Pulse(url)
    yield app
    await app.aclose()


async def until_status(job: Job[Any], status: Status) -> None:
    async def look() -> bool:
        return (await job.arefresh()).status is status

    await until(look, what=f"{job} {status}")


# -- steps by decorator ---------------------------------------------------------------------------


async def test_a_declared_step_is_a_step_in_a_job_and_itself_elsewhere(app: Pulse):
    calls: list[tuple[int, int]] = []

    @app.step
    async def add(a: int, *, b: int = 1) -> int:
        calls.append((a, b))
        return a + b

    @app.step(name="both", retry=2, timeout=5)
    async def add_twice(a: int) -> int:
        return await add(a) + await add(a, b=2)

    @app.job
    async def work(ctx: Context) -> list[int]:
        values = [await add(1), await add(2, b=3), await add_twice(10)]
        if ctx.attempt == 1:
            raise ConnectionError
        return values

    assert await add(1, b=1) == 2
    calls.clear()
    job = await work.using(max_attempts=2, backoff=NO_WAIT).aenqueue()
    async with working(app):
        assert await job.aresult(20) == [2, 5, 23]
    assert calls == [(1, 1), (2, 3), (10, 1), (10, 2)]
    assert await names_of(app.store, job.id) == ["add", "add (use 2)", "both"]


async def test_keyword_arguments_of_a_declared_step_count_as_its_input(app: Pulse):
    numbers = [1, 2]

    @app.step
    async def add(*, b: int) -> int:
        return b

    @app.job
    async def work(ctx: Context) -> None:
        await add(b=numbers.pop())
        raise ConnectionError

    job = await work.using(max_attempts=2, backoff=NO_WAIT).aenqueue()
    async with working(app):
        await until_status(job, Status.DEAD_LETTERED)
    assert "has other arguments" in (job.last_error or "")


async def test_a_router_has_steps_as_well(app: Pulse):
    router = Router()

    @router.step(name="one")
    async def first() -> int:
        return 1

    @router.job
    async def work() -> int:  # the context is found without being asked for
        return await first()

    app.include(router)
    job = await work.aenqueue()
    async with working(app):
        assert await job.aresult(20) == 1
    assert await names_of(app.store, job.id) == ["one"]


async def test_what_cannot_be_a_declared_step_is_refused(app: Pulse):
    with pytest.raises(InvalidHandler, match="async def"):

        @app.step  # type: ignore[arg-type]
        def plain() -> None: ...

    @app.step(tx=True)
    async def write(connection: Any, n: int) -> None: ...

    with pytest.raises(ConfigError, match="in a job"):
        await write(1)


@pytest.mark.embedded("a transaction cannot reach through a server")
async def test_a_declared_step_may_have_a_transaction(app: Pulse):
    @app.step(tx=True)
    async def write(connection: Any, n: int) -> int:
        assert connection is not None
        return n

    @app.job
    async def work() -> int:
        return await write(4)

    job = await work.aenqueue()
    async with working(app):
        assert await job.aresult(20) == 4


# -- signals --------------------------------------------------------------------------------------


async def test_signals_are_sent_by_the_app_or_the_job(app: Pulse):
    @app.job
    async def work(ctx: Context) -> list[Any]:
        return [await ctx.wait_signal("go", int), await ctx.wait_signal("stop")]

    job = await work.aenqueue()
    await app.asignal(job.id, "go", 5)
    async with working(app):
        await until_status(job, Status.WAITING)
        await job.asignal("stop")
        assert await job.aresult(20) == [5, None]
        with pytest.raises(InvalidTransition, match="SUCCEEDED already and takes no signals"):
            await app.asignal(str(job.id), "go", 5)
    with pytest.raises(JobNotFound):
        await app.asignal(UUID(int=5), "go")


async def test_a_signal_that_cannot_be_stored_is_refused(app: Pulse):
    for name, payload in [("", 1), ("go", float("nan")), ("go", object()), ("go", "a\0b")]:
        with pytest.raises(InvalidJob):
            await app.asignal(UUID(int=5), name, payload)


def test_signals_can_be_sent_without_a_loop(url: str):
    with Pulse(url) as app:

        @app.job
        async def work(ctx: Context) -> int:
            return await ctx.wait_signal("go", int)

        job = work.enqueue()
        app.signal(job.id, "go", 1)
        job.signal("go", 2)

        async def run() -> int:
            async with working(app):
                return await job.aresult(20)

        assert asyncio.run(run()) == 1


# -- other jobs -----------------------------------------------------------------------------------


async def test_waiting_for_a_job_decodes_its_result(app: Pulse):
    @app.job
    async def pair(n: int) -> tuple[int, str]:
        return n, str(n)

    @app.job
    async def work(ctx: Context) -> bool:
        job = await ctx.step(enqueue, name="enqueue")
        found = await app.jobs.aget(job)
        return bool(await ctx.wait_for(found) == (1, "1") and await ctx.wait_for(job) == [1, "1"])

    async def enqueue() -> UUID:
        return (await pair.aenqueue(1)).id

    job = await work.aenqueue()
    async with working(app):
        assert await job.aresult(20) is True


async def test_children_are_bound_calls(app: Pulse):
    @app.job(max_attempts=1)
    async def half(n: int) -> float:
        if n % 2:
            raise ValueError(n)
        return n / 2

    @app.job
    async def work(ctx: Context) -> list[float]:
        halves = await ctx.fan_out([half.bind(n) for n in range(4)], strategy=collect_all)
        assert [failure.index for failure in halves.failures] == [1, 3]
        return halves.values

    job = await work.aenqueue()
    async with working(app):
        assert await job.aresult(20) == [0.0, 1.0]
    assert len(await app.store.list_jobs(JobFilter(parent=job.id))) == 4


# -- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_retry_goes_on_from_the_steps_or_begins_afresh(app: Pulse, fresh: bool):
    calls: list[str] = []
    failures = [ConnectionError()]

    async def note(what: str) -> None:
        calls.append(what)

    @app.job(max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.step(note, "first")
        if failures:
            raise failures.pop()
        await ctx.step(note, "second")

    job = await work.aenqueue()
    async with working(app):
        await until_status(job, Status.DEAD_LETTERED)
        if fresh:
            await app.jobs.aretry(job.id, fresh=True)
        else:
            await job.aretry()
        await until_status(job, Status.SUCCEEDED)
    assert calls == (["first", "first", "second"] if fresh else ["first", "second"])


async def test_cancelling_a_workflow_cancels_what_it_waits_for(app: Pulse):
    @app.job
    async def leaf(ctx: Context) -> None:
        await ctx.wait_signal("never")

    @app.job
    async def branch(ctx: Context) -> None:
        await ctx.fan_out([leaf.bind(), leaf.bind()])

    @app.job
    async def root(ctx: Context) -> None:
        await ctx.fan_out([branch.bind()])

    async def all_wait() -> bool:
        return (await app.jobs.acounts())[Status.WAITING] == 4

    job = await root.aenqueue()
    async with working(app):
        await until(all_wait)
        await job.acancel()
        counts = await app.jobs.acounts()
    assert counts[Status.CANCELLED] == 4


@pytest.mark.embedded("reaches into the store to make a process die")
async def test_upkeep_cancels_children_that_nobody_told(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    """The process that cancelled their parent died right after it."""

    async def dies(_: Any) -> None: ...

    async def child() -> None: ...

    nobody_s = handler(child)

    async def parent(ctx: Context) -> None:
        await ctx.fan_out([call_of(nobody_s)])

    job_id = await submit(store, "parent")
    async with working_on(store, parent) as it:
        await in_status(store, job_id, Status.WAITING)
        with monkeypatch.context() as patch:
            patch.setattr(store, "follow", dies)
            await store.cancel([job_id])
        (row,) = await store.list_jobs(JobFilter(parent=job_id))
        assert row.status is Status.PENDING
        await Watchdog(store, tick=10, describe=it.worker.describe).tick()
        assert (await finished(store, row.id)).status is Status.CANCELLED

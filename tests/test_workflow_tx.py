"""Steps in a transaction of the jobs' database: their effect and their checkpoint are one."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pulsed.engine.context import Context
from pulsed.engine.workflow import outage
from pulsed.errors import LeaseLost, TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Status
from pulsed.model.step import StepState
from pulsed.store import retrying
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.step_thread import StepThread
from tests.support.backends import Backend
from tests.support.jobs import NO_WAIT
from tests.support.workers import (
    finished,
    handler,
    outcome,
    result,
    row,
    submit,
    until,
    working,
)
from tests.support.workflows import names_of, parked, steps_of

pytestmark = pytest.mark.embedded("a transaction cannot reach through a server")

INSERT = "INSERT INTO effects (n) VALUES (1)"


@pytest.fixture
def effects(backend: Backend) -> Iterator[Any]:
    """Counts the rows that steps have committed."""
    backend.execute("DROP TABLE IF EXISTS effects")
    backend.execute("CREATE TABLE effects (n INTEGER)")

    def count() -> int:
        return int(backend.execute("SELECT count(*) FROM effects")[0][0])

    yield count
    backend.execute("DROP TABLE IF EXISTS effects")


async def insert(connection: Any) -> int:
    """Write a row: asyncpg's method is a coroutine, sqlite3's is not."""
    done = connection.execute(INSERT)
    if asyncio.iscoroutine(done):
        await done
    return 5


def plain_insert(connection: Any) -> int:
    connection.execute(INSERT)
    return 5


@pytest.mark.parametrize("fn", [insert, plain_insert], ids=["async", "plain"])
async def test_the_effect_and_the_checkpoint_are_committed_together_and_once(
    store: SqlStore, effects: Any, fn: Any
):
    async def work(ctx: Context) -> int:
        value = await ctx.step(fn, tx=True)
        if ctx.attempt < 3:
            raise ConnectionError
        return int(value)

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):
        assert result(await finished(store, job_id)) == 5
    assert effects() == 1
    assert await names_of(store, job_id) == [fn.__name__]


@pytest.mark.parametrize("fn", [insert, plain_insert], ids=["async", "plain"])
async def test_an_error_takes_the_effect_back(store: SqlStore, effects: Any, fn: Any):
    async def fails(connection: Any) -> None:
        await insert(connection)
        raise ConnectionError("after all")

    def plain_fails(connection: Any) -> None:
        plain_insert(connection)
        raise ConnectionError("after all")

    async def work(ctx: Context) -> None:
        await ctx.step(fails if fn is insert else plain_fails, tx=True)

    job = await outcome(store, work)
    assert job.last_error == "ConnectionError: after all"
    assert effects() == 0
    assert await steps_of(store, job.id) == []


async def test_a_failed_try_is_taken_back_before_the_next(store: SqlStore, effects: Any):
    tries: list[int] = []

    async def flaky(connection: Any) -> int:
        await insert(connection)
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError
        return 5

    async def work(ctx: Context) -> Any:
        return await ctx.step(flaky, tx=True, retry=3)

    job = await outcome(store, work)
    assert (result(job), effects(), len(tries)) == (5, 1, 2)
    assert (await steps_of(store, job.id))[0].tries == 2


@pytest.mark.parametrize("times", [1, 20], ids=["blinks", "is away"])
@pytest.mark.parametrize("where", ["opening", "committing"])
async def test_a_database_that_blinks_or_is_away_runs_the_step_again(
    store: SqlStore, effects: Any, monkeypatch: pytest.MonkeyPatch, where: str, times: int
):
    """Nothing was written then; it does not count as a failure of the step, nor as an attempt."""
    monkeypatch.setattr(outage, "OUTAGE_BACKOFF", RetryPolicy(initial=0, max=0))
    errors = [TransientStorageError("it blinked")] * times
    transaction = store.step_transaction

    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(retrying, "pause", at_once)

    @asynccontextmanager
    async def blinking(*args: Any, **options: Any) -> Any:
        if where == "opening" and errors:
            raise errors.pop()
        async with transaction(*args, **options) as tx:
            if errors:

                async def refuse(_: Any) -> None:
                    raise errors.pop()

                monkeypatch.setattr(tx, "commit", refuse)
            yield tx

    monkeypatch.setattr(store, "step_transaction", blinking)

    async def work(ctx: Context) -> Any:
        return await ctx.step(insert, tx=True)

    job = await outcome(store, work)
    assert (result(job), effects(), errors) == (5, 1, [])


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_database_of_the_steps_own_is_not_waited_for(
    store: SqlStore, effects: Any, is_async: bool
):
    calls: list[int] = []

    def plain_away(connection: Any) -> None:
        calls.append(1)
        raise TransientStorageError("the other one is away")

    async def away(connection: Any) -> None:
        plain_away(connection)

    async def work(ctx: Context) -> None:
        await ctx.step(away if is_async else plain_away, tx=True)

    job = await outcome(store, work)
    assert job.status is Status.DEAD_LETTERED
    assert "the other one is away" in (job.last_error or "")
    assert (calls, effects()) == ([1], 0)


async def test_a_run_that_lost_its_lease_leaves_no_effect(
    store: SqlStore, backend: Backend, effects: Any
):
    async def work(ctx: Context) -> str:
        backend.execute("UPDATE pulse_jobs SET lease_token = lease_token + 1")
        try:
            await ctx.step(insert, tx=True)
        except LeaseLost:
            return "lost"
        finally:
            backend.execute("UPDATE pulse_jobs SET lease_token = lease_token - 1")
        return "kept"

    job = await outcome(store, work)
    assert (result(job), effects()) == ("lost", 0)
    assert await steps_of(store, job.id) == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_step_that_takes_too_long_leaves_no_effect(
    store: SqlStore, effects: Any, is_async: bool
):
    """A thread cannot be stopped: its end is waited for, or it would write beside the rollback."""
    late = asyncio.Event()
    ended: list[int] = []
    seen: list[int] = []

    async def slow(connection: Any) -> None:
        await insert(connection)
        await late.wait()

    def plain_slow(connection: Any) -> None:
        plain_insert(connection)
        threading.Event().wait(0.05)  # longer than it may
        ended.append(1)

    async def work(ctx: Context) -> None:
        try:
            await ctx.step(slow if is_async else plain_slow, tx=True, timeout=0.01)
        finally:
            seen.append(len(ended))

    job = await outcome(store, work)
    assert "took longer than" in (job.last_error or "")
    assert seen == [0 if is_async else 1]
    assert effects() == 0


async def test_a_step_that_fails_for_good_leaves_no_effect(store: SqlStore, effects: Any):
    async def fails(connection: Any) -> None:
        await insert(connection)
        raise ConnectionError

    async def work(ctx: Context) -> None:
        await ctx.step(fails, tx=True, retry=1)

    job_id = await submit(store, "work")
    async with working(store, work):
        assert (await finished(store, job_id)).status is Status.DEAD_LETTERED
    assert effects() == 0
    assert [step.state for step in await steps_of(store, job_id)] == [StepState.FAILED]


async def test_a_transaction_inside_a_step_is_refused(store: SqlStore):
    async def outer(ctx: Context) -> None:
        await ctx.step(insert, tx=True)

    async def work(ctx: Context) -> None:
        await ctx.step(outer, ctx)

    assert "inside of another step" in await parked(store, handler(work))


@pytest.mark.parametrize("fn", [insert, plain_insert], ids=["async", "plain"])
async def test_many_at_once_do_not_stand_in_each_others_way(
    store: SqlStore, effects: Any, fn: Any, caplog: pytest.LogCaptureFixture
):
    async def work(ctx: Context) -> int:
        return int(await ctx.step(fn, tx=True))

    jobs = [await submit(store, "work") for _ in range(20)]
    async with working(store, handler(work), concurrency=20):
        assert {(await finished(store, job_id)).attempts for job_id in jobs} == {1}
    assert effects() == 20
    assert not [record for record in caplog.records if "locked" in record.getMessage()]


@pytest.mark.parametrize("fn", [insert, plain_insert], ids=["async", "plain"])
async def test_it_needs_none_of_the_loops_own_threads(store: SqlStore, effects: Any, fn: Any):
    async def work(ctx: Context) -> int:
        return int(await ctx.step(fn, tx=True))

    async with working(store, handler(work)):
        loop, end = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, end.wait)
        try:
            await finished(store, await submit(store, "work"))
        finally:
            end.set()
            await busy
    assert effects() == 1


async def test_a_connection_that_opens_too_late_is_closed():
    thread = StepThread()
    begun, go, closed = threading.Event(), threading.Event(), threading.Event()

    def connect() -> str:
        begun.set()
        go.wait()
        return "connection"

    opening = asyncio.ensure_future(thread.open(connect, lambda _: closed.set()))
    await until(begun.is_set)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not closed.is_set()
    go.set()
    await until(closed.is_set)
    thread.end()


async def test_one_whose_thread_does_not_end_keeps_nobody_from_writing(
    store: SqlStore, effects: Any
):
    """On SQLite all writers wait for it; after its timeout it cannot write any more."""
    began, go_on, refused = threading.Event(), threading.Event(), threading.Event()

    def endless(connection: Any) -> None:
        plain_insert(connection)
        began.set()
        go_on.wait()
        try:
            plain_insert(connection)
        except sqlite3.Error:
            refused.set()
            raise

    async def hangs(ctx: Context) -> None:
        await ctx.step(endless, tx=True, timeout=0.01)

    async def work(ctx: Context) -> int:
        return int(await ctx.step(plain_insert, tx=True))

    try:
        async with working(store, handler(hangs, max_attempts=1), handler(work)):
            hanging = await submit(store, "hangs")
            await until(began.is_set)
            await asyncio.sleep(0.02)  # a later timer of the same loop: its time is over by then
            assert result(await finished(store, await submit(store, "work"))) == 5
            assert (await row(store, hanging)).status is Status.RUNNING
            go_on.set()
            assert "took longer than" in str((await finished(store, hanging)).last_error)
    finally:
        go_on.set()
    assert refused.is_set() == isinstance(store, SqliteStore)
    assert effects() == 1

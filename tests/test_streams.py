"""What handlers and steps emit, and what readers in other processes get of it."""

import asyncio
from typing import Any

import pytest

from pulsed import Context, Pulse
from pulsed.client.stream import ItemStream
from pulsed.engine.workflow import run_stream
from pulsed.errors import (
    CalledInEventLoop,
    CannotSuspend,
    InvalidOption,
    InvalidPayload,
    JobNotFound,
    LeaseLost,
    StorageRefused,
)
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from pulsed.model.outcome import Succeeded
from pulsed.model.stream import Emission
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from tests.support.jobs import ALICE, BOB, NO_WAIT, a_policy, claim_one, reap, running, settle
from tests.support.workers import finished, handler, in_status, submit, until, working


async def items_of(store: Store, job_id: Any, **options: Any) -> list[Any]:
    return [item async for item in ItemStream(lambda: store, job_id, **options)]


async def values_of(store: Store, job_id: Any, **options: Any) -> list[Any]:
    return [item.value for item in await items_of(store, job_id, **options)]


async def flushed(ctx: Context) -> None:
    assert ctx._stream is not None
    await ctx._stream.flush()


async def test_what_a_handler_emits_is_read_until_it_ends(store):
    async def count(ctx: Context) -> None:
        for n in range(3):
            await ctx.aemit({"n": n})

    job_id = await submit(store, "count")
    async with working(store, count):
        found = await items_of(store, job_id)
    assert [item.value for item in found] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [item.position for item in found] == [1, 2, 3]
    assert {item.run for item in found} == {1}
    assert await values_of(store, job_id, after=2) == [{"n": 2}]


async def test_a_reader_gets_items_while_the_job_runs(store):
    go_on = asyncio.Event()

    async def talk(ctx: Context) -> None:
        await ctx.aemit("first")
        await go_on.wait()
        await ctx.aemit("last")

    job_id = await submit(store, "talk")
    async with working(store, talk):
        stream = aiter(ItemStream(lambda: store, job_id))
        assert (await anext(stream)).value == "first"
        assert [each async for each in ItemStream(lambda: store, job_id, follow=False)]
        go_on.set()
        assert [item.value async for item in stream] == ["last"]


async def test_a_plain_handler_emits_from_its_thread(store):
    def count(ctx: Context) -> None:
        for n in range(run_stream.MOST_QUEUED + 10):  # more than may be queued
            ctx.emit(n)

    job_id = await submit(store, "count")
    async with working(store, count):
        row = await finished(store, job_id)
    assert row.status is Status.SUCCEEDED
    assert await values_of(store, job_id) == [*range(run_stream.MOST_QUEUED + 10)]


async def test_many_items_share_a_write(store: SqlStore, monkeypatch):
    written: list[int] = []
    emit = store.streams.emit

    async def counted(emissions: Any) -> Any:
        written.append(sum(len(each.values) for each in emissions))
        return await emit(emissions)

    monkeypatch.setattr(store.streams, "emit", counted)

    async def count(ctx: Context) -> None:
        for n in range(400):
            await ctx.aemit(n)

    job_id = await submit(store, "count")
    async with working(store, count):
        await finished(store, job_id)
    assert sum(written) == 400
    assert len(written) < 10


async def test_a_handler_that_is_faster_than_the_database_waits(store: SqlStore, monkeypatch):
    writes, go_on = asyncio.Event(), asyncio.Event()
    emit = store.streams.emit
    emitted: list[int] = []

    async def slow(emissions: Any) -> Any:
        writes.set()
        await go_on.wait()
        return await emit(emissions)

    monkeypatch.setattr(store.streams, "emit", slow)

    async def count(ctx: Context) -> None:
        for n in range(2 * run_stream.MOST_QUEUED):
            await ctx.aemit(n)
            emitted.append(n)
            await asyncio.sleep(0)

    job_id = await submit(store, "count")
    async with working(store, count):
        await writes.wait()
        await until(lambda: len(emitted) >= run_stream.MOST_QUEUED)
        for _ in range(10):
            await asyncio.sleep(0)
        in_flight = len(emitted)
        go_on.set()
        await finished(store, job_id)
    assert in_flight < 2 * run_stream.MOST_QUEUED
    assert len(await values_of(store, job_id)) == 2 * run_stream.MOST_QUEUED


# -- runs and replays -----------------------------------------------------------------------------


async def test_a_plain_job_that_is_retried_emits_anew_as_another_run(store):
    async def flaky(ctx: Context) -> None:
        await ctx.aemit(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError

    job_id = await submit(store, "flaky")
    async with working(store, handler(flaky, backoff=NO_WAIT)):
        await finished(store, job_id)
    found = await items_of(store, job_id)
    assert [(item.run, item.value) for item in found] == [(1, "attempt 1"), (2, "attempt 2")]


async def test_what_a_workflow_has_emitted_before_a_stored_call_is_not_emitted_again(store, clock):
    async def fetch(ctx: Context, attempt: int) -> None:
        await ctx.aemit("in the step")

    async def flow(ctx: Context) -> None:
        await ctx.aemit("before")
        await ctx.step(fetch, ctx, 1)
        await ctx.aemit("between")
        await ctx.sleep(60)
        await ctx.aemit(f"after, in attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError
        await ctx.aemit("last")

    job_id = await submit(store, "flow")
    async with working(store, handler(flow, backoff=NO_WAIT)):
        await in_status(store, job_id, Status.WAITING)
        clock.advance(61)
        await finished(store, job_id)
    assert await values_of(store, job_id) == [
        "before",
        "in the step",
        "between",
        "after, in attempt 1",
        "after, in attempt 2",
        "last",
    ]


async def test_items_are_stored_before_the_call_that_ends_their_replay(
    store: SqlStore, monkeypatch
):
    """Otherwise a crash between the two would lose them: no run would emit them again."""
    order: list[str] = []
    emit, record = store.streams.emit, store.workflows.record

    async def slow_emit(emissions: Any) -> Any:
        await asyncio.sleep(0)
        held = await emit(emissions)
        order.extend(each.values[0] for each in emissions)
        return held

    async def noted(records: Any) -> Any:
        order.extend(each.checkpoint.name for each in records)
        return await record(records)

    monkeypatch.setattr(store.streams, "emit", slow_emit)
    monkeypatch.setattr(store.workflows, "record", noted)

    async def talk(ctx: Context) -> None:
        await ctx.aemit("inside")

    async def flow(ctx: Context) -> None:
        await ctx.aemit("before")
        await ctx.step(talk, ctx)

    job_id = await submit(store, "flow")
    async with working(store, flow):
        await finished(store, job_id)
    assert order == ['"before"', '"inside"', "talk"]


async def test_a_plain_step_emits_from_its_thread(store):
    def fetch(ctx: Context) -> str:
        ctx.emit("in a thread")
        return "fetched"

    async def flow(ctx: Context) -> None:
        await ctx.aemit(await ctx.step(fetch, ctx))

    job_id = await submit(store, "flow")
    async with working(store, flow):
        await finished(store, job_id)
    assert await values_of(store, job_id) == ["in a thread", "fetched"]


@pytest.mark.embedded("a server has no transactions of steps")
async def test_a_step_with_a_transaction_cannot_emit(store: SqlStore):
    async def write(_: Any, ctx: Context) -> None:
        with pytest.raises(CannotSuspend, match="emit it after the step"):
            await ctx.aemit(1)

    async def flow(ctx: Context) -> None:
        await ctx.step(write, ctx, tx=True)

    job_id = await submit(store, "flow")
    async with working(store, flow):
        assert (await finished(store, job_id)).status is Status.SUCCEEDED


# -- what cannot be emitted -----------------------------------------------------------------------


async def test_a_run_without_its_lease_emits_nothing(store, clock):
    job_id = await submit(store, "zombie")
    assignment = await claim_one(store, ALICE, topics=[a_policy("zombie")])
    ctx = Context(assignment, store)
    await ctx.aemit("mine")
    await flushed(ctx)
    clock.advance(31)
    await reap(store)
    clock.advance(3600)
    other = Context(await claim_one(store, BOB, topics=[a_policy("zombie")]), store)
    await ctx.aemit("a zombie's")
    with pytest.raises(LeaseLost):
        await flushed(ctx)
    with pytest.raises(LeaseLost):
        await ctx.aemit("again")
    await other.aemit("another's")
    await flushed(other)
    found = await items_of(store, job_id, follow=False)
    assert [(item.position, item.run, item.value) for item in found] == [
        (1, 1, "mine"),
        (2, 2, "another's"),
    ]


async def test_an_item_that_the_database_refuses_fails_the_run(store: SqlStore, monkeypatch):
    async def refuse(_: Any) -> Any:
        raise StorageRefused("no such luck")

    monkeypatch.setattr(store.streams, "emit", refuse)

    async def count(ctx: Context) -> None:
        await ctx.aemit(1)

    job_id = await submit(store, "count")
    async with working(store, handler(count, max_attempts=1)):
        row = await finished(store, job_id)
    assert row.status is Status.DEAD_LETTERED
    assert "no such luck" in (row.last_error or "")


async def test_only_json_of_a_bounded_size_is_emitted(store):
    errors: list[str] = []

    async def bad(ctx: Context) -> None:
        for value in (object(), "x" * 70_000, float("nan"), "\0"):
            try:
                await ctx.aemit(value)
            except InvalidPayload as error:
                errors.append(str(error))
        with pytest.raises(CalledInEventLoop, match="aemit"):
            ctx.emit(1)

    job_id = await submit(store, "bad")
    async with working(store, bad):
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert len(errors) == 4
    assert "70,002 bytes" in errors[1]
    assert await values_of(store, job_id) == []


# -- readers --------------------------------------------------------------------------------------


async def test_a_reader_of_no_job_is_told_so_and_one_of_a_removed_job_ends(store):
    with pytest.raises(JobNotFound):
        await items_of(store, new_job_id())
    with pytest.raises(InvalidOption):
        ItemStream(lambda: store, new_job_id(), after=-1)
    job_id = await submit(store, "never")
    stream = ItemStream(lambda: store, job_id, follow=False)
    assert [item async for item in stream] == []
    await store.delete([job_id])
    assert [item async for item in stream] == []


def test_a_blocking_reader_gets_the_same(backend):
    store = backend.open()
    run = run_blocking(running(store))
    run_blocking(store.streams.emit([Emission(run.lease, 1, 1, ["0", "1", "2"])]))
    run_blocking(settle(store, run, Succeeded("1")))
    app = Pulse.over(store, "sqlite://")
    assert [item.value for item in app.stream(run.job_id)] == [0, 1, 2]
    stream = app.stream(str(run.job_id), after=1)
    assert next(iter(stream)).value == 1
    assert [item.value for item in stream] == [2]  # goes on
    assert [item.value for item in app.jobs.get(run.job_id).stream()] == [0, 1, 2]
    run_blocking(store.aclose())


async def test_a_blocking_reader_is_refused_in_an_event_loop(store):
    with pytest.raises(CalledInEventLoop):
        list(ItemStream(lambda: store, new_job_id()))

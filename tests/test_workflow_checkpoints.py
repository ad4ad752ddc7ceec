"""The result of a step is stored, whatever happens to its run or to the database."""

import asyncio
import threading
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.context import Context
from pulsed.engine.workflow import outage
from pulsed.errors import LeaseLost, StorageFull, StorageRefused, TransientStorageError
from pulsed.model.backoff import Backoff, RetryPolicy
from pulsed.model.job import Status
from pulsed.model.outcome import Report, Succeeded
from pulsed.model.workflow import Record
from pulsed.store.sql_store.store import SqlStore
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
from tests.support.workflows import names_of, nothing, steps_of


class Gate:
    """Holds back what is recorded until it is opened."""

    def __init__(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[Record]] = []
        self.open = asyncio.Event()
        record = store.workflows.record

        async def gated(records: Any) -> Any:
            self.batches.append(list(records))
            await self.open.wait()
            return await record(records)

        monkeypatch.setattr(store.workflows, "record", gated)


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
    taken: list[int] = []

    async def note(n: int) -> int:
        taken.append(n)
        return n

    async def work(ctx: Context, n: int) -> int:
        return await ctx.step(note, n)

    ids = [await submit(store, "work", n=n) for n in range(6)]
    async with working(store, work):
        await until(lambda: gate.batches and len(taken) == 6)
        gate.open.set()
        rows = [await finished(store, job_id) for job_id in ids]
    assert [result(row) for row in rows] == list(range(6))
    assert sum(map(len, gate.batches)) == 6
    assert len(gate.batches) < 6


async def test_a_run_that_has_lost_its_lease_hears_so(store: SqlStore):
    lost: list[LeaseLost] = []

    async def charge() -> int:
        return 5

    async def work(ctx: Context) -> None:
        (worker,) = await store.workers()
        (held,) = await store.held(worker.id)
        await store.settle([Report(held, Succeeded("null"))])
        try:
            await ctx.step(charge)
        except LeaseLost as error:
            lost.append(error)
            raise

    job = await outcome(store, work)
    assert [each.job_id for each in lost] == [job.id]
    assert await steps_of(store, job.id) == []


@pytest.mark.parametrize("verb", ["history", "record"])
async def test_a_database_that_is_away_for_longer_does_not_cost_an_attempt(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, verb: str
):
    """Nor does a step run again that has run: its value waits."""
    monkeypatch.setattr(outage, "OUTAGE_BACKOFF", RetryPolicy(initial=0, max=0))
    errors = [TransientStorageError("away"), StorageFull("no room")]
    original = getattr(store.workflows, verb)
    calls: list[int] = []

    async def away(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return await original(*args)

    monkeypatch.setattr(store.workflows, verb, away)

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
    gated = store.workflows.record

    async def picky(records: Any) -> Any:
        if any(record.checkpoint.name == "bad" for record in records):
            await gate.open.wait()
            raise StorageRefused("no such character")
        return await gated(records)

    monkeypatch.setattr(store.workflows, "record", picky)

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


async def test_a_history_is_read_once_for_each_run(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    reads: list[UUID] = []
    history = store.workflows.history

    async def counted(job_id: UUID) -> Any:
        reads.append(job_id)
        return await history(job_id)

    monkeypatch.setattr(store.workflows, "history", counted)

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

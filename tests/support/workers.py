"""A worker inside the test's own event loop, and ways to wait for what it does.

Nothing here waits for time to pass: ``until`` polls a condition, and fails after a deadline
that only a hung test reaches.
"""

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from pulsed.engine.worker.options import WorkerOptions
from pulsed.engine.worker.worker import Exit, Worker
from pulsed.handler import Handler, Registry
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobRow, Lease, NewJob, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.outcome import Beat
from pulsed.store.base import Store
from tests.support.backends import Backend
from tests.support.jobs import never_away
from tests.support.waiting import pauses

PATIENCE = 60.0
"""Seconds after which a wait is a failure, also on a slow machine."""

NEVER = 3600.0


def handler(fn: Callable[..., Any], **options: Any) -> Handler[Any]:
    """Make a handler of a function, as ``@app.job(...)`` does."""
    return Handler(fn, **options)


def registry_of(*handlers: Handler[Any] | Callable[..., Any]) -> Registry:
    """Return a registry with these handlers; plain functions get the default options."""
    registry = Registry()
    for each in handlers:
        registry.add(each if isinstance(each, Handler) else Handler(each))
    return registry


def a_worker(
    store: Store,
    *handlers: Handler[Any] | Callable[..., Any],
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    **options: Any,
) -> Worker:
    """Return a worker that polls quickly and, unless told otherwise, never reaps."""
    given = {"poll": 0.02, "tick": NEVER, "concurrency": 10} | options
    return Worker(store, registry_of(*handlers), WorkerOptions(**given), lifespan=lifespan)


class Working:
    """A worker that is running, and the task it runs in."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.task = asyncio.create_task(worker.run())

    async def ended(self) -> Exit:
        """Wait until the worker has ended by itself, or was stopped."""
        async with asyncio.timeout(PATIENCE):
            return await self.task

    async def stop(self, *, abort: bool = False) -> Exit:
        """Stop it and wait for it."""
        self.worker.stop(abort=abort)
        return await self.ended()


def working(
    store: Store, *handlers: Handler[Any] | Callable[..., Any], **options: Any
) -> AbstractAsyncContextManager[Working]:
    """A running worker; drained at the end of the block, unless it has ended already."""
    return running_worker(a_worker(store, *handlers, **options))


@asynccontextmanager
async def running_worker(worker: Worker) -> AsyncIterator[Working]:
    """Run a worker; it is drained at the end of the block, unless it has ended already."""
    running = Working(worker)
    try:
        yield running
    except BaseException:  # which is what failed, whether the worker ends or not
        worker.stop()
        if not running.task.done():
            with suppress(TimeoutError):
                await running.ended()
        raise
    worker.stop()
    if not running.task.done():
        await running.ended()


async def submit(store: Store, topic: str, /, **arguments: Any) -> UUID:
    """Submit a job with these arguments and return its id."""
    return await submit_with(store, topic, {}, **arguments)


async def submit_with(
    store: Store, topic: str, options: dict[str, Any], /, **arguments: Any
) -> UUID:
    """Submit a job with options and arguments; returns its id."""
    job = NewJob(id=new_job_id(), topic=topic, payload=json.dumps(arguments), **options)
    assert (await store.submit([job])).new == 1
    return job.id


async def submit_many(store: Store, topic: str, count: int, /, **options: Any) -> list[UUID]:
    """Submit jobs that differ in their argument ``n`` only."""
    jobs = [
        NewJob(id=new_job_id(), topic=topic, payload=json.dumps({"n": n}), **options)
        for n in range(count)
    ]
    assert (await store.submit(jobs)).new == count
    return [job.id for job in jobs]


async def until(condition: Callable[[], Any], *, within: float = PATIENCE, what: str = "") -> None:
    """Poll until ``condition()``, plain or async, is true."""
    deadline = time.monotonic() + within
    for pause in pauses():
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < deadline, (
            f"never happened: {what or inspect.getsource(condition)}"
        )
        await asyncio.sleep(pause)


async def row(store: Store, job_id: UUID) -> JobRow:
    """Read one job that must exist."""
    return (await store.get([job_id]))[job_id]


async def in_status(store: Store, job_id: UUID, *statuses: Status) -> JobRow:
    """Wait until a job has one of these statuses."""
    found: list[JobRow] = []

    async def look() -> bool:
        found[:] = [await row(store, job_id)]
        return found[0].status in statuses

    await until(look, what=f"job {job_id} in {statuses}, now {found}")
    return found[0]


async def finished(store: Store, job_id: UUID) -> JobRow:
    """Wait until a job is over."""
    return await in_status(store, job_id, *TERMINAL)


async def all_finished(store: Store, ids: list[UUID], *, within: float = PATIENCE) -> list[JobRow]:
    """Wait until all these jobs are over; returns their rows in that order."""
    rows: dict[UUID, JobRow] = {}

    async def look() -> bool:
        rows.update(await store.get(ids))
        return len(rows) == len(ids) and all(job.status in TERMINAL for job in rows.values())

    await until(look, within=within, what="the end of all jobs")
    return [rows[job_id] for job_id in ids]


def result(job: JobRow) -> Any:
    """Return what a job's handler returned, as plain data."""
    assert job.status is Status.SUCCEEDED, f"{job.status}: {job.last_error}"
    assert job.result is not None
    return json.loads(job.result)


async def outcome(store: Store, fn: Callable[..., Any], /, **arguments: Any) -> JobRow:
    """Run one job of this function, with a single attempt, to its end."""
    job_id = await submit_with(store, fn.__name__, {"max_attempts": 1}, **arguments)
    async with working(store, fn):
        return await finished(store, job_id)


async def beat(it: Working) -> dict[Lease, Beat]:
    """Let the worker send a heartbeat now."""
    return await asyncio.to_thread(it.worker._leases.tick)


async def expire_leases(backend: Backend, store: Store) -> None:
    """Let the time pass that the dead were given, under the eyes of a watchdog."""
    backend.execute("UPDATE pulse_jobs SET lease_until = started_at WHERE status = 'RUNNING'")
    await never_away(store)


async def first_tick(backend: Backend) -> None:
    """Wait until the worker's watchdog has scanned; it will not scan again."""
    await until(lambda: backend.execute("SELECT 1 FROM pulse_ticks"))

"""``@app.on`` and ``app.events()``: events for the user's code, which cannot hurt a run."""

import asyncio
import contextlib
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pulsed import Pulse, Status
from pulsed.client import hooks as module
from pulsed.client.hooks import EventStream, kinds_of
from pulsed.errors import ConfigError
from pulsed.events import (
    Event,
    JobDeadLettered,
    JobEnqueued,
    JobEvent,
    JobRetryScheduled,
    LeasesExpired,
    RunFailed,
    RunFinished,
    RunStarted,
    RunSucceeded,
)
from pulsed.model.events import ENDS, KINDS
from tests.support.workers import until


@contextlib.asynccontextmanager
async def working(app: Pulse) -> AsyncIterator[None]:
    worker = app.worker(poll=0.02, tick=3600, schedules=False)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


def declare(app: Pulse) -> Any:
    @app.job(max_attempts=1)
    async def work(fails: bool = False) -> None:
        if fails:
            raise ValueError("mine")

    return work


# -- hooks ----------------------------------------------------------------------------------------


async def test_a_plain_hook_is_called_in_a_thread_of_its_own(app: Pulse):
    work, heard = declare(app), list[Event]()

    @app.on(JobDeadLettered)
    def alarm(event: JobDeadLettered) -> None:
        assert threading.current_thread().name == "pulsed-hook-alarm"
        heard.append(event)

    jobs = await work.aenqueue_many([(True,), (False,), (True,)])
    async with working(app):
        await until(lambda: len(heard) == 2)
    assert {each.job_id for each in heard if isinstance(each, JobDeadLettered)} == {
        jobs[0].id,
        jobs[2].id,
    }


async def test_an_async_hook_is_called_on_the_workers_loop(app: Pulse):
    work, heard, loop = declare(app), list[Event](), asyncio.get_running_loop()

    @app.on(RunStarted, RunSucceeded)
    async def note(event: RunStarted | RunSucceeded) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop
        heard.append(event)

    await work.aenqueue()
    async with working(app):
        await until(lambda: len(heard) == 2)
    assert {type(each) for each in heard} == {RunStarted, RunSucceeded}


async def test_a_worker_ends_after_its_hooks_were_called(app: Pulse):
    work, heard, go_on = declare(app), list[str](), asyncio.Event()

    @app.on(RunSucceeded)
    async def slow(_: Event) -> None:
        await go_on.wait()
        heard.append("async")

    @app.on(RunSucceeded)
    def plain(_: Event) -> None:
        heard.append("plain")

    job = await work.aenqueue()
    async with working(app):
        await until(lambda: finished(job))
        asyncio.get_running_loop().call_later(0.01, go_on.set)
    assert sorted(heard) == ["async", "plain"]


async def finished(job: Any) -> bool:
    await job.arefresh()
    return job.status in (Status.SUCCEEDED, Status.DEAD_LETTERED)


async def test_a_hook_that_raises_is_logged_once_and_hurts_no_run(
    app: Pulse, caplog: pytest.LogCaptureFixture
):
    work, calls = declare(app), list[str]()

    @app.on(RunSucceeded)
    def plain(_: Event) -> None:
        calls.append("plain")
        raise RuntimeError("broken plain hook")

    @app.on(RunSucceeded)
    async def on_loop(_: Event) -> None:
        calls.append("async")
        raise RuntimeError("broken async hook")

    jobs = await work.aenqueue_many([()] * 5)
    with caplog.at_level(logging.ERROR):
        async with working(app):
            for job in jobs:
                await until(lambda job=job: finished(job))  # type: ignore[misc]
    assert {job.status for job in jobs} == {Status.SUCCEEDED}
    assert sorted(calls) == ["async"] * 5 + ["plain"] * 5
    assert [each.name for each in caplog.records] == ["pulsed.events"] * 2
    assert "broken plain hook" in caplog.text
    assert "test_hooks.py" in caplog.text


async def test_calls_of_an_async_hook_are_bounded(app: Pulse):
    running, most, go_on = 0, 0, asyncio.Event()

    @app.on(LeasesExpired)
    async def slow(_: Event) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1

    for _ in range(3 * module.AT_A_TIME):
        app.store.events.publish([LeasesExpired(1)])
    await until(lambda: running == module.AT_A_TIME)
    go_on.set()
    await app._hooks.drain()
    assert (running, most) == (0, module.AT_A_TIME)


def test_a_hook_that_is_too_slow_drops_the_oldest_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    app, begun, go_on, heard = Pulse("sqlite://"), threading.Event(), threading.Event(), []

    @app.on(LeasesExpired)
    def slow(event: LeasesExpired) -> None:
        heard.append(event.count)
        begun.set()
        go_on.wait(30)

    app.store.events.publish([LeasesExpired(0)])
    assert begun.wait(30)
    app.store.events.publish([LeasesExpired(n) for n in range(1, 7)])
    go_on.set()
    asyncio.run(app._hooks.drain())
    assert heard == [0, 4, 5, 6]
    assert "too slow: 3 events dropped" in caplog.text


def test_a_blocking_enqueue_calls_async_hooks_too():
    app, heard = Pulse("sqlite://"), list[str]()

    @app.job
    def work() -> None: ...

    @app.on(JobEnqueued)
    async def note(event: JobEnqueued) -> None:
        heard.append(event.topic)

    work.enqueue()
    asyncio.run(app._hooks.drain())
    assert heard == ["work"]


def test_hooks_work_in_a_forked_child():
    app = Pulse("sqlite://")
    heard: list[int] = []

    @app.on(LeasesExpired)
    def note(event: LeasesExpired) -> None:
        heard.append(os.getpid())

    app.store.events.publish([LeasesExpired(1)])
    asyncio.run(app._hooks.drain())

    child = os.fork()
    if child == 0:
        app.store.events.publish([LeasesExpired(2)])
        asyncio.run(app._hooks.drain())
        os._exit(0 if heard[1:] == [os.getpid()] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("given", [int, "JobDeadLettered", len])
def test_what_is_no_event_is_refused(given: Any):
    with pytest.raises(ConfigError, match=r"not a kind of event: take them from pulsed\.events"):
        Pulse("sqlite://").on(given)(lambda _: None)


def test_a_base_class_stands_for_all_of_its_kinds():
    assert kinds_of([RunFailed]) == {JobRetryScheduled, JobDeadLettered}
    assert kinds_of([RunFinished]) == ENDS
    assert kinds_of([]) == KINDS


# -- streams --------------------------------------------------------------------------------------


async def test_events_are_iterated_in_their_order(app: Pulse):
    work = declare(app)
    async with app.events(JobEvent) as events:
        job = await work.aenqueue()
        async with working(app):
            found = [await anext(events) for _ in range(3)]
    assert [type(each) for each in found] == [JobEnqueued, RunStarted, RunSucceeded]
    assert {each.job_id for each in found} == {job.id}


async def test_a_closed_stream_ends_after_what_has_arrived(app: Pulse):
    before = app.store.events.wanted
    events = app.events(LeasesExpired)
    app.store.events.publish([LeasesExpired(1), LeasesExpired(2)])
    events.close()
    app.store.events.publish([LeasesExpired(3)])
    assert [each.count async for each in events] == [1, 2]
    assert app.store.events.wanted == before


async def test_closing_ends_an_iteration_that_waits(app: Pulse):
    events = app.events(LeasesExpired)
    asyncio.get_running_loop().call_later(0.01, events.close)
    assert [each async for each in events] == []


async def test_a_slow_reader_loses_the_oldest_and_can_count_them(app: Pulse):
    events = app.events(LeasesExpired, most=2)
    app.store.events.publish([LeasesExpired(n) for n in range(5)])
    events.close()
    assert [each.count async for each in events] == [3, 4]
    assert events.dropped == 3


async def test_events_of_other_threads_wake_the_reader(app: Pulse):
    events = app.events(LeasesExpired)
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await asyncio.to_thread(app.store.events.publish, [LeasesExpired(1)])
    assert (await waiting).count == 1


async def test_a_forgotten_stream_ends_its_subscription(app: Pulse):
    before = app.store.events.wanted
    events: EventStream[Any] = app.events()
    assert app.store.events.wanted == KINDS | before
    del events
    gc.collect()
    assert app.store.events.wanted == before

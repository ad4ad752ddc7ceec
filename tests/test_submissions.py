"""Enqueued jobs are counted for the statistics, whoever enqueues them."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pulsed import Context, Pulse
from pulsed.engine import submissions
from pulsed.engine.submissions import SubmissionRecorder
from pulsed.errors import TransientStorageError
from pulsed.model.events import EnqueueCount
from pulsed.model.rollup import RollupFilter
from tests.support.backends import RemoteBackend
from tests.support.performed import Performed
from tests.support.schedules import put, tick


def declared(app):
    @app.job
    async def mail(n: int) -> None: ...

    return mail


def counted(backend):
    """What is in the database; a server writes at its end what it has counted."""
    if isinstance(backend, RemoteBackend):
        backend.stop()
    rows = backend.execute(
        "SELECT queue, topic, sum(submitted) FROM pulse_rollups WHERE span = 0 "
        "GROUP BY queue, topic ORDER BY queue, topic"
    )
    return {(queue, topic): int(count) for queue, topic, count in rows if count}


def test_blocking_enqueues_are_counted_by_queue_and_topic(url, backend):
    with Pulse(url) as app:
        mail = declared(app)
        mail.enqueue(1)
        mail.enqueue_many([(n,) for n in range(5)])
        mail.using(queue="slow").enqueue(2)
    assert counted(backend) == {("default", "mail"): 6, ("slow", "mail"): 1}


async def test_async_enqueues_are_counted(url, backend):
    async with Pulse(url) as app:
        mail = declared(app)
        await mail.aenqueue(1)
        await mail.aenqueue_many([(n,) for n in range(5)])
    assert counted(backend) == {("default", "mail"): 6}


def test_a_job_that_is_stored_already_is_not_counted_again(url, backend):
    own = uuid4()
    with Pulse(url) as app:
        mail = declared(app)
        for _ in range(3):
            mail.using(id=own).enqueue(1)
    assert counted(backend) == {("default", "mail"): 1}


async def test_fires_of_schedules_are_counted(store, backend, clock):
    recorder = None if store.is_remote else SubmissionRecorder(store)
    await put(store, "often", topic="mail")
    clock.advance(120)
    assert await tick(store)
    if recorder is not None:
        await recorder.flush()
    assert set(counted(backend)) == {("default", "mail")}


async def test_a_schedule_that_is_run_by_hand_is_counted(url, backend):
    async with Pulse(url) as app:
        app.schedule("rarely", declared(app).bind(1), every=3600)
        await app._write_schedules()
        await app.schedules.arun_now("rarely")
    assert counted(backend) == {("default", "mail"): 1}


async def test_children_of_a_fan_out_are_counted(url, backend):
    async with Pulse(url) as app:
        mail = declared(app)

        @app.job
        async def all_of_them(ctx: Context) -> None:
            await ctx.fan_out([mail.bind(n) for n in range(4)])

        job = await all_of_them.aenqueue()
        worker = app.worker(schedules=False, stats=False)
        working = asyncio.create_task(worker.run())
        await job.aresult(timeout=20)
        worker.stop()
        await working
    assert counted(backend) == {("default", "all_of_them"): 1, ("default", "mail"): 4}


def test_without_statistics_nothing_is_counted(url, backend):
    with Pulse(url, stats=False) as app:
        declared(app).enqueue(1)
        if not app.store.is_remote:
            assert EnqueueCount not in app.store.events.wanted
            assert counted(backend) == {}


@pytest.mark.embedded("statements of the database are counted")
def test_an_enqueue_writes_nothing_of_it(url, monkeypatch):
    monkeypatch.setattr(submissions, "INTERVAL", 3600)
    with Pulse(url) as app:
        mail = declared(app)
        mail.enqueue(0)
        store: Any = app.store
        performed = Performed(store)
        for n in range(20):
            mail.enqueue(n)
        performed.verbs.pop("notify", None)  # of PostgreSQL, debounced
        assert performed.verbs == {"submit": 20}
        app.close()
        assert performed.verbs["record_rollups"] == 1


# -- writing --------------------------------------------------------------------------------------


@pytest.fixture
def recorder(store, backend):
    if store.is_remote:
        pytest.skip("the server counts")
    made = SubmissionRecorder(store)
    yield made
    made.stop()


def enqueue(store, count=1):
    store.events.publish([EnqueueCount("default", "mail", count)])


async def test_the_time_is_that_of_the_database(store, backend, clock, recorder):
    """The clock of the test is far from that of this process."""
    clock.advance(86_400)
    enqueue(store)
    await recorder.flush()
    found = await store.rollups.totals(RollupFilter(clock() - timedelta(minutes=5)))
    assert found.stats.submitted == 1


async def test_totals_go_on_over_several_flushes(store, backend, recorder):
    for count in (1, 2, 3):
        enqueue(store, count)
        await recorder.flush()
    await recorder.flush()
    assert counted(backend) == {("default", "mail"): 6}


@pytest.mark.parametrize("verb", ["now", "record"])
async def test_what_cannot_be_written_is_kept(store, backend, recorder, monkeypatch, verb):
    async def away(*_):
        raise TransientStorageError("away")

    enqueue(store, 2)
    with monkeypatch.context() as patch:
        patch.setattr(store if verb == "now" else store.rollups, verb, away)
        with pytest.raises(TransientStorageError):
            await recorder.flush()
    enqueue(store)
    await recorder.flush()
    assert counted(backend) == {("default", "mail"): 3}


async def test_a_close_tries_once_and_gives_up(store, backend, recorder, monkeypatch):
    """Nothing may open a connection after that."""
    asked = []

    async def away(*_):
        asked.append(True)
        raise TransientStorageError("away")

    enqueue(store, 2)
    thread = recorder._thread
    with monkeypatch.context() as patch:
        patch.setattr(store, "perform", away)
        await recorder.close()
    assert len(asked) == 1
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    enqueue(store)
    await recorder.flush()
    assert counted(backend) == {("default", "mail"): 1}


def test_a_thread_writes_and_ends(live, backend, monkeypatch):
    if live.is_remote:
        pytest.skip("the server counts")
    monkeypatch.setattr(submissions, "INTERVAL", 0.01)
    recorder = SubmissionRecorder(live)
    enqueue(live)
    thread = recorder._thread
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()
    assert counted(backend) == {("default", "mail"): 1}
    recorder.stop()


def test_a_thread_that_fails_says_so_once_and_goes_on(live, backend, monkeypatch, caplog):
    if live.is_remote:
        pytest.skip("the server counts")
    recorder = SubmissionRecorder(live)
    enqueue(live)

    async def away():
        raise TransientStorageError("away")

    with caplog.at_level(logging.INFO, "pulsed.stats"), monkeypatch.context() as patch:
        patch.setattr(live, "now", away)
        assert recorder.flush_in_thread()
        assert recorder.flush_in_thread()
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert not recorder.flush_in_thread()
    assert counted(backend) == {("default", "mail"): 1}
    recorder.stop()


def test_a_store_that_is_gone_ends_the_thread(live, monkeypatch):
    if live.is_remote:
        pytest.skip("the server counts")
    monkeypatch.setattr(submissions, "INTERVAL", 0.01)
    recorder = SubmissionRecorder(live)
    known = weakref.ref(recorder)
    recorder.stop()
    del recorder
    gc.collect()
    submissions._flush_later(known, threading.Event())  # returns


@pytest.mark.embedded("the database is counted by its server")
def test_a_forked_child_counts_by_itself(url, backend):
    with Pulse(url) as app:
        mail = declared(app)
        mail.enqueue(1)
        child = os.fork()
        if child == 0:
            try:
                mail.enqueue(2)
                app.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert counted(backend) == {("default", "mail"): 2}


SCRIPT = """
import sys
from pulsed import Pulse
app = Pulse(sys.argv[1])
@app.job
def mail(n: int) -> None: ...
mail.enqueue(1)
"""


@pytest.mark.embedded("the database is counted by its server")
def test_a_script_that_closes_nothing_is_counted(url, backend):
    done = subprocess.run([sys.executable, "-c", SCRIPT, url], capture_output=True, check=True)
    assert done.stderr == b""
    assert counted(backend) == {("default", "mail"): 1}

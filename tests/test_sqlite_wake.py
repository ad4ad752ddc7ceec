"""A listener on a file is notified of jobs from other processes, and not of its own commits."""

import asyncio
import os
import resource
import sys
import threading

from pulsed.model.job import Status
from pulsed.model.outcome import Succeeded
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import only_sqlite
from tests.support.jobs import (
    EVERYTHING,
    claim_one,
    settle,
    submitted,
)
from tests.support.programs import ROOT

backend = only_sqlite


async def test_a_job_from_another_process_wakes_the_worker(database):
    store = SqliteStore(database)
    await store.counts(EVERYTHING)
    woken = asyncio.Event()
    async with store.listen(["default"], lambda _: woken.set()) as listener:
        assert listener.healthy
        code = f"from tests.support.processes import *; print(first_use({str(database)!r}))"
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT)
        async with asyncio.timeout(60):
            while (await store.counts(EVERYTHING))[Status.PENDING] == 0:
                await woken.wait()
                woken.clear()
            assert await other.wait() == 0
    await store.aclose()


async def test_a_job_from_this_process_wakes_the_worker(store):
    woken = asyncio.Event()
    async with store.listen(["default"], lambda _: woken.set()):
        await submitted(store)
        async with asyncio.timeout(60):
            await woken.wait()


async def test_only_commits_of_others_are_news(store, database):
    """A worker that was notified of its own commits would claim after every one of them."""
    await submitted(store)
    seen = store._writer.version_of_others()
    run = await claim_one(store)
    await settle(store, run, Succeeded())
    assert store._writer.version_of_others() == seen
    other = SqliteStore(database)
    await submitted(other)
    await other.aclose()
    assert store._writer.version_of_others() != seen


async def test_whoever_has_not_written_yet_hears_of_others_too(store, database):
    await submitted(store)
    reader = SqliteStore(database)
    assert reader._writer.version_of_others() is None
    woken = asyncio.Event()
    async with reader.listen(["default"], lambda _: woken.set()):
        async with asyncio.timeout(60):
            while not woken.is_set():
                await submitted(store)
                await asyncio.sleep(0)
    await reader.aclose()


async def test_a_job_from_elsewhere_is_noticed_among_commits_of_our_own(store, database):
    await submitted(store)
    run = await claim_one(store)
    woken = asyncio.Event()

    async def commit_all_the_time() -> None:
        while True:
            await store.beat([run.lease])

    async with store.listen(["default"], lambda _: woken.set()), asyncio.timeout(60):
        busy = asyncio.create_task(commit_all_the_time())
        await woken.wait()  # the first commit that is seen may be of any process
        woken.clear()
        other = SqliteStore(database)
        await submitted(other)
        await other.aclose()
        await woken.wait()
        busy.cancel()


async def test_after_listening_nobody_is_woken_any_more(store):
    woken = asyncio.Event()
    async with store.listen(["default"], lambda _: woken.set()):
        pass
    await submitted(store)
    await asyncio.sleep(0)
    assert not woken.is_set()
    assert not [t for t in threading.enumerate() if t.name == "pulsed-wake"]


async def test_a_worker_with_many_open_files_is_woken_too(database):
    """``select`` knows no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    store = SqliteStore(database)
    try:
        await store.counts(EVERYTHING)
        woken = asyncio.Event()
        async with store.listen(["default"], lambda _: woken.set()) as listener:
            other = SqliteStore(database)
            await submitted(other)
            async with asyncio.timeout(60):
                await woken.wait()
            assert listener.healthy
            await other.aclose()
        await store.aclose()
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

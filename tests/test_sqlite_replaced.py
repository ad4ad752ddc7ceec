"""A database file that is removed or replaced under those who have it open."""

import asyncio
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsed import Pulse
from pulsed.errors import SchemaError, StorageError
from pulsed.model.job import Status
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.connections import SqliteOptions
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import EVERYTHING, a_job, claim, ids, row, submitted
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    run_blocking(store.aclose())


def remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


async def seen_by_others(path: Path) -> int:
    """Count the jobs that a process sees which opens the file now."""
    other = SqliteStore(path, SqliteOptions(create=False, migrate=False))
    try:
        return sum((await other.counts(EVERYTHING)).values())
    finally:
        await other.aclose()


async def test_what_is_acknowledged_after_a_removal_is_in_the_new_file(store, path, caplog):
    await submitted(store)
    remove(path)
    job_id = await submitted(store)
    assert await seen_by_others(path) == 1
    assert (await row(store, job_id)).status is Status.PENDING
    (record,) = caplog.records
    assert "jobs.db was removed or replaced while it was in use" in record.getMessage()


def test_so_is_what_threads_stored_together(store, path):
    run_blocking(store.submit([a_job()]))
    remove(path)
    threads = [
        threading.Thread(target=lambda: run_blocking(store.submit([a_job()]))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(seen_by_others(path)) == 20


async def test_who_only_reads_sees_the_new_file(store, path):
    old = await submitted(store)
    await row(store, old)
    remove(path)
    other = SqliteStore(path)
    new = await submitted(other)
    await other.aclose()
    assert (await row(store, new)).status is Status.PENDING
    assert await store.get([old]) == {}


async def test_a_backup_that_is_put_in_its_place_is_used(store, path, tmp_path):
    kept = await submitted(store)
    await store.aclose()
    shutil.copy(path, tmp_path / "backup")
    lost = await submitted(store)
    remove(path)
    (tmp_path / "backup").rename(path)
    await submitted(store)
    assert await store.get([lost]) == {}
    assert (await row(store, kept)).status is Status.PENDING


async def test_a_claim_says_so_and_the_next_one_works(store, path):
    await submitted(store)
    remove(path)
    with pytest.raises(StorageError, match="removed or replaced"):
        await claim(store)
    job_id = await submitted(store)
    assert ids(await claim(store)) == [job_id]


async def test_jobs_of_the_new_file_may_be_older_than_all_of_the_old_one(path, clock, tmp_path):
    """A claim begins where the last one found nothing more: that place is forgotten."""
    store = SqliteStore(path, clock=clock)
    early = await submitted(store)
    await store.aclose()
    shutil.copy(path, tmp_path / "backup")
    clock.advance(10)
    await submitted(store)
    assert len(await claim(store, limit=10)) == 2
    assert await claim(store) == []
    remove(path)
    (tmp_path / "backup").rename(path)
    late = await submitted(store)
    assert ids(await claim(store, limit=10)) == [early, late]
    await store.aclose()


async def test_nothing_is_created_for_those_who_may_not(path):
    first = SqliteStore(path)
    await submitted(first)
    await first.aclose()
    store = SqliteStore(path, SqliteOptions(migrate=False))
    await submitted(store)
    remove(path)
    with pytest.raises(SchemaError):
        await submitted(store)
    await store.aclose()


async def test_a_worker_goes_on_with_the_new_file(path, caplog):
    caplog.set_level(logging.WARNING)
    app = Pulse(f"sqlite:///{path}")

    @app.job
    async def double(n: int) -> int:
        return n * 2

    async with app:
        worker = app.worker(poll=0.02, tick=0.1)
        running = asyncio.create_task(worker.run())
        assert await (await double.aenqueue(1)).aresult(timeout=60) == 2
        remove(path)
        await until(lambda: "removed or replaced" in caplog.text)
        async with Pulse(f"sqlite:///{path}") as producer:
            job = await producer.aenqueue("double", {"n": 4})
            assert await job.aresult(timeout=60) == 8
        worker.stop()
        await running

"""A worker whose database misbehaves: restarts, cut connections, locks, a full disk."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from pulsed.engine.context import Context
from pulsed.errors import StorageFull
from pulsed.model.backoff import RetryPolicy
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status, TopicPolicy
from pulsed.store.open import open_store
from pulsed.store.postgres import session as postgres_session
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.connections import SqliteOptions
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import postgres_backend
from tests.support.clock import Clock
from tests.support.interleaving import WAITING_FOR_LOCKS
from tests.support.jobs import never_away
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.workers import (
    all_finished,
    finished,
    handler,
    in_status,
    row,
    submit,
    submit_many,
    submit_with,
    until,
    working,
)

QUICK = RetryPolicy(initial=0.02, max=0.1)


async def no_failure_was_recorded(store: SqlStore, ids: list[Any]) -> None:
    for job_id in ids:
        assert await store.failures(job_id) == []


# -- PostgreSQL goes away -------------------------------------------------------------------------


@pytest.fixture
def empty_postgres(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a PostgreSQL without jobs."""
    with postgres_backend(request, Clock()) as backend:
        yield backend.app_url


@pytest.fixture
async def postgres(empty_postgres: str) -> AsyncIterator[PostgresStore]:
    """A store on an empty PostgreSQL, with the server's own clock."""
    store = PostgresStore(empty_postgres, PostgresOptions(retry=QUICK, dequeue_retry=QUICK))
    yield store
    await store.aclose()


@pytest.mark.parametrize(
    "lease, outage", [(10.0, 0.0), (1.5, 2.0)], ids=["shorter than the lease", "longer"]
)
async def test_jobs_live_through_a_crash_of_the_server(
    postgres_server: ScratchPostgres, lease: float, outage: float
):
    store = open_store(postgres_server.url)
    release = asyncio.Event()

    async def long(ctx: Context, n: int) -> int:
        await release.wait()
        return ctx.attempt

    async def quick() -> None:
        pass

    held = await submit_many(store, "long", 10)
    async with working(store, handler(long, lease=lease), quick, concurrency=12, tick=0.2) as it:
        await until(lambda: it.worker.describe().running == 10)
        # Claims need not wait for the disk; this commit does, and takes them along.
        before = await submit(store, "quick")
        await finished(store, before)

        postgres_server.kill()
        down = time.monotonic()
        await until(lambda: time.monotonic() >= down + outage)
        await asyncio.to_thread(postgres_server.start)

        after = await submit(store, "quick")
        await finished(store, after)
        beats = await asyncio.to_thread(it.worker._leases.tick)
        assert {answer.value for answer in beats.values()} == {"OK"}
        # Several ticks of the watchdog, beyond its grace.
        now = time.monotonic()
        await until(lambda: time.monotonic() > now + 1.5)
        assert it.worker.describe().running == 10
        release.set()
        jobs = await all_finished(store, held)
        assert it.worker._listener is not None
        await until(lambda: it.worker._listener.healthy)  # type: ignore[union-attr]
    assert {(job.status, job.attempts, job.result) for job in jobs} == {(Status.SUCCEEDED, 1, "1")}
    await store.aclose()


async def test_a_worker_may_start_before_its_database(postgres_server: ScratchPostgres):
    store = open_store(postgres_server.url)

    async def quick() -> None:
        pass

    job_id = await submit(store, "quick")
    postgres_server.kill()
    late = open_store(postgres_server.url)
    async with working(late, quick):
        await asyncio.to_thread(postgres_server.start)
        await finished(store, job_id)
    await store.aclose()
    await late.aclose()


async def test_connections_cut_again_and_again_fail_no_job(
    postgres: PostgresStore, postgres_url: str
):
    async def work(n: int) -> int:
        await asyncio.sleep(0.005 * (n % 4))
        return n

    ids = await submit_many(postgres, "work", 200)
    cut = 0
    async with working(postgres, work, concurrency=10, tick=0.5) as it:
        await until(lambda: it.worker._listener is not None)
        with closing(psycopg.connect(postgres_url, autocommit=True)) as admin:

            async def done() -> bool:
                nonlocal cut
                killed = admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                ).fetchall()
                cut += len(killed)
                await asyncio.sleep(0.1)
                left = admin.execute(
                    "SELECT count(*) FROM pulse_jobs WHERE status <> 'SUCCEEDED'"
                ).fetchone()
                return left == (0,) or cut > 60

            await until(done)
        jobs = await all_finished(postgres, ids)
    assert cut > 5
    assert [int(job.result or "-1") for job in jobs] == list(range(200))
    await no_failure_was_recorded(postgres, ids)
    assert {job.attempts for job in jobs} == {1}


async def test_a_killed_listener_heals_and_polling_goes_on(
    postgres: PostgresStore, postgres_url: str
):
    async def quick() -> None:
        pass

    listening = "FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
    async with working(postgres, quick, poll=0.2) as it:
        worker = it.worker
        await until(lambda: worker._listener is not None and worker._listener.healthy)
        assert worker._listener is not None
        with closing(psycopg.connect(postgres_url, autocommit=True)) as admin:
            killed = admin.execute(f"SELECT pg_terminate_backend(pid) {listening}").fetchall()
            assert killed == [(True,)]
            await until(lambda: not worker._listener.healthy)  # type: ignore[union-attr]
            await finished(postgres, await submit(postgres, "quick"))
            await until(lambda: worker._listener.healthy)  # type: ignore[union-attr]


# -- PostgreSQL says no, for now ------------------------------------------------------------------


async def test_a_deadlock_is_not_a_failure_of_the_job(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_session, "LOCK_WITHIN", 60.0)  # the deadlock is found first
    # A session looks for deadlocks once, after that time: the rival must have met it by then.
    patient = f"{empty_postgres}?options={quote('-c deadlock_timeout=2s')}"
    postgres = PostgresStore(patient, PostgresOptions(retry=QUICK, dequeue_retry=QUICK))
    proceed = asyncio.Event()

    async def work(n: int) -> int:
        await proceed.wait()
        return n

    first, second = sorted(await submit_many(postgres, "work", 2))
    async with working(postgres, work) as it:
        await until(lambda: it.worker.describe().running == 2)
        async with await psycopg.AsyncConnection.connect(empty_postgres) as rival:
            lock = "SELECT id FROM pulse_jobs WHERE id = %s FOR UPDATE"
            await rival.execute("SET deadlock_timeout = '60s'")  # the worker is to be the victim
            await rival.execute(lock, [second])
            with closing(psycopg.connect(empty_postgres, autocommit=True)) as admin:
                deadlocks = (
                    "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
                )
                before = admin.execute(deadlocks).fetchone()
                proceed.set()
                # Its report has locked the first row and waits for the second one.
                await until(lambda: admin.execute(WAITING_FOR_LOCKS).fetchone() == (1,))
                await rival.execute(lock, [first])
                await rival.rollback()
                jobs = await all_finished(postgres, [first, second])

                def noticed() -> bool:
                    admin.execute("SELECT pg_stat_clear_snapshot()")
                    return admin.execute(deadlocks).fetchone() != before

                await until(noticed)
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}
    await no_failure_was_recorded(postgres, [first, second])
    await postgres.aclose()


async def test_a_lock_held_longer_than_the_statement_timeout_is_not_a_failure_of_the_job(
    empty_postgres: str,
):
    options = PostgresOptions(retry=QUICK, dequeue_retry=QUICK, statement_timeout=0.3)
    store = PostgresStore(empty_postgres, options)
    proceed = asyncio.Event()

    async def work(n: int) -> int:
        await proceed.wait()
        return n

    ids = await submit_many(store, "work", 3)
    async with working(store, handler(work, lease=20)) as it:
        await until(lambda: it.worker.describe().running == 3)
        async with await psycopg.AsyncConnection.connect(empty_postgres) as rival:
            await rival.execute("LOCK TABLE pulse_jobs IN ACCESS EXCLUSIVE MODE")
            proceed.set()
            await until(lambda: it.worker._settler.backlog == 3)
            began = time.monotonic()
            await until(lambda: time.monotonic() > began + 1)
            assert it.worker._settler.backlog == 3
            await rival.rollback()
        jobs = await all_finished(store, ids)
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}
    await no_failure_was_recorded(store, ids)
    await store.aclose()


async def test_a_watchdog_frozen_in_its_transaction_does_not_stop_the_others(
    postgres: PostgresStore, postgres_url: str
):
    job_id = await submit(postgres, "work", n=1)
    policy = TopicPolicy(topic="work", lease=0.05)
    assert await postgres.claim(new_job_id(), "default", [policy], 1)
    await never_away(postgres)
    async with await psycopg.AsyncConnection.connect(postgres_url) as frozen:
        await frozen.execute("INSERT INTO pulse_ticks VALUES (gen_random_uuid(), now(), now())")
        await frozen.execute("DELETE FROM pulse_ticks WHERE at < now()")

        async def reaped() -> bool:
            tick = await asyncio.wait_for(postgres.watchdog(), 60)
            return [each.job_id for each in tick.reaped] == [job_id]

        await until(reaped)


@pytest.mark.parametrize("shift", [3600, -3600], ids=["an hour fast", "an hour slow"])
async def test_the_workers_own_clock_does_not_matter(
    postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch, shift: int
):
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + shift * 10**9)
    release = asyncio.Event()

    async def work(ctx: Context, n: int) -> int:
        await release.wait()
        return ctx.attempt

    soon = await submit_with(postgres, "work", {"delay": 0.3}, n=1)
    later = await submit_with(postgres, "work", {"delay": 120.0}, n=2)
    async with working(postgres, handler(work, lease=0.6), tick=0.1):
        job = await in_status(postgres, soon, Status.RUNNING)
        assert job.started_at is not None
        waited = (job.started_at - job.submitted_at).total_seconds()
        assert 0.3 <= waited < 30
        began = time.monotonic()
        await until(lambda: time.monotonic() > began + 1.5)  # leases and ticks go by
        release.set()
        assert (await finished(postgres, soon)).result == "1"
    assert (await row(postgres, later)).attempts == 0


# -- SQLite ---------------------------------------------------------------------------------------


async def test_a_writer_elsewhere_may_hold_the_lock_for_longer_than_the_busy_timeout(
    tmp_path: Path,
):
    options = SqliteOptions(busy_timeout=0.05, retry=QUICK, dequeue_retry=QUICK)
    store = SqliteStore(tmp_path / "jobs.db", options)
    proceed = asyncio.Event()

    async def work(n: int) -> int:
        await proceed.wait()
        return n

    ids = await submit_many(store, "work", 5)
    async with working(store, handler(work, lease=20)) as it:
        await until(lambda: it.worker.describe().running == 5)
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as rival:
            rival.execute("BEGIN IMMEDIATE")
            proceed.set()
            await until(lambda: it.worker._settler.backlog == 5)
            began = time.monotonic()
            await until(lambda: time.monotonic() > began + 1)
            assert it.worker._settler.backlog == 5
            rival.execute("ROLLBACK")
        jobs = await all_finished(store, ids)
        await finished(store, await submit(store, "work", n=1))
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}
    await no_failure_was_recorded(store, ids)
    await store.aclose()


async def test_a_full_disk_stops_producers_and_workers_until_there_is_room(tmp_path: Path):
    store = SqliteStore(tmp_path / "jobs.db", SqliteOptions(max_pages=300, retry=QUICK))
    proceed = asyncio.Event()

    async def work(n: int) -> str:
        await proceed.wait()
        return "x" * 30_000

    ids = await submit_many(store, "work", 6)
    async with working(store, work) as it:
        await until(lambda: it.worker.describe().running == 6)
        stored, size = 0, 40_000
        while size > 100:
            try:
                await submit(store, "filler", text="x" * size)
                stored += 1
            except StorageFull:
                size //= 2
        with pytest.raises(StorageFull, match="Nothing was stored"):
            await submit_many(store, "work", 100)
        counts = "SELECT count(*) FROM pulse_jobs WHERE topic = 'filler'"
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as elsewhere:
            assert elsewhere.execute(counts).fetchone() == (stored,)
            proceed.set()
            await until(lambda: it.worker._settler.backlog == 6)
            await until(lambda: it.worker._settler._failures > 0)
            elsewhere.execute("DELETE FROM pulse_jobs WHERE topic = 'filler'")
        jobs = await all_finished(store, ids)
        await finished(store, await submit(store, "work", n=1))
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}
    await no_failure_was_recorded(store, ids)
    await store.aclose()

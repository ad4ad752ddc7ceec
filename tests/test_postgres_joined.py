"""Submitting inside the caller's own transaction, on every kind of connection we accept."""

import sqlite3
from contextlib import closing
from datetime import timedelta

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from pulsed.errors import ConfigError, StorageError
from pulsed.model.job import Status
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.store import PostgresStore
from pulsed.store.results import Submitted
from tests.support.clock import Clock
from tests.support.jobs import a_job, row

FULL = {
    "queue": 'a "queue", {with} \\ signs',
    "payload": '{"text": "NULL, \\"quoted\\" \\u00e9 {}"}',
    "priority": -7,
    "max_attempts": 4,
    "timeout": 2.5,
    "headers": {"trace": 'a"b'},
    "tags": ("x", "NULL"),
}


@pytest.fixture
async def store(postgres_url):
    store = PostgresStore(postgres_url, clock=Clock())
    await store.migrate()
    yield store
    await store.aclose()


async def exists(store, job):
    return job.id in await store.get([job.id])


class Psycopg:
    """A blocking caller, whose rows are dictionaries and whose cursors are client-side."""

    async def open(self, url, **options):
        return psycopg.connect(
            url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor, **options
        )

    async def submit(self, store, connection, *jobs):
        return run_blocking(store.joined(connection).submit(jobs))

    async def end(self, connection, how):
        getattr(connection, how)()

    async def close(self, connection):
        connection.close()


class AsyncPsycopg(Psycopg):
    async def open(self, url, **options):
        return await psycopg.AsyncConnection.connect(url, row_factory=dict_row, **options)

    async def submit(self, store, connection, *jobs):
        return await store.joined(connection).submit(jobs)

    async def end(self, connection, how):
        await getattr(connection, how)()

    async def close(self, connection):
        await connection.close()


class Asyncpg(AsyncPsycopg):
    async def open(self, url, **options):
        connection = await asyncpg.connect(url)
        if not options:  # autocommit is what asyncpg does without a transaction
            self.transaction = connection.transaction()
            await self.transaction.start()
        return connection

    async def end(self, connection, how):
        await getattr(self.transaction, how)()


class PooledAsyncpg(Asyncpg):
    async def open(self, url, **options):
        self.pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        connection = await self.pool.acquire()
        if not options:
            self.transaction = connection.transaction()
            await self.transaction.start()
        return connection

    async def close(self, connection):
        await self.pool.release(connection)
        await self.pool.close()


@pytest.fixture(params=[Psycopg, AsyncPsycopg, Asyncpg, PooledAsyncpg])
def caller(request):
    return request.param()


async def test_a_job_appears_when_the_caller_commits(store, postgres_url, caller):
    job = a_job(**FULL, at=store.clock() + timedelta(days=1))
    connection = await caller.open(postgres_url)
    assert (await caller.submit(store, connection, job)).new == 1
    assert not await exists(store, job)
    await caller.end(connection, "commit")
    await caller.close(connection)
    stored = await row(store, job.id)
    assert {name: getattr(stored, name) for name in FULL} == FULL
    assert stored.next_run_at == job.at
    assert stored.submitted_at == store.clock()
    assert stored.status is Status.PENDING


async def test_a_job_never_was_when_the_caller_rolls_back(store, postgres_url, caller):
    job = a_job()
    connection = await caller.open(postgres_url)
    assert (await caller.submit(store, connection, job)).new == 1
    await caller.end(connection, "rollback")
    await caller.close(connection)
    assert not await exists(store, job)


async def test_each_job_of_a_batch_is_new_or_exists(store, postgres_url, caller):
    """Stored before, by this very transaction, or further to the front of the batch."""
    known, ours, new = a_job(), a_job(), a_job()
    await store.submit([known])
    connection = await caller.open(postgres_url)
    assert await caller.submit(store, connection, ours, a_job()) == Submitted(2)
    again = await caller.submit(store, connection, new, known, ours, new)
    assert again == Submitted(4, existing=frozenset([1, 2, 3]))
    assert (await caller.submit(store, connection, known, ours)).new == 0
    assert (await caller.submit(store, connection, known)).is_new(0) is False
    await caller.end(connection, "commit")
    await caller.close(connection)
    assert set(await store.get([known.id, ours.id, new.id])) == {known.id, ours.id, new.id}


async def test_ids_are_read_whatever_the_connection_makes_of_a_uuid(store, postgres_url):
    known, new = a_job(), a_job()
    await store.submit([known])
    connection = await asyncpg.connect(postgres_url)
    await connection.set_type_codec(
        "uuid", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>"
    )
    async with connection.transaction(), connection.transaction():  # a savepoint
        answer = await store.joined(connection).submit([known, new])
    assert answer == Submitted(2, existing=frozenset([0]))
    await connection.close()


async def test_a_connection_outside_a_transaction_is_refused(store, postgres_url, caller):
    job = a_job()
    connection = await caller.open(postgres_url, autocommit=True)
    with pytest.raises(ConfigError, match=r"in a transaction.*connection\.transaction\(\)"):
        await caller.submit(store, connection, job)
    await caller.close(connection)
    assert not await exists(store, job)


async def test_an_autocommit_connection_inside_a_transaction_is_taken(store, postgres_url):
    kept, dropped = a_job(), a_job()
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        with connection.transaction():
            run_blocking(store.joined(connection).submit([kept]))
        with connection.transaction(force_rollback=True):
            run_blocking(store.joined(connection).submit([dropped]))
    assert await exists(store, kept)
    assert not await exists(store, dropped)


async def test_a_failed_transaction_is_the_callers_to_end(store, postgres_url, caller):
    connection = await caller.open(postgres_url)
    with pytest.raises(StorageError) as refused:
        await caller.submit(store, connection, a_job(priority=1_000))
    assert refused.value.__cause__ is not None
    with pytest.raises(StorageError, match="transaction is aborted"):
        await caller.submit(store, connection, a_job())
    await caller.end(connection, "rollback")
    await caller.close(connection)


async def test_nobody_is_woken_for_a_job_that_may_be_rolled_back(store, postgres_url, monkeypatch):
    announced: list[set[str]] = []

    def take(queues):
        announced.append(set(queues))
        return set(queues), False

    monkeypatch.setattr(store._notifier, "take", take)
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        assert (await store.joined(connection).submit([a_job()])).new == 1
    await connection.close()
    assert announced == []
    await store.submit([a_job()])
    assert announced == [{"default"}]  # as it is for all others


async def test_only_submit_can_join(store, postgres_url):
    connection = await asyncpg.connect(postgres_url)
    joined = store.joined(connection)
    assert [name for name in dir(joined) if not name.startswith("_")] == ["submit"]
    assert (await joined.submit([])).new == 0
    await connection.close()


async def test_a_connection_of_the_wrong_kind_is_refused(store, postgres_url):
    with closing(sqlite3.connect(":memory:")) as other, pytest.raises(ConfigError) as refused:
        store.joined(other)
    assert "sqlite3.Connection" in str(refused.value)
    assert "psycopg.Connection" in str(refused.value)
    assert "AsyncSession" in str(refused.value)


async def test_a_connection_of_the_wrong_mode_is_refused(store, postgres_url):
    blocking = psycopg.connect(postgres_url)
    with closing(blocking), pytest.raises(ConfigError, match="An a… method cannot use a psycopg"):
        await store.joined(blocking).submit([a_job()])
    for connection in (
        await asyncpg.connect(postgres_url),
        await psycopg.AsyncConnection.connect(postgres_url),
    ):
        with pytest.raises(ConfigError, match="blocking method cannot use a"):
            run_blocking(store.joined(connection).submit([a_job()]))
        await connection.close()

"""A job inside of the caller's own transaction shares its fate."""

import sqlite3
import sys
from contextlib import closing

import pytest

from pulsed.errors import ConfigError, StorageError, TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.store.results import Submitted
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import only_sqlite
from tests.support.jobs import EVERYTHING, a_job

backend = only_sqlite


async def test_a_job_in_the_callers_transaction_exists_if_that_commits(backend, store):
    await store.counts(EVERYTHING)
    with closing(backend.connect()) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        kept, dropped = a_job(), a_job()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO orders VALUES (1)")
        assert (await store.joined(connection).submit([kept])).new == 1
        assert connection.in_transaction
        assert await store.get([kept.id]) == {}
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO orders VALUES (2)")
        assert (await store.joined(connection).submit([dropped])).new == 1
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]
    assert set(await store.get([kept.id, dropped.id])) == {kept.id}


async def test_each_job_of_a_batch_is_new_or_exists(backend, store):
    """Stored before, by this very transaction, or further to the front of the batch."""
    known, ours, new = a_job(), a_job(), a_job()
    await store.submit([known])
    with closing(sqlite3.connect(backend.path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("CREATE TABLE orders (id INTEGER)")
        joined = store.joined(connection)
        assert await joined.submit([ours, a_job()]) == Submitted(2)
        connection.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(100)])
        assert (await joined.submit([known, ours])).new == 0
        again = await joined.submit([new, known, ours, new])
        assert again == Submitted(4, existing=frozenset([1, 2, 3]))
        connection.commit()
    assert set(await store.get([known.id, ours.id, new.id])) == {known.id, ours.id, new.id}


async def test_the_callers_row_factory_and_isolation_are_respected(backend, store):
    await store.counts(EVERYTHING)
    with closing(sqlite3.connect(backend.path)) as connection:  # the driver begins by itself
        connection.row_factory = sqlite3.Row
        assert (await store.joined(connection).submit([a_job(), a_job()])).new == 2
        assert connection.in_transaction
        connection.rollback()
    assert await store.list_jobs(EVERYTHING) == []


@pytest.mark.parametrize(
    "options",
    [
        {"isolation_level": None},
        pytest.param(
            {"autocommit": True},
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="from Python 3.12 on"),
        ),
    ],
    ids=str,
)
async def test_a_connection_outside_a_transaction_is_refused(backend, store, options):
    await store.counts(EVERYTHING)
    kept = a_job()
    with closing(sqlite3.connect(backend.path, **options)) as connection:
        with pytest.raises(ConfigError, match=r"in a transaction.*BEGIN"):
            await store.joined(connection).submit([a_job()])
        connection.execute("BEGIN")
        await store.joined(connection).submit([kept])
        connection.execute("COMMIT")
    assert [job.id for job in await store.list_jobs(EVERYTHING)] == [kept.id]


async def test_inside_a_callers_transaction_only_submit_is_possible(backend, store):
    await store.counts(EVERYTHING)
    with closing(backend.connect()) as connection:
        joined = store.joined(connection)
        assert [name for name in dir(joined) if not name.startswith("_")] == ["submit"]
        assert (await joined.submit([])).new == 0


async def test_inside_a_callers_transaction_nothing_is_retried(backend):
    store = backend.open(retry=RetryPolicy(max_attempts=50, initial=0, max=0))
    await store.counts(EVERYTHING)
    holder, caller = backend.connect(), backend.connect()
    holder.execute("BEGIN IMMEDIATE")
    caller.execute("PRAGMA busy_timeout = 0")
    caller.execute("BEGIN")
    tries = 0

    def count(statement: str) -> None:
        nonlocal tries
        tries += statement.startswith("INSERT")

    caller.set_trace_callback(count)
    with pytest.raises(TransientStorageError):
        await store.joined(caller).submit([a_job()])
    assert tries == 1, tries
    for connection in (holder, caller):
        connection.close()
    await store.aclose()


async def test_a_callers_connection_to_a_file_without_tables_says_so(tmp_path):
    path = tmp_path / "new.db"
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(StorageError, match=r"pulsed migrate up"),
    ):
        await SqliteStore(path).joined(connection).submit([a_job()])


async def test_a_connection_to_another_file_is_refused(tmp_path, backend, store):
    await store.counts(EVERYTHING)
    link = tmp_path / "link.db"
    link.symlink_to(backend.path)
    for other in (tmp_path / "other.db", ":memory:"):
        with (
            closing(sqlite3.connect(other)) as connection,
            pytest.raises(ConfigError, match=r"needs a connection to the app's database.*jobs\.db"),
        ):
            await store.joined(connection).submit([a_job()])
    with closing(sqlite3.connect(link)) as connection:
        await store.joined(connection).submit([a_job()])
        connection.commit()
    assert len(await store.list_jobs(EVERYTHING)) == 1


async def test_a_database_in_memory_cannot_be_joined():
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(ConfigError, match=r"Give the app a file"),
    ):
        await SqliteStore(None).joined(connection).submit([a_job()])


def test_a_connection_of_another_kind_is_refused(backend):
    with pytest.raises(ConfigError, match=r"sqlite3\.Connection"):
        backend.open().joined(object())

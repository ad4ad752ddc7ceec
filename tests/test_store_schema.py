"""The tables: created once by the first process, and strict about what they hold."""

import re
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from pulsed.errors import SchemaError
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Succeeded
from pulsed.store import migrations
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.store import PostgresStore
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import Backend, PostgresBackend, SqliteBackend, close_blocking
from tests.support.jobs import (
    ALICE,
    BOB,
    EVERYTHING,
    TOPIC,
    a_job,
    a_policy,
    claim,
    running,
    settle,
    submitted,
)
from tests.support.processes import migrate, together

pytestmark = pytest.mark.embedded("only a database has a schema")


@pytest.fixture
def empty_postgres_url(postgres_url) -> Iterator[str]:
    """The URL of one more database, without tables."""
    name = f"pulsed_test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def where(request, tmp_path) -> str:
    """A database without tables: a path or a URL."""
    if request.param == "sqlite":
        return str(tmp_path / "new.db")
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
def empty(backend, request, tmp_path) -> Backend:
    """A backend without tables; that of the other tests has them already."""
    if backend.engine == "postgres":
        return PostgresBackend(request.getfixturevalue("empty_postgres_url"), backend.clock)
    return SqliteBackend(tmp_path / "empty.db", backend.clock)


# -- a running job without a lease cannot exist ---------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "locked_by = NULL",
        "lease_until = NULL",
        "locked_by = NULL, lease_until = NULL",
        "status = 'PENDING'",
        "status = 'SUCCEEDED'",
    ],
)
async def test_a_running_row_and_its_lease_cannot_be_parted(store, backend, change):
    run = await running(store)
    before = backend.row(run.job_id)
    with pytest.raises(Exception, match=r"(?i)check"):
        backend.execute(f"UPDATE pulse_jobs SET {change}")
    assert backend.row(run.job_id) == before


async def test_a_row_cannot_become_running_without_a_lease(store, backend):
    job_id = await submitted(store)
    owner = backend.literal(ALICE)
    for change in ("", f", locked_by = {owner}", ", lease_until = next_run_at"):
        with pytest.raises(Exception, match=r"(?i)check"):
            backend.execute(f"UPDATE pulse_jobs SET status = 'RUNNING'{change}")
    assert backend.row(job_id)["status"] == "PENDING"


@pytest.mark.parametrize(
    "change",
    [
        "status = 'DONE'",
        "attempts = -1",
        "max_attempts = 0",
        "priority = 101",
        "priority = -101",
        "backoff_base = -1",
        "backoff_base = 1e9",
        "backoff_factor = 0.5",
        "backoff_power = 11",
        "backoff_jitter = 1.5",
        "backoff_cap = -1",
        "backoff_base = 1",
        "lease_ms = 0",
        "timeout_ms = 0",
        "lease_ms = 5, timeout_ms = -1",
    ],
)
async def test_values_that_no_statement_of_ours_writes_are_refused(store, backend, change):
    await submitted(store)
    with pytest.raises(Exception, match=r"(?i)check"):
        backend.execute(f"UPDATE pulse_jobs SET {change}")


BACKOFF = {
    "backoff_base": (0, 316224000),
    "backoff_power": (0, 10),
    "backoff_factor": (1, 100),
    "backoff_cap": (0, 316224000),
    "backoff_jitter": (0, 1),
}


@pytest.mark.parametrize("part", BACKOFF)
async def test_each_part_of_a_policy_has_its_range(store, backend, part):
    await submitted(store)
    whole = ", ".join(f"{name} = 1" for name in BACKOFF)
    backend.execute(f"UPDATE pulse_jobs SET {whole}")
    lowest, highest = BACKOFF[part]
    for within in (lowest, highest):
        backend.execute(f"UPDATE pulse_jobs SET {part} = {within}")
    for outside in (lowest - 0.5, highest + 0.5, "NULL"):
        with pytest.raises(Exception, match=r"(?i)check"):
            backend.execute(f"UPDATE pulse_jobs SET {part} = {outside}")


# -- migrations -----------------------------------------------------------------------------------


def test_processes_that_migrate_an_empty_database_at_once(where):
    answers = together(3, migrate, where)
    assert [answer for answer in answers if isinstance(answer, str)] == []  # no crash, no deadlock
    versions = [one.version for one in migrations.migrations("sqlite")]
    assert sorted(applied for applied, _ in answers) == [[]] * 2 + [versions]
    assert [there for _, there in answers] == [versions] * 3


def test_threads_that_use_an_empty_database_at_once(empty):
    stores = [empty.open() for _ in range(6)]
    barrier = threading.Barrier(6)
    answers: list[object] = []

    def use(store):
        barrier.wait()
        try:
            answers.append(run_blocking(store.submit([a_job()])).new)
        except Exception as error:  # noqa: BLE001 - shown below
            answers.append(repr(error))
        finally:
            close_blocking(store)

    threads = [threading.Thread(target=use, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [1] * 6


async def test_migrating_again_applies_nothing(store, backend):
    await store.counts(EVERYTHING)
    assert await store.migrate() == []
    applied = await store.applied_migrations()
    assert [one.version for one in applied] == [
        one.version for one in migrations.migrations(backend.engine)
    ]


async def test_missing_tables_are_an_error_where_nobody_may_create_them(empty):
    store = empty.open(migrate=False)
    with pytest.raises(SchemaError, match=r"no pulsed tables yet.*pulsed migrate up"):
        await store.submit([a_job()])
    await store.migrate()
    assert (await store.submit([a_job()])).new == 1
    await store.aclose()


async def test_a_schema_that_is_too_old_is_an_error_where_nobody_may_update_it(empty, monkeypatch):
    old = empty.open()
    await submitted(old)
    await old.aclose()
    newest = migrations.newest(empty.engine)
    monkeypatch.setattr(migrations, "newest", lambda engine: newest + 1)
    store = empty.open(migrate=False)
    with pytest.raises(SchemaError, match=rf"too old: version {newest}, .* needs {newest + 1}"):
        await store.submit([a_job()])
    await store.aclose()


async def test_a_schema_that_is_too_new_is_refused_and_left_alone(empty):
    store = empty.open()
    job_id = await submitted(store)
    await store.aclose()
    stamp = {"sqlite": "1", "postgres": "now()"}[empty.engine]
    empty.execute(f"INSERT INTO pulse_migrations VALUES (99, 'future', {stamp}, 99)")
    behind = empty.open()
    with pytest.raises(SchemaError, match=r"too new: version 99.*Upgrade pulsed"):
        await behind.submit([a_job()])
    await behind.aclose()
    assert empty.row(job_id)["status"] == "PENDING"
    assert empty.execute("SELECT count(*) FROM pulse_jobs") == [(1,)]


async def test_a_newer_schema_that_our_age_can_live_with_is_used(empty):
    """A rolling deploy does not stop the processes that it has not reached yet."""
    store = empty.open()
    await store.counts(EVERYTHING)
    await store.aclose()
    stamp = {"sqlite": "1", "postgres": "now()"}[empty.engine]
    empty.execute(f"INSERT INTO pulse_migrations VALUES (99, 'additive', {stamp}, 1)")
    behind = empty.open()
    assert (await behind.submit([a_job()])).new == 1
    assert (await behind.counts(EVERYTHING))[Status.PENDING] == 1
    await behind.aclose()


BEFORE_LIMITS = 13
"""The last version without controls, limits, bulk operations and expiry."""


async def test_jobs_of_an_older_schema_are_found_claimed_and_limited_after_the_upgrade(
    empty, monkeypatch
):
    every = migrations.migrations
    with monkeypatch.context() as older:
        older.setattr(migrations, "migrations", lambda engine: every(engine)[:BEFORE_LIMITS])
        await _migrated(empty)
    waiting, retrying, ran, dead = (_old_row(empty, **row) for row in OLD_ROWS)
    await _migrated(empty)
    store = empty.open()
    counts = await store.counts(EVERYTHING)
    assert {status: number for status, number in counts.items() if number} == {
        Status.PENDING: 1, Status.RETRYING: 1, Status.RUNNING: 1, Status.DEAD_LETTERED: 1,
    }  # fmt: skip
    assert [each.id for each in await store.list_jobs(JobFilter(tag="old"))] == [waiting]
    assert [each.id for each in await store.list_jobs(JobFilter(outcome="LEASE_EXPIRED"))] == [dead]
    assert not await store.list_jobs(JobFilter(outcome="EXPIRED"))
    await store.controls.declare(ControlScope.LIMIT, {"mail": Numbers(running=1)})
    (first,) = await claim(store, topics=[a_policy(limit_name="mail")])
    assert first.job_id in (waiting, retrying)
    (lease,) = await store.held(BOB)
    assert lease.job_id == ran
    await settle(store, first, Succeeded(None))
    (second,) = await claim(store, topics=[a_policy()])  # one that has no limit any more
    assert {first.job_id, second.job_id} == {waiting, retrying}
    await store.aclose()


OLD_ROWS: tuple[dict[str, str], ...] = (
    {"status": "'PENDING'", "tags": """'["old", "a"]'"""},
    {"status": "'RETRYING'", "attempts": "1", "started_at": "{now}"},
    {"status": "'RUNNING'", "locked_by": "{bob}", "lease_until": "{now}", "started_at": "{now}"},
    {"status": "'DEAD_LETTERED'", "last_outcome": "'EXPIRED'", "completed_at": "{now}"},
)


def _old_row(empty: Backend, **values: str) -> uuid.UUID:
    """Insert a job as a program of that version did; returns its id."""
    job_id, now = new_job_id(), {"sqlite": "1", "postgres": "to_timestamp(1)"}[empty.engine]
    values = {
        "id": empty.literal(job_id), "queue": "'default'", "topic": f"'{TOPIC}'",
        "payload": "'{{}}'", "next_run_at": "{now}", "submitted_at": "{now}",
    } | values  # fmt: skip
    row = ", ".join(value.format(now=now, bob=empty.literal(BOB)) for value in values.values())
    empty.execute(f"INSERT INTO pulse_jobs ({', '.join(values)}) VALUES ({row})")
    return job_id


async def _migrated(empty: Backend) -> None:
    store = empty.open()
    await store.migrate()
    await store.aclose()


BEFORE_COMPARISONS = 19
"""The last version before SQLite's table of jobs was built again."""


async def test_building_the_table_of_jobs_again_keeps_its_rows_columns_and_indexes(
    tmp_path, monkeypatch
):
    every = migrations.migrations
    path = tmp_path / "old.db"
    with monkeypatch.context() as older:
        older.setattr(migrations, "migrations", lambda engine: every(engine)[:BEFORE_COMPARISONS])
        store = SqliteStore(path)
        await store.migrate()
        await store.aclose()
    with closing(sqlite3.connect(path)) as connection, connection:
        _insert_distinct_values(connection)
        before = _jobs_and_indexes(connection)
    store = SqliteStore(path)
    assert await store.migrate()
    await store.aclose()
    with closing(sqlite3.connect(path)) as connection:
        assert _jobs_and_indexes(connection) == before
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def _insert_distinct_values(connection: sqlite3.Connection) -> None:
    """Insert two jobs with another value in each column that allows it."""
    columns = connection.execute("PRAGMA table_info(pulse_jobs)").fetchall()
    values: dict[str, Any] = {
        name: {"TEXT": name, "BLOB": name.encode(), "REAL": place / 100}.get(kind, place)
        for place, name, kind, *_ in columns
    }
    values |= {"status": "RUNNING", "cancel_requested": 1, "backoff_factor": 1.5}
    listed = ", ".join(f":{name}" for name in values)
    insert = f"INSERT INTO pulse_jobs ({', '.join(values)}) VALUES ({listed})"
    for number, job_id in enumerate((b"2" * 16, b"1" * 16)):
        own = {"id": job_id, "occurrence": number, "key": str(number)}
        connection.execute(insert, values | own)


def _jobs_and_indexes(connection: sqlite3.Connection) -> list[Any]:
    names = "SELECT name FROM pragma_index_list('pulse_jobs') ORDER BY name"
    indexes = [name for (name,) in connection.execute(names)]
    parts = (f"PRAGMA index_xinfo({name})" for name in indexes)
    kinds = """SELECT name, "unique", origin, partial FROM pragma_index_list('pulse_jobs')
        ORDER BY name"""
    reads = (
        "SELECT * FROM pulse_jobs ORDER BY rowid", "PRAGMA table_info(pulse_jobs)", kinds, *parts
    )  # fmt: skip
    return [connection.execute(read).fetchall() for read in reads]


BEFORE_OPTION_TYPES = 20


async def test_the_types_of_options_come_without_a_rewrite_of_the_table(
    empty_postgres_url, monkeypatch
):
    """A large table is locked for a moment only; its rows and indexes stay where they are."""
    every = migrations.migrations
    files = """SELECT relname, pg_relation_filenode(oid) FROM pg_class
        WHERE starts_with(relname, 'pulse_jobs') ORDER BY relname"""
    with psycopg.connect(empty_postgres_url, autocommit=True) as operator:
        with monkeypatch.context() as older:
            older.setattr(migrations, "migrations", lambda e: every(e)[:BEFORE_OPTION_TYPES])
            store = PostgresStore(empty_postgres_url)
            await store.submit([a_job(max_attempts=7)])
            await store.aclose()
        before = operator.execute(files).fetchall()
        store = PostgresStore(empty_postgres_url)
        assert [each.version for each in await store.migrate()] == [BEFORE_OPTION_TYPES + 1]
        assert operator.execute(files).fetchall() == before
        options = "SELECT reloptions FROM pg_class WHERE relname = 'pulse_jobs_pkey'"
        assert operator.execute(options).fetchall() == [(["fillfactor=50"],)]
        [one] = await claim(store)
        assert one.max_attempts == 7
        with pytest.raises(psycopg.errors.CheckViolation, match="pulse_max_attempts"):
            operator.execute("UPDATE pulse_jobs SET max_attempts = 0")
    await store.aclose()


def test_both_engines_have_the_same_versions():
    versions = [
        [(one.version, one.name) for one in migrations.migrations(engine)]
        for engine in ("sqlite", "postgres")
    ]
    assert versions[0] == versions[1]
    numbers = [version for version, _ in versions[0]]
    assert numbers == list(range(1, len(numbers) + 1)), "a gap could be filled after it was passed"


@pytest.mark.parametrize("since", [2, 4])
def test_a_large_table_can_be_migrated_by_hand_beside_the_work(
    postgres_url, empty_postgres_url, since
):
    """The manual steps of the docs give the same schema as a migration."""
    store = PostgresStore(empty_postgres_url)
    whole, newer = (migrations.script(store.dialect, since=each) for each in (0, since))
    first = migrations.migrations("postgres")[since].statements[0]
    statements = newer.split(";\n\n")
    beside = [one for one in statements if re.search(r"(TABLE|INDEX \w+ ON) pulse_jobs ", one)]
    rest = [one for one in statements if one not in beside]
    with psycopg.connect(empty_postgres_url, autocommit=True) as operator:
        operator.execute(whole[: whole.index(first)] + "COMMIT")
        for one in beside:
            operator.execute(one.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY"))
        operator.execute(";\n".join(rest))
    assert len(beside) >= 4
    assert run_blocking(store.migrate()) == []
    close_blocking(store)
    by_itself = PostgresStore(postgres_url)
    run_blocking(by_itself.migrate())
    close_blocking(by_itself)
    assert schema_of(empty_postgres_url) == schema_of(postgres_url)


def schema_of(url: str) -> tuple[set[Any], set[Any]]:
    """Return the columns and the indexes of our tables."""
    with psycopg.connect(url) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable "
            "FROM information_schema.columns "
            "WHERE table_schema = current_schema() AND starts_with(table_name, 'pulse_')"
        ).fetchall()
        indexes = connection.execute(
            "SELECT indexdef FROM pg_indexes "
            "WHERE schemaname = current_schema() AND starts_with(tablename::text, 'pulse_')"
        ).fetchall()
    return set(columns), set(indexes)

"""A job in the caller's own transaction shares its fate, whatever library the caller uses."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from pulsed import Pulse
from pulsed.errors import ConfigError
from pulsed.events import JobEnqueued
from pulsed.store.blocking import run_blocking
from tests.support.backends import Backend, PostgresBackend, SqliteBackend, file_with_tables
from tests.support.callers import POSTGRES, SQLITE, pack
from tests.support.own_sessions import administering
from tests.support.programs import ROOT


@pytest.fixture(params=[*SQLITE, *POSTGRES])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def postgres_tables(postgres_url):
    with administering(postgres_url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
    return postgres_url


@pytest.fixture
def database(name, request, clock, tmp_path):
    """The database that the caller of this name can connect to."""
    backend: Backend
    if name in SQLITE:
        backend = SqliteBackend(tmp_path / "jobs.db", clock, with_tables=True)
        assert backend.app_url
        backend.execute("CREATE TABLE orders (id INTEGER)")
    else:
        backend = PostgresBackend(request.getfixturevalue("postgres_tables"), clock)
        backend.empty()
        backend.execute("DELETE FROM orders")
    return backend


@pytest.fixture
async def app(database):
    async with Pulse(database.app_url) as app:
        yield app


@pytest.fixture
async def caller(name, database):
    caller = {**SQLITE, **POSTGRES}[name]()
    await caller.open(database.app_url)
    yield caller
    await caller.close()


def stored(database):
    [(orders, jobs)] = database.execute(
        "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM pulse_jobs)"
    )
    return orders, jobs


async def test_the_job_appears_with_the_commit(app, database, caller):
    job = app.job(pack)
    await caller.execute("INSERT INTO orders VALUES (1)")
    enqueued = await caller.enqueue(job.using(tags=["new"], headers={"trace": "1"}), 1)
    assert enqueued.is_new
    assert stored(database) == (0, 0)
    await caller.end("commit")
    assert stored(database) == (1, 1)
    found = await app.jobs.aget(enqueued.id)
    assert (found.status, found.tags, found.headers) == ("PENDING", ("new",), {"trace": "1"})


async def test_the_job_begins_the_transaction_if_nothing_has(app, database, caller):
    """SQLAlchemy begins with the first statement, and so does psycopg; here that is the job."""
    job = app.job(pack)
    await caller.enqueue(job, 1)
    assert stored(database) == (0, 0)
    await caller.execute("INSERT INTO orders VALUES (1)")
    await caller.end("commit")
    assert stored(database) == (1, 1)


async def test_the_job_goes_with_the_rollback(app, database, caller):
    job = app.job(pack)
    await caller.enqueue(job, 1)
    await caller.execute("INSERT INTO orders VALUES (1)")
    await caller.end("rollback")
    assert stored(database) == (0, 0)


async def test_many_jobs_and_jobs_by_name_join_as_well(app, database, caller):
    job = app.job(pack)
    many = job.using(conn=caller.conn).aenqueue_many([(n,) for n in range(3)])
    assert len(await caller.do(many)) == 3
    await caller.do(app.aenqueue("pack", {"order": 4}, conn=caller.conn))
    assert stored(database) == (0, 0)
    await caller.end("commit")
    assert stored(database) == (0, 4)


async def test_a_savepoint_takes_its_job_with_it(app, database, caller):
    job = app.job(pack)
    await caller.execute("INSERT INTO orders VALUES (1)")
    await caller.enqueue(job, 1)
    with suppress(ZeroDivisionError):
        async with caller.savepoint():
            await caller.enqueue(job, 2)
            raise ZeroDivisionError
    async with caller.savepoint():
        kept = await caller.enqueue(job, 3)
    await caller.end("commit")
    assert stored(database) == (1, 2)
    assert (await app.jobs.aget(kept.id)).status == "PENDING"


async def test_a_caller_outside_of_a_transaction_is_refused(app, database, name):
    caller = {**SQLITE, **POSTGRES}[name]()
    await caller.open(database.app_url, autocommit=True)
    with pytest.raises(ConfigError, match=r"commits every statement by itself.*Nothing was stored"):
        await caller.enqueue(app.job(pack), 1)
    await caller.close()
    assert stored(database) == (0, 0)


async def test_a_caller_of_the_other_mode_is_refused(app, database, caller):
    """A blocking method has no event loop, and an async one must not block it."""
    call = app.job(pack).using(conn=caller.conn).aenqueue(1)
    if caller.is_async:
        with pytest.raises(
            ConfigError, match=r"A blocking method cannot use a.*Nothing was stored"
        ):
            run_blocking(call)
    elif database.engine == "sqlite":  # a local file: its driver is for both
        await call
        await caller.end("commit")
        assert stored(database) == (0, 1)
        return
    else:
        with pytest.raises(ConfigError, match=r"An a… method cannot use a.*Nothing was stored"):
            await call
    await caller.end("commit" if caller.is_async else "rollback")
    assert stored(database) == (0, 0)


async def test_events_and_notifications_follow_the_commit_where_the_library_tells(
    app, caller, monkeypatch
):
    events: list[JobEnqueued] = []
    hints: list[set[str]] = []
    app.store.events.subscribe(events.extend, [JobEnqueued])
    monkeypatch.setattr(app.store, "owe_hint", hints.append)
    job = app.job(pack)
    told = 1 if caller.tells_commit else 0
    await caller.enqueue(job, 1)
    assert (len(events), hints) == (1 - told, [])
    await caller.end("rollback")
    assert (len(events), hints) == (1 - told, [])
    if not told:
        return
    await caller.enqueue(job.using(queue="mail"), 2)
    async with caller.savepoint():
        kept = await caller.enqueue(job, 3)
    assert (events, hints) == ([], [])  # a savepoint commits nothing
    await caller.end("commit")
    assert [event.queue for event in events] == ["mail", "default"]
    assert events[1].job_id == kept.id
    assert hints == [{"mail"}, {"default"}]
    await caller.execute("INSERT INTO orders VALUES (1)")
    await caller.end("commit")
    assert len(hints) == 2


async def test_a_savepoint_that_is_rolled_back_takes_its_events_with_it(app, caller):
    if not caller.tells_commit:
        pytest.skip("tells of no commit")
    events: list[JobEnqueued] = []
    app.store.events.subscribe(events.extend, [JobEnqueued])
    job = app.job(pack)
    kept = [await caller.enqueue(job, 1)]
    with suppress(ZeroDivisionError):
        async with caller.savepoint():
            async with caller.savepoint():
                await caller.enqueue(job, 2)  # released, and rolled back with the one around it
            await caller.enqueue(job, 3)
            raise ZeroDivisionError
    async with caller.savepoint():
        kept.append(await caller.enqueue(job, 4))
    await caller.end("commit")
    assert [event.job_id for event in events] == [each.id for each in kept]


# -- crashes --------------------------------------------------------------------------------------


def killed_before_commit(callers):
    """Have a process enqueue through these (name, URL), and kill it before it commits."""
    arguments = [part for caller in callers for part in caller]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.callers", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"uncommitted {len(callers)}\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_a_process_killed_before_its_commit_leaves_no_job_on_sqlite(tmp_path):
    """Each caller has a file of its own, because SQLite has one writer."""
    paths = {name: tmp_path / f"{name}.db" for name in SQLITE}
    for path in paths.values():
        path.write_bytes(file_with_tables())
    killed_before_commit([(name, f"sqlite:///{path}") for name, path in paths.items()])
    for path in paths.values():
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM pulse_jobs").fetchone() == (0,)


def test_a_process_killed_before_its_commit_leaves_no_job_on_postgresql(admin, postgres_url):
    killed_before_commit([(name, postgres_url) for name in POSTGRES])
    assert admin.execute("SELECT count(*) FROM pulse_jobs").fetchone() == (0,)


# -- what cannot be joined ------------------------------------------------------------------------


@pytest.fixture
def elsewhere(postgres_url):
    """Another database of the same server, with pulsed's tables."""
    name = "pulsed_elsewhere_" + urlsplit(postgres_url).path[-8:]
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        with Pulse(url) as app:
            app.jobs.counts()
        yield url
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_connection_to_another_database_is_refused(postgres_url, elsewhere):
    async with Pulse(postgres_url) as app:
        job = app.job(pack)
        for make in (POSTGRES["psycopg"], POSTGRES["asyncpg"], POSTGRES["AsyncSession-asyncpg"]):
            caller = make()
            await caller.open(elsewhere)
            with pytest.raises(
                ConfigError, match=r"needs a connection to the app's database.*else"
            ):
                await caller.enqueue(job, 1)
            await caller.end("rollback")
            await caller.close()


async def test_the_same_database_under_another_name_is_accepted(admin, postgres_url):
    """The servers are asked, once for each name: hosts and poolers have several."""
    host = urlsplit(postgres_url).hostname
    alias = postgres_url.replace(f"{host}:", "localhost:" if host != "localhost" else "127.0.0.1:")
    assert alias != postgres_url
    async with Pulse(postgres_url) as app:
        job = app.job(pack)
        for make in (POSTGRES["psycopg"], POSTGRES["asyncpg"]):
            caller = make()
            await caller.open(alias)
            await caller.enqueue(job, 1)
            await caller.end("commit")
            await caller.close()
    assert admin.execute("SELECT count(*) FROM pulse_jobs").fetchone() == (2,)


def test_a_session_without_a_connection_is_refused(tmp_path):
    app = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")
    job = app.job(pack)
    with Session() as unbound, pytest.raises(ConfigError, match=r"bind_arguments"):
        job.using(conn=unbound).enqueue(1)
    engine = create_engine("sqlite://")
    with (
        Session(engine, autobegin=False) as idle,
        pytest.raises(ConfigError, match=r"Autobegin is disabled"),
    ):
        job.using(conn=idle).enqueue(1)
    for no_connection in (engine, create_async_engine("sqlite+aiosqlite://")):
        with pytest.raises(ConfigError, match=r"Engine, which is in no transaction"):
            job.using(conn=no_connection).enqueue(1)
    engine.dispose()

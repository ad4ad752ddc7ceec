"""What PostgreSQL refuses, and what becomes of the connections it was refused on."""

import asyncio
import uuid
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from pulsed.errors import (
    SchemaError,
    StorageBusy,
    StorageError,
    StorageFull,
    StorageRefused,
    TooManyConnections,
    TransientStorageError,
)
from pulsed.model.backoff import RetryPolicy
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.errors import translate
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sql.statement import Sql, Statement
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.jobs import a_job
from tests.support.own_sessions import AT_ONCE, impatient, sessions
from tests.support.raw_verbs import a_verb, both_drivers, perform, run
from tests.support.scratch_postgres import ScratchPostgres

store = impatient
ONCE = RetryPolicy.disabled()


@both_drivers
@pytest.mark.parametrize("kind", [VerbKind.SINGLE, VerbKind.TRANSACTION])
async def test_a_session_ended_during_a_verb_is_a_transient_error_and_is_replaced(
    store, admin, mode, kind
):
    suicide = a_verb("SELECT pg_terminate_backend(pg_backend_pid())", kind)
    with pytest.raises(TransientStorageError) as lost:
        await perform(store, mode, suicide)
    assert lost.value.__cause__ is not None
    assert [tuple(row) for row in await perform(store, mode, a_verb("SELECT 1"))] == [(1,)]


@both_drivers
async def test_idle_sessions_that_the_server_ended_are_not_noticed_by_anybody(store, admin, mode):
    """A restart ends all idle sessions at once, which may be more than there are tries."""
    store._retried = None  # no try but the first
    blocked = a_verb("SELECT pg_sleep(0.05)")
    await asyncio.gather(*(perform(store, mode, blocked) for _ in range(7)))
    assert len(sessions(admin)) > AT_ONCE.max_attempts
    admin.execute(
        "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
        "WHERE application_name LIKE 'pulsed/%' AND datname = current_database()"
    )
    await asyncio.sleep(0.05)  # let the loop read the goodbyes
    assert [tuple(row) for row in await perform(store, mode, a_verb("SELECT 1"))] == [(1,)]


@both_drivers
async def test_a_restarted_server_costs_one_try(postgres_server, mode):
    store = PostgresStore(postgres_server.url, PostgresOptions(retry=AT_ONCE))
    blocked = a_verb("SELECT pg_sleep(0.05)")
    await asyncio.gather(*(perform(store, mode, blocked) for _ in range(7)))
    postgres_server.kill()
    with pytest.raises(TransientStorageError):
        await perform(store, mode, a_verb("SELECT 1"))
    postgres_server.start()
    assert await asyncio.to_thread(lambda: run_blocking(store.submit([a_job()])).new) == 1
    assert (await store.submit([a_job()])).new == 1
    await store.aclose()


@both_drivers
async def test_sessions_of_a_server_that_lost_its_role_are_given_up(store, admin, mode):
    """After a failover the old server still answers; it only refuses to write."""
    sleep = a_verb("SELECT pg_sleep(0.05)")
    await asyncio.gather(*(perform(store, mode, sleep) for _ in range(4)))
    before = sessions(admin)
    with pytest.raises(TransientStorageError):
        await perform(store, mode, a_verb("DO $$ BEGIN RAISE SQLSTATE '25006'; END $$"))
    [(mine,)] = await perform(store, mode, a_verb("SELECT pg_backend_pid()"))
    assert mine not in before


@both_drivers
@pytest.mark.parametrize(
    "sql, expected",
    [
        ("SELECT * FROM pulse_nothing", SchemaError),
        ("SELECT nothing FROM pulse_jobs", SchemaError),
        ("SELECT 1/0", StorageRefused),
        ("SELECT 'x'::int", StorageRefused),
        ("SELECT random(1)", StorageError),
        ("SELECT", None),
        ("INSERT INTO pulse_meta (one) VALUES (1)", StorageRefused),
        ("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", TransientStorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$", TransientStorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$", StorageBusy),  # lock timeout
        ("DO $$ BEGIN RAISE SQLSTATE '53200'; END $$", TransientStorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", TooManyConnections),
        ("DO $$ BEGIN RAISE SQLSTATE '53400'; END $$", StorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '58030'; END $$", TransientStorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '57P04'; END $$", TransientStorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '25006'; END $$", TransientStorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '08006'; END $$", TransientStorageError),
        ("DO $$ BEGIN RAISE SQLSTATE '53100'; END $$", StorageFull),
        ("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(1)", StorageBusy),
    ],
)
async def test_the_servers_errors_are_ours_by_the_time_they_arrive(store, mode, sql, expected):
    if expected is None:
        await perform(store, mode, a_verb(sql))
        return
    with pytest.raises(StorageError) as refused:
        await perform(store, mode, a_verb(sql))
    assert type(refused.value) is expected
    assert isinstance(refused.value.__cause__, psycopg.Error | asyncpg.PostgresError)
    assert "test failed on the PostgreSQL database" in str(refused.value)
    assert [tuple(row) for row in await perform(store, mode, a_verb("SELECT 1"))] == [(1,)]


@both_drivers
async def test_a_real_deadlock_is_transient(store, admin, mode):
    """Two transactions each wait for the other's advisory lock; the server ends one of them."""

    granted = (
        "SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE datname = current_database() AND objid = {} AND granted"
    )

    def locking(first, second):
        def steps():
            yield run("SET LOCAL deadlock_timeout = '10ms'")
            yield run(f"SELECT pg_advisory_xact_lock({first})")
            while not (yield run(granted.format(second))):
                yield run("SELECT pg_sleep(0.005)")
            yield run(f"SELECT pg_advisory_xact_lock({second})")

        return Verb("deadlock", VerbKind.TRANSACTION, steps)

    results = await asyncio.gather(
        perform(store, mode, locking(7001, 7002)),
        perform(store, mode, locking(7002, 7001)),
        return_exceptions=True,
    )
    [error] = [result for result in results if result is not None]
    assert type(error) is TransientStorageError
    assert "deadlock" in str(error)


@both_drivers
async def test_a_statement_that_takes_too_long_is_transient(postgres_url, admin, mode):
    store = PostgresStore(postgres_url, PostgresOptions(statement_timeout=0.05))
    with pytest.raises(TransientStorageError, match="statement timeout"):
        await perform(store, mode, a_verb("SELECT pg_sleep(5)"))
    await store.aclose()


@both_drivers
async def test_text_that_the_database_cannot_hold_is_refused_as_a_row(store, mode):
    nul = Verb("t", VerbKind.SINGLE, lambda: _rows(Statement(_TEXT, {"x": "a\0b"})))
    with pytest.raises(StorageRefused):
        await perform(store, mode, nul)


_TEXT = Sql("SELECT $1::text", ("x",))


@pytest.fixture
def restricted(admin, postgres_url):
    """The URL of a role that may do next to nothing, in a schema that is not its own."""
    role = f"restricted_{uuid.uuid4().hex}"
    admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'")
    admin.execute(f"CREATE SCHEMA {role}")
    server = urlsplit(postgres_url)
    place = server.netloc.rpartition("@")[2]
    yield role, server._replace(netloc=f"{role}:hunter2@{place}").geturl()
    admin.execute(f"DROP SCHEMA {role} CASCADE")
    admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@both_drivers
async def test_a_missing_privilege_is_named_and_not_taken_for_a_wrong_password(restricted, mode):
    role, url = restricted
    store = PostgresStore(url, PostgresOptions(retry=ONCE))
    for sql in ("SELECT * FROM pulse_jobs", f"CREATE TABLE {role}.t ()"):
        with pytest.raises(
            StorageError, match=r"permission denied .* lacks a privilege"
        ) as refused:
            await perform(store, mode, a_verb(sql))
        assert type(refused.value) is StorageError
        assert "password" not in str(refused.value)
    await store.aclose()


@both_drivers
async def test_a_schema_that_is_there_takes_no_right_to_create_schemas(restricted, admin, mode):
    role, url = restricted
    admin.execute(f"GRANT USAGE, CREATE ON SCHEMA {role} TO {role}")
    store = PostgresStore(url, PostgresOptions(schema=role, retry=ONCE))
    if mode == "async":
        assert (await store.submit([a_job()])).new == 1
    else:
        assert await asyncio.to_thread(lambda: run_blocking(store.submit([a_job()])).new) == 1
    await store.aclose()


@both_drivers
@pytest.mark.parametrize(
    "url, expected",
    [
        ("postgresql://postgres:hunter2@{server}/nowhere", StorageError),
        ("postgresql://stranger:hunter2@{server}/postgres", StorageError),
        ("postgresql://postgres:hunter2@127.0.0.1:1/postgres", TransientStorageError),
        ("postgresql://postgres:hunter2@nowhere.invalid/postgres", TransientStorageError),
    ],
    ids=["database", "role", "port", "host"],
)
async def test_a_refused_connection_says_where_and_keeps_the_password(
    postgres_url, mode, url, expected
):
    server = urlsplit(postgres_url).netloc.rpartition("@")[2]
    store = PostgresStore(url.format(server=server), PostgresOptions(retry=ONCE))
    with pytest.raises(StorageError) as refused:
        await perform(store, mode, a_verb("SELECT 1"))
    assert type(refused.value) is expected, refused.value
    assert store.address.where in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in str(refused.value.__cause__)
    await store.aclose()


@both_drivers
async def test_a_wrong_password_is_not_tried_again(mode):
    with ScratchPostgres() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE ada LOGIN PASSWORD 'right'")
        hba = server.directory / "data" / "pg_hba.conf"
        hba.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        server.restart()
        url = server.url.replace("postgres@", "ada:hunter2@")
        store = PostgresStore(url)
        with pytest.raises(StorageError, match="Check the user, the password") as refused:
            await perform(store, mode, a_verb("SELECT 1"))
        assert not isinstance(refused.value, TransientStorageError)
        assert "hunter2" not in str(refused.value)
        await store.aclose()


async def test_cancellation_passes_through_ends_the_statement_and_leaves_the_pool_usable(
    store, admin
):
    asleep = asyncio.create_task(store.perform(a_verb("SELECT pg_sleep(60)")))
    began = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
        "AND query = 'SELECT pg_sleep(60)' AND state = 'active'"
    )
    async with asyncio.timeout(60):
        while not admin.execute(began).fetchall():  # noqa: ASYNC110 - the server cannot set an event
            await asyncio.sleep(0.005)
    asleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asleep
    assert [tuple(row) for row in await store.perform(a_verb("SELECT 1"))] == [(1,)]
    async with asyncio.timeout(60):  # its statement does not run on, with its locks
        while admin.execute(began).fetchall():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


@both_drivers
async def test_a_plan_made_stale_by_a_migration_is_transient_or_unnoticed(store, admin, mode):
    admin.execute("DROP TABLE IF EXISTS pulse_stale; CREATE TABLE pulse_stale (a int)")
    admin.execute("INSERT INTO pulse_stale VALUES (1)")
    reads = [
        Verb("read", kind, lambda: _rows(Statement(_STALE, {"x": 1})))
        for kind in (VerbKind.TRANSACTION, VerbKind.SINGLE)
    ]
    for verb in reads * 2:
        await perform(store, mode, verb)
    admin.execute("ALTER TABLE pulse_stale ADD COLUMN b int")
    for verb in reads:
        try:
            found = await perform(store, mode, verb)
        except TransientStorageError:
            found = await perform(store, mode, verb)  # on a session without the old plan
        assert [tuple(row) for row in found] == [(1, None)]
    admin.execute("DROP TABLE pulse_stale")


_STALE = Sql("SELECT * FROM pulse_stale WHERE a = $1::int", ("x",))


def _rows(statement):
    return (yield statement)


def test_a_servers_detail_is_not_repeated():
    error = psycopg.errors.CheckViolation("no")
    assert "payload" not in str(translate(error, "submit", "database"))


@both_drivers
async def test_an_address_where_nobody_answers_is_named_once(mode):
    store = PostgresStore("postgresql://ada@127.0.0.1:1/shop", PostgresOptions(retry=ONCE))
    with pytest.raises(TransientStorageError) as refused:
        await perform(store, mode, a_verb("SELECT 1"))
    assert str(refused.value).startswith(
        "test failed on the PostgreSQL database 'shop' at 127.0.0.1:1: "
    )
    assert "connection to server at" not in str(refused.value)
    assert "?" not in str(refused.value)
    await store.aclose()


def test_of_several_hosts_each_has_its_reason():
    text = (
        'connection failed: connection to server at "a" (10.0.0.1), port 5432 failed: timeout '
        'connection to server at "b" (10.0.0.2), port 5432 failed: Connection refused'
    )
    said = str(translate(psycopg.OperationalError(text), "submit", "database"))
    assert "10.0.0.1" in said
    assert "10.0.0.2" in said

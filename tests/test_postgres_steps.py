"""Steps in a transaction on PostgreSQL: the sessions they have, and what becomes of lost ones."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from pulsed.engine.context import Context
from pulsed.engine.workflow import outage
from pulsed.engine.workflow.steps import MOST_LOSSES
from pulsed.errors import TooManyConnections
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Status
from pulsed.store import retrying
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from tests.support.backends import AT_ONCE_OPTIONS, Backend, PostgresBackend, only_postgres
from tests.support.clock import Clock
from tests.support.cutting_proxy import CuttingProxy
from tests.support.faults import Fault
from tests.support.workers import finished, handler, outcome, result, submit, until, working

both_drivers = pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])

INSERT = "INSERT INTO effects (n) VALUES (1)"


backend = only_postgres


@pytest.fixture
def effects(backend: Backend) -> Iterator[Any]:
    """Counts the rows that steps have committed."""
    backend.execute("DROP TABLE IF EXISTS effects")
    backend.execute("CREATE TABLE effects (n INTEGER)")
    yield lambda: backend.execute("SELECT count(*) FROM effects")[0][0]
    backend.execute("DROP TABLE IF EXISTS effects")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing between two tries."""

    async def no_pause(_: float) -> None: ...

    monkeypatch.setattr(outage, "OUTAGE_BACKOFF", RetryPolicy(initial=0, max=0))
    monkeypatch.setattr(retrying, "pause", no_pause)


def a_step(plain: bool, *statements: Any) -> tuple[Any, list[Any]]:
    """Return a step that runs statements, and what the last of them answered, try by try.

    A statement may be a list: then its next element is for this try, the last one for all others.
    """
    tries: list[Any] = []

    def texts() -> list[str]:
        tries.append(None)
        nth = len(tries) - 1
        return [s if isinstance(s, str) else s[min(nth, len(s) - 1)] for s in statements]

    def plain_step(connection: psycopg.Connection[Any]) -> Any:
        for text in texts():
            cursor = connection.execute(text)
        tries[-1] = cursor.fetchone()[0] if cursor.description else cursor.rowcount  # type: ignore[index]
        return tries[-1]

    async def async_step(connection: asyncpg.Connection) -> Any:
        for text in texts():
            tries[-1] = await connection.fetchval(text)
        return tries[-1]

    return (plain_step if plain else async_step), tries


def in_a_transaction(step: Any, **options: Any) -> Any:
    async def work(ctx: Context) -> Any:
        return await ctx.step(step, tx=True, **options)

    return work


# -- a database that goes away --------------------------------------------------------------------


@pytest.fixture
async def cut(postgres_url: str, backend: Backend, clock: Clock) -> AsyncIterator[Any]:
    """A store behind a proxy that cuts connections."""
    address = urlsplit(postgres_url)
    login, at, _ = address.netloc.rpartition("@")
    with CuttingProxy(address.hostname or "", address.port or 5432) as proxy:
        behind = address._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}").geturl()
        store = PostgresBackend(behind, clock).open()
        yield store, proxy
        await store.aclose()


@both_drivers
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_commit_that_nobody_answers_for_is_asked_about_until_somebody_does(
    cut: Any, effects: Any, plain: bool, moment: Any
):
    """The answer is lost, and then the database is down for longer than storage retry lasts."""
    store, proxy = cut
    inner, tries = a_step(plain, INSERT)

    async def step(connection: Any) -> Any:
        value = await inner(connection)
        arm()
        return value

    def plain_step(connection: Any) -> Any:
        value = inner(connection)
        arm()
        return value

    def arm() -> None:
        if len(tries) == 1:
            proxy.arm(b"\x0bCOMMIT\0" if plain else b"COMMIT;\0", moment)  # the step's own

    away = Fault(store, "was_recorded", "before", times=20)
    job = await outcome(store, in_a_transaction(plain_step if plain else step))
    assert (job.status, job.attempts, effects()) == (Status.SUCCEEDED, 1, 1), job.last_error
    assert (proxy.cuts, away.hits) == (1, 20)
    assert len(tries) == (1 if moment == "after" else 2)


END_ME = "SELECT pg_terminate_backend(pg_backend_pid())::text"


@both_drivers
async def test_a_session_that_is_ended_under_a_step_costs_no_attempt(
    store: PostgresStore, effects: Any, plain: bool
):
    step, tries = a_step(plain, INSERT, [END_ME, END_ME, "SELECT 'fine'"])
    job = await outcome(store, in_a_transaction(step))
    assert (job.status, job.attempts, effects()) == (Status.SUCCEEDED, 1, 1), job.last_error
    assert (result(job), len(tries)) == ("fine", 3)


@both_drivers
async def test_a_step_that_ends_all_its_sessions_fails(
    store: PostgresStore, effects: Any, plain: bool
):
    """It may be what kills them, and the server with them: that must not go on for ever."""
    step, tries = a_step(plain, INSERT, END_ME)
    job = await outcome(store, in_a_transaction(step))
    assert (job.status, effects(), len(tries)) == (Status.DEAD_LETTERED, 0, MOST_LOSSES + 1)
    # The server's words, or asyncpg's where the session ended before it had read them.
    assert re.search("terminating connection|connection was closed", job.last_error or "")


@both_drivers
async def test_a_session_of_the_steps_own_is_its_own_affair(
    store: PostgresStore, effects: Any, plain: bool
):
    calls: list[int] = []

    def plain_step(_: Any) -> None:
        calls.append(1)
        with psycopg.connect(store_url) as own:
            own.execute(END_ME)

    async def step(connection: Any) -> None:
        plain_step(connection)

    store_url = psycopg.conninfo.make_conninfo(**store.address.keywords)
    job = await outcome(store, in_a_transaction(plain_step if plain else step))
    assert (job.status, calls) == (Status.DEAD_LETTERED, [1])


# -- connections for plain steps ------------------------------------------------------------------


async def test_a_plain_step_opens_no_connection_while_a_fork_is_under_way(store: PostgresStore):
    """libpq's locks, held while it connects, would be held for ever in the child."""
    store.pause(give_up_at=0)
    opening = asyncio.create_task(asyncio.to_thread(store.connect_for_a_step))
    await asyncio.sleep(0.3)  # a connection takes some milliseconds
    assert not opening.done()
    store.resume()
    (await opening).close()


async def test_a_plain_step_leaves_a_full_server_alone(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    crowding = store._sessions.crowding
    crowding.note(psycopg.errors.TooManyConnections())
    with pytest.raises(TooManyConnections, match="none is opened"):
        store.connect_for_a_step()
    crowding._until = -math.inf
    noted: list[object] = []
    monkeypatch.setattr(crowding, "note", noted.append)
    store.connect_for_a_step().close()
    assert noted == [None]


# -- what a session is, and what it leaves --------------------------------------------------------


@both_drivers
async def test_the_servers_default_isolation_is_not_that_of_a_step(
    backend: PostgresBackend, plain: bool
):
    url = f"{backend.url}?options=-cdefault_transaction_isolation%3Drepeatable%5C%20read"
    store = PostgresStore(url, PostgresOptions(**AT_ONCE_OPTIONS))
    step, _ = a_step(plain, "SHOW transaction_isolation")
    job = await outcome(store, in_a_transaction(step))
    assert result(job) == "read committed"
    await store.aclose()


@both_drivers
async def test_a_step_that_takes_too_long_leaves_no_statement_and_no_lock(
    store: PostgresStore, admin: Any, effects: Any, plain: bool
):
    step, _ = a_step(plain, "LOCK TABLE effects", "SELECT pg_sleep(600)::text")
    job = await outcome(store, in_a_transaction(step, timeout=0.05))
    assert "took longer than" in (job.last_error or "")
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
        "AND query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()"
    )
    await until(lambda: not admin.execute(query).fetchall())
    admin.execute("SET lock_timeout = '10s'")
    admin.execute(INSERT)


def in_transactions(admin: psycopg.Connection[Any]) -> int:
    """Return how many sessions run a step; one that was just closed may still be listed."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'pulsed/step' AND xact_start IS NOT NULL"
    )
    ((count,),) = admin.execute(query).fetchall()
    return int(count)


@both_drivers
async def test_steps_have_no_more_sessions_than_the_pool_has(
    backend: PostgresBackend, admin: Any, effects: Any, plain: bool
):
    store = backend.open(pool_size=2)
    most: list[int] = []

    def plain_step(connection: psycopg.Connection[Any]) -> None:
        connection.execute(INSERT)
        with psycopg.connect(backend.url) as own:
            most.append(in_transactions(own))

    async def step(connection: asyncpg.Connection) -> None:
        await connection.execute(INSERT)
        most.append(await asyncio.to_thread(in_transactions, admin))

    work = handler(in_a_transaction(plain_step if plain else step))
    jobs = [await submit(store, "work") for _ in range(10)]
    async with working(store, work, concurrency=10):
        assert {(await finished(store, job)).attempts for job in jobs} == {1}
    assert effects() == 10
    assert max(most) <= 2
    await store.aclose()

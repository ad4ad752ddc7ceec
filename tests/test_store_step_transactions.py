"""A step's own transaction: its effect and its checkpoint are stored together, or neither is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from pulsed.errors import LeaseLost, StorageError, TransientStorageError
from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease, Status
from pulsed.model.outcome import Released
from pulsed.model.step import StepState
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.workflows import CommitUnknown
from tests.support.backends import AT_ONCE_OPTIONS, Backend, PostgresBackend
from tests.support.checkpoints import a_step, recorded
from tests.support.cutting_proxy import CuttingProxy
from tests.support.jobs import BOB, claim_one, row, running, settle

pytestmark = pytest.mark.embedded("a transaction cannot reach through a server")

both_drivers = pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])


@pytest.fixture
def effects(backend: Backend) -> Iterator[Any]:
    """Counts what steps have committed."""
    yield from counted(backend)


def counted(backend: Backend) -> Iterator[Any]:
    backend.execute("DROP TABLE IF EXISTS effects")
    backend.execute("CREATE TABLE effects (n INTEGER)")
    yield lambda: backend.execute("SELECT count(*) FROM effects")[0][0]
    backend.execute("DROP TABLE IF EXISTS effects")


async def write(connection: Any, sql: str = "INSERT INTO effects (n) VALUES (1)") -> None:
    """Do something with whatever driver it is."""
    if isinstance(connection, asyncpg.Connection):
        await connection.execute(sql)
    else:
        await asyncio.to_thread(connection.execute, sql)


async def fail(_: Any) -> None:
    raise ZeroDivisionError


Act = Callable[[Any], Awaitable[Any]]


async def step(store: Any, lease: Lease, plain: bool, *acts: Act) -> None:
    """Do things in a step's transaction, and commit it."""
    async with store.workflows.transaction(lease, plain=plain) as transaction:
        for act in acts:
            await act(transaction.connection)
        await transaction.commit(a_step())


async def names(store: Any, lease: Lease) -> list[str]:
    return [one.name for one in (await store.workflows.history(lease.job_id)).checkpoints]


@both_drivers
async def test_effect_and_checkpoint_are_committed_together(store, effects, plain):
    run = await running(store)
    async with store.workflows.transaction(run.lease, plain=plain) as transaction:
        await write(transaction.connection)
        assert effects() == 0
        await transaction.commit(a_step(value='{"n":1}'))
    assert effects() == 1
    (found,) = (await store.workflows.history(run.job_id)).checkpoints
    assert (found.state, found.value) == (StepState.DONE, '{"n":1}')


@both_drivers
async def test_a_transaction_that_is_left_without_a_commit_is_undone(store, effects, plain):
    run = await running(store)
    async with store.workflows.transaction(run.lease, plain=plain) as transaction:
        await write(transaction.connection)
    with pytest.raises(ZeroDivisionError):
        await step(store, run.lease, plain, write, fail)
    assert (effects(), await names(store, run.lease)) == (0, [])
    await step(store, run.lease, plain)
    assert (effects(), await names(store, run.lease)) == (0, ["charge"])


@both_drivers
@pytest.mark.parametrize("why", ["token", "owner", "stored before"])
async def test_whoever_is_not_its_run_any_more_commits_nothing(store, effects, plain, why):
    run = await running(store)
    lease = run.lease
    if why == "token":
        await settle(store, run, Released())
        run = await claim_one(store)
    elif why == "owner":
        lease = lease._replace(worker_id=BOB)
    else:
        await recorded(store, run, a_step())
    before = await names(store, run.lease)
    with pytest.raises(LeaseLost):
        await step(store, lease, plain, write)
    assert (effects(), await names(store, run.lease)) == (0, before)


async def test_a_lease_that_is_lost_during_the_step_undoes_it(store, backend, effects):
    """On PostgreSQL other sessions continue; on SQLite they cannot, and find the job as it was."""
    run = await running(store)
    if backend.engine == "sqlite":
        async with store.workflows.transaction(run.lease, plain=False) as transaction:
            other = asyncio.create_task(settle(store, run, Released()))
            await write(transaction.connection)
            await transaction.commit(a_step())
        assert await other
        assert (effects(), await names(store, run.lease)) == (1, ["charge"])
        return
    with pytest.raises(LeaseLost):
        await step(store, run.lease, False, write, lambda _: settle(store, run, Released()))
    assert (effects(), await names(store, run.lease)) == (0, [])


@both_drivers
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_step_that_ends_the_transaction_itself_is_refused(
    store, backend, effects, plain, end
):
    """On SQLite at once; on PostgreSQL when it is to be committed, without a checkpoint."""
    run = await running(store)
    with pytest.raises((StorageError, sqlite3.DatabaseError)) as refused:
        await step(store, run.lease, plain, write, lambda connection: write(connection, end))
    if backend.engine == "sqlite":
        assert "not authorized" in str(refused.value)
        assert effects() == 0
    else:
        assert isinstance(refused.value, StorageError)
        assert "COMMIT and ROLLBACK" in str(refused.value)
    assert await names(store, run.lease) == []
    assert (await row(store, run.job_id)).status is Status.RUNNING


async def test_a_database_in_memory_has_no_transaction_for_steps():
    from pulsed.store.sqlite.store import SqliteStore  # noqa: PLC0415 - for this one test

    store = SqliteStore(None)
    run = await running(store)
    with pytest.raises(StorageError, match="in memory"):
        async with store.workflows.transaction(run.lease, plain=False):
            pass
    await store.aclose()


# -- a commit whose answer is lost ----------------------------------------------------------------


@pytest.fixture
async def cut(postgres_url, clock) -> AsyncIterator[Any]:
    """A store behind a proxy that cuts connections; and a calm one, and what was committed."""
    address = urlsplit(postgres_url)
    backend = PostgresBackend(postgres_url, clock)
    calm = backend.open()
    await calm.now()
    backend.empty()
    login, at, _ = address.netloc.rpartition("@")
    with CuttingProxy(address.hostname or "", address.port or 5432) as proxy:
        behind = address._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}").geturl()
        store = PostgresStore(behind, PostgresOptions(**AT_ONCE_OPTIONS), clock=clock)
        effects = counted(backend)
        yield store, calm, proxy, next(effects)
        await store.aclose()
        await calm.aclose()
        for _ in effects:
            pass


@both_drivers
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_commit_whose_answer_is_lost_can_be_looked_up(cut, plain, moment):
    store, calm, proxy, effects = cut
    run = await running(store)

    async def arm(_: Any) -> None:
        proxy.arm(b"COMMIT", moment)

    with pytest.raises(CommitUnknown):
        await step(store, run.lease, plain, write, arm)
    committed = moment == "after"
    async with store.workflows.transaction(run.lease, plain=plain) as transaction:
        pass
    assert await transaction.was_committed(a_step()) is committed
    expected = (1, ["charge"]) if committed else (0, [])
    assert (effects(), await names(calm, run.lease)) == expected
    assert proxy.cuts == 1


@both_drivers
async def test_a_connection_lost_before_the_checkpoint_undoes_the_effect(cut, plain):
    store, calm, proxy, effects = cut
    run = await running(store)

    async def arm(_: Any) -> None:
        proxy.arm(b"pulse_checkpoints", "before")

    with pytest.raises(TransientStorageError):
        await step(store, run.lease, plain, write, arm)
    assert (effects(), await names(calm, run.lease)) == (0, [])
    assert proxy.cuts == 1


@both_drivers
async def test_a_database_that_is_away_is_said_to_be_so(plain):
    """As an error of its own kind: a run waits for the database, and loses no try to it."""
    store = PostgresStore("postgresql://127.0.0.1:1/nobody")
    with pytest.raises(TransientStorageError, match=r"127\.0\.0\.1"):
        async with store.workflows.transaction(Lease(new_job_id(), 1, BOB), plain=plain):
            raise AssertionError
    await store.aclose()

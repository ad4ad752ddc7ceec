"""Synchronous replication: what was acknowledged is on the standby, however it came to that.

A COMMIT waits for the standby; when its session is ended then, the rows are there and no
standby has them. A verb that finds such rows, a retry above all, must wait for the standby, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from pulsed.engine.upkeep.scheduler import decide
from pulsed.errors import TransientStorageError
from pulsed.model.control import ControlScope
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from pulsed.model.outcome import Failed, Succeeded
from pulsed.model.step import StepKind
from pulsed.model.workflow import Record, Signal
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.notify import notify
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.results import Submitted
from pulsed.store.verbs import keys
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.checkpoints import a_family, a_step, a_wait, children_of, send, take
from tests.support.jobs import (
    ALICE,
    POLICIES,
    a_job,
    a_policy,
    claim_one,
    one_attempt,
    row,
    running,
    settle,
    submitted,
)
from tests.support.schedules import APP, MINUTE, a_spec, put
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.waiting import until

LOCAL = "?options=-csynchronous_commit%3Dlocal"
"""For a session whose commits wait for no standby: as if theirs had been cut short."""


def waiting(admin: psycopg.Connection[Any]) -> list[int]:
    """The sessions whose commit waits for the standby."""
    rows = admin.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return [pid for (pid,) in rows]


def a_store(url: str, **options: Any) -> PostgresStore:
    return PostgresStore(url, PostgresOptions(**AT_ONCE_OPTIONS | options))


# -- every verb, on a primary whose standby is down -----------------------------------------------


@pytest.fixture(scope="module")
def lonely() -> Iterator[str]:
    """A primary with tables that waits for a standby which never comes."""
    with ScratchPostgres(settings={"synchronous_standby_names": "nobody"}) as server:
        store = a_store(server.url + LOCAL)
        run_blocking(store.migrate())
        run_blocking(store.aclose())
        yield server.url


@pytest.fixture
def admin(lonely: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(lonely + LOCAL, autocommit=True) as admin:
        for table in ("jobs", "checkpoints", "signals", "schedules", "tokens"):
            admin.execute(f"DELETE FROM pulse_{table}")
        yield admin


@pytest.fixture
async def local(lonely: str) -> AsyncIterator[PostgresStore]:
    """A store that waits for no standby."""
    store = a_store(lonely + LOCAL)
    yield store
    await store.aclose()


Act = Callable[[PostgresStore], Coroutine[Any, Any, Any]]


async def submit(_: PostgresStore) -> Act:
    job = a_job()
    return lambda store: store.submit([job])


async def settle_success(local: PostgresStore) -> Act:
    run = await running(local)
    return lambda store: settle(store, run, Succeeded("1"))


async def settle_failure(local: PostgresStore) -> Act:
    run = await running(local)
    return lambda store: settle(store, run, Failed("no"))


async def settle_child(local: PostgresStore) -> Act:
    _, [run] = await a_family(local, 1)
    return lambda store: settle(store, run, Succeeded("1"))


async def suspend(local: PostgresStore) -> Act:
    run = await running(local)
    return lambda store: settle(store, run, a_wait(StepKind.SLEEP, delay=60))


async def record(local: PostgresStore) -> Act:
    run = await running(local)
    return lambda store: store.workflows.record([Record(run.lease, a_step())])


async def add_children(local: PostgresStore) -> Act:
    parent = await running(local)
    children = children_of(parent.job_id, 1)
    return lambda store: store.workflows.add_children(parent.lease, children)


async def signal(local: PostgresStore) -> Act:
    sent = Signal(id=new_job_id(), job_id=await submitted(local), name="go", payload="1")
    return lambda store: store.workflows.signal(sent)


async def take_signal(local: PostgresStore) -> Act:
    run = await running(local)
    await send(local, run.job_id)
    return lambda store: take(store, run.lease)


async def cancel(local: PostgresStore) -> Act:
    job_id = await submitted(local)
    return lambda store: store.cancel([job_id])


async def replay(local: PostgresStore) -> Act:
    run = await running(local, **one_attempt())
    await settle(local, run, Failed("no"))
    return lambda store: store.replay([run.job_id])


async def delete(local: PostgresStore) -> Act:
    job_id = await submitted(local)
    return lambda store: store.delete([job_id])


async def put_schedule(_: PostgresStore) -> Act:
    return lambda store: store.schedules.put(APP, "s", a_spec())


async def pause_schedule(local: PostgresStore) -> Act:
    await put(local)
    return lambda store: store.schedules.pause(APP, "s")


async def delete_schedule(local: PostgresStore) -> Act:
    await put(local)
    return lambda store: store.schedules.delete(APP, "s")


async def fire(local: PostgresStore) -> Act:
    row = (await put(local)).row
    due = decide(row, row.created_at + MINUTE)
    return lambda store: store.schedules.fire([due])


async def add_token(_: PostgresStore) -> Act:
    token = tokens.Token("t", "digest", ("work",), None, None)
    return lambda store: tokens.add(store, token)


ACTS = [
    submit, settle_success, settle_failure, settle_child, suspend, record, add_children, signal,
    take_signal, cancel, replay, delete, put_schedule, pause_schedule, delete_schedule, fire,
    add_token,
]  # fmt: skip


async def waits_for_the_standby(task: asyncio.Task[Any], admin: psycopg.Connection[Any]) -> int:
    """Let a task go on each time it waits for the standby; returns how many sessions did."""
    waited: set[int] = set()
    while not task.done():
        for pid in waiting(admin):
            admin.execute("SELECT pg_cancel_backend(%s)", [pid])
            waited.add(pid)
        await asyncio.sleep(0.001)
    return len(waited)


def lose_first_answers(store: PostgresStore, local: PostgresStore) -> None:
    """Let the first try of every verb commit without a standby, and lose its answer."""
    perform, lost = store.perform, set[int]()

    async def performing(verb: Verb[Any]) -> Any:
        if verb.kind is VerbKind.READ or id(verb.script) in lost:
            return await perform(verb)
        lost.add(id(verb.script))
        await local.perform(verb)
        raise TransientStorageError("the commit's session was ended")

    setattr(store, "perform", performing)  # noqa: B010 - an instance's own method


OTHER_WAYS = [(act, how) for act in (submit, record, cancel) for how in ("blocking", "pooled")]


@pytest.mark.parametrize(
    "prepare, how",
    [*((act, "async") for act in ACTS), *OTHER_WAYS],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_retry_that_finds_its_work_done_waits_for_the_standby(
    lonely: str, local: PostgresStore, admin: Any, prepare: Any, how: str
):
    act = await prepare(local)
    store = a_store(lonely, prepared_statements=how != "pooled", migrate=False)
    await store.applied_migrations()
    lose_first_answers(store, local)
    if how == "blocking":
        calling = asyncio.to_thread(lambda: run_blocking(act(store)))
        task = asyncio.create_task(calling)
    else:
        task = asyncio.create_task(act(store))
    assert await waits_for_the_standby(task, admin) > 0
    task.result()
    await store.aclose()


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "batch"])
async def test_another_caller_who_finds_the_job_waits_for_the_standby(
    lonely: str, local: PostgresStore, admin: Any, count: int
):
    jobs = [a_job() for _ in range(count)]
    await local.submit(jobs)
    store = a_store(lonely)
    task = asyncio.create_task(store.submit(jobs))
    assert await waits_for_the_standby(task, admin) == 1
    assert task.result().new == 0
    await store.aclose()


async def test_who_finds_a_key_held_waits_for_the_standby_to_have_its_holder(
    lonely: str, local: PostgresStore, admin: Any, monkeypatch: pytest.MonkeyPatch
):
    """Also if another job has taken the key since this one was not stored."""
    first, second = a_job(key="k"), a_job(key="k")
    await local.submit([first])
    conflicts, waited = keys._conflicts, []
    has_changed = False

    def change_hands() -> None:
        run_blocking(local.cancel([first.id]))
        run_blocking(local.submit([second]))

    def changed_meanwhile(*args: Any) -> Any:
        nonlocal has_changed
        thread = threading.Thread(target=change_hands)
        thread.start()
        thread.join()
        has_changed = True
        return (yield from conflicts(*args))

    monkeypatch.setattr(keys, "_conflicts", changed_meanwhile)
    store = a_store(lonely)
    task = asyncio.create_task(store.submit([a_job(key="k")]))
    while not task.done():
        for pid in waiting(admin):
            admin.execute("SELECT pg_cancel_backend(%s)", [pid])
            waited.append(has_changed)
        await asyncio.sleep(0.001)
    assert task.result().holders == {0: second.id}
    assert waited[-1]
    await store.aclose()


async def test_a_primary_that_has_lost_its_standby_hands_out_no_job(
    lonely: str, local: PostgresStore, admin: Any
):
    """It may be the old one, thawed: the new primary has given these jobs to others."""
    job_id = await submitted(local)
    store = a_store(lonely)
    await store.applied_migrations()
    task = asyncio.create_task(claim_one(store))
    assert await waits_for_the_standby(task, admin) == 1
    assert task.result().job_id == job_id
    await store.aclose()


LIMITED = [a_policy(limit_name="api")]

LOOKS: dict[str, Act] = {
    "claim": lambda store: store.claim(ALICE, "default", POLICIES, 10),
    "claim within limits": lambda store: store.claim(ALICE, "default", LIMITED, 10),
    "claim of a paused queue": lambda store: store.claim(ALICE, "paused", POLICIES, 10),
    "get": lambda store: store.get([new_job_id()]),
    "expire": lambda store: store.expire(),
    "cascade": lambda store: store.workflows.cascade(),
    "prune": lambda store: store.prune({Status.CANCELLED: 60.0}, limit=10),
    "prune schedules": lambda store: store.schedules.prune(60.0, limit=10),
    "fold": lambda store: store.rollups.fold(keep=None, limit=10),
    "notify": lambda store: store.perform(notify("pulsed", {"default"})),
    "notify several": lambda store: store.perform(notify("pulsed", {"default", "mail"})),
}


@pytest.mark.parametrize("how", ["async", "blocking"])
@pytest.mark.parametrize("look", LOOKS)
async def test_who_finds_nothing_to_do_waits_for_nobody(
    lonely: str, local: PostgresStore, admin: Any, look: str, how: str
):
    """An idle worker writes nothing, and keeps polling while the standby is down."""
    await local.controls.pause(ControlScope.QUEUE, "paused")
    store = a_store(lonely, migrate=False)
    await store.applied_migrations()
    looking = LOOKS[look](store)
    if how == "blocking":
        looking = asyncio.to_thread(run_blocking, looking)
    assert await waits_for_the_standby(asyncio.create_task(looking), admin) == 0
    await store.aclose()


@pytest.mark.parametrize("driver", ["psycopg", "async psycopg", "asyncpg"])
async def test_the_callers_own_commit_waits_when_the_job_is_there_already(
    lonely: str, local: PostgresStore, admin: Any, driver: str
):
    """The caller tries its whole transaction again, with the same id."""
    job = a_job()
    await local.submit([job])
    store = a_store(lonely)

    def blocking() -> int:
        with psycopg.connect(lonely) as connection:
            return run_blocking(store.joined(connection).submit([job])).new

    async def in_async_psycopg() -> int:
        async with await psycopg.AsyncConnection.connect(lonely) as connection:
            return (await store.joined(connection).submit([job])).new

    async def in_asyncpg() -> int:
        connection = await asyncpg.connect(lonely)
        async with connection.transaction():
            count = (await store.joined(connection).submit([job])).new
        await connection.close()
        return count

    calls = {"async psycopg": in_async_psycopg, "asyncpg": in_asyncpg}
    call = asyncio.to_thread(blocking) if driver == "psycopg" else calls[driver]()
    task = asyncio.ensure_future(call)
    assert await waits_for_the_standby(task, admin) == 1
    assert task.result() == 0


# -- a primary that is lost -----------------------------------------------------------------------


async def test_nothing_acknowledged_is_lost_with_the_primary():
    """The standby hangs, the commits that wait for it are cut off, their retries wait in turn."""
    with (
        ScratchPostgres(settings={"synchronous_standby_names": "standby"}) as primary,
        primary.standby() as standby,
        psycopg.connect(primary.url, autocommit=True) as admin,
    ):
        store = a_store(primary.url)
        run = await running(store)
        first, second = a_job(), a_job()
        standby.freeze()
        tasks = [
            asyncio.create_task(store.submit([first])),
            asyncio.create_task(asyncio.to_thread(lambda: run_blocking(store.submit([second])))),
            asyncio.create_task(settle(store, run, Succeeded("1"))),
        ]
        await until(lambda: len(waiting(admin)) == len(tasks))
        cut = waiting(admin)
        for pid in cut:
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        await until(lambda: len(set(waiting(admin)) - {*cut}) == len(tasks))
        found = await store.get([first.id, second.id])
        assert len(found) == 2  # the first tries are visible, but no standby has confirmed them
        assert not any(task.done() for task in tasks)
        standby.thaw()
        found_again = Submitted(1, unknown=frozenset([0]))
        assert await asyncio.gather(*tasks) == [found_again, found_again, True]
        await store.aclose()
        primary.kill()
        standby.promote()
        store = a_store(standby.url)
        assert set(await store.get([first.id, second.id])) == {first.id, second.id}
        assert (await row(store, run.job_id)).status is Status.SUCCEEDED
        await store.aclose()

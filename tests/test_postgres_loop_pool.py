"""The pool of an event loop: its slots, its deadlines, and how it uses the driver."""

import asyncio

import pytest

from pulsed.errors import TransientStorageError
from pulsed.store.postgres import asyncpg_overdue
from pulsed.store.postgres.asyncpg_connection import AsyncpgConnection
from pulsed.store.postgres.asyncpg_lane import Slots
from pulsed.store.postgres.session import Lane, Sessions
from pulsed.store.postgres.store import PostgresStore
from pulsed.store.verbs.script import VerbKind
from tests.support.jobs import a_job
from tests.support.raw_verbs import a_verb
from tests.support.silent_proxy import SilentProxy
from tests.support.workers import until


@pytest.fixture
async def store(postgres_url):
    store = PostgresStore(postgres_url)
    yield store
    await store.aclose()


def pool_of(store):
    (pool,) = store._loops._kept.values()
    return pool


# -- the driver -----------------------------------------------------------------------------------


async def test_a_prepared_statement_goes_to_the_protocol_of_the_driver(store, monkeypatch):
    """If a release of asyncpg changes names that are not public, it is only slower: see here."""
    later = {"delay": 3600.0}  # no notification, which may keep the connection for a moment
    await store.submit([a_job(**later)])
    assert [tuple(row) for row in await store.perform(a_verb("SELECT 1"))] == [(1,)]

    def unused(*_args, **_options):
        raise AssertionError("a known statement took the long way")

    monkeypatch.setattr(AsyncpgConnection, "execute", unused)
    monkeypatch.setattr(AsyncpgConnection, "fetch", unused)
    assert (await store.submit([a_job(**later)])).new == 1
    assert [tuple(row) for row in await store.perform(a_verb("SELECT 1"))] == [(1,)]


# -- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [VerbKind.SINGLE, VerbKind.TRANSACTION])
async def test_a_statement_without_an_answer_is_given_up(postgres_url, monkeypatch, kind):
    monkeypatch.setattr(Sessions, "client_timeout", lambda *_: 0.3)
    monkeypatch.setattr(asyncpg_overdue, "CHECK_EVERY", 0.05)
    with SilentProxy(postgres_url) as proxy:
        store = PostgresStore(proxy.url)
        await store.perform(a_verb("SELECT 1", kind))
        proxy.silence()
        with pytest.raises(TransientStorageError, match=r"no answer within 0.3 s"):
            await store.perform(a_verb("SELECT 1", kind))
        rows = await store.perform(a_verb("SELECT 1", kind))
        assert [tuple(row) for row in rows] == [(1,)]
        await store.aclose()


async def test_each_answer_of_a_verb_has_its_own_deadline(store, monkeypatch):
    monkeypatch.setattr(Sessions, "client_timeout", lambda *_: 0.4)
    monkeypatch.setattr(asyncpg_overdue, "CHECK_EVERY", 0.02)
    slow = a_verb("SELECT 1 FROM pg_sleep(0.25)")
    one = slow.script

    def script():
        yield from one()
        return (yield from one())

    slow.script = script
    assert [tuple(row) for row in await store.perform(slow)] == [(1,)]


async def test_without_a_statement_in_flight_there_is_no_timer(store, monkeypatch):
    monkeypatch.setattr(asyncpg_overdue, "CHECK_EVERY", 0.01)
    await store.submit([a_job()])
    overdue = pool_of(store)._overdue
    assert not overdue.in_flight
    await until(lambda: overdue._timer is None)
    await store.perform(a_verb("SELECT 1"))
    assert overdue._timer is not None


async def test_a_statement_in_flight_keeps_its_deadline_when_the_pool_is_closed(
    postgres_url, monkeypatch
):
    monkeypatch.setattr(Sessions, "client_timeout", lambda *_: 0.3)
    monkeypatch.setattr(asyncpg_overdue, "CHECK_EVERY", 0.05)
    with SilentProxy(postgres_url) as proxy:
        store = PostgresStore(proxy.url)
        await store.perform(a_verb("SELECT 1"))
        proxy.silence()
        waiting = asyncio.create_task(store.perform(a_verb("SELECT 1")))
        await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(TransientStorageError, match=r"no answer within 0.3 s"):
            await asyncio.wait_for(waiting, 30)


def test_only_lanes_with_deadlines_go_without_the_timers_of_the_driver():
    sessions = PostgresStore("postgresql://localhost/x")._sessions
    without = {lane for lane in Lane if sessions.driver_timeout(lane) is None}
    assert without == {Lane.WORK, Lane.CLAIM, Lane.SETTLE}


# -- slots ----------------------------------------------------------------------------------------


async def waiting(slots, count):
    """Start so many callers that wait for a slot, in order; each keeps it."""
    order: list[int] = []

    async def caller(number):
        await slots.take()
        order.append(number)

    tasks = [asyncio.create_task(caller(number)) for number in range(count)]
    await asyncio.sleep(0)
    return tasks, order


async def test_slots_go_to_those_who_wait_longest():
    slots = Slots(1)
    assert slots.take_free()
    tasks, order = await waiting(slots, 3)
    assert not slots.take_free()
    for _ in tasks:
        slots.give_back()
        assert not slots.take_free()  # it belongs to the one who waits
        await asyncio.sleep(0)
    assert order == [0, 1, 2]
    slots.give_back()
    assert slots.take_free()


async def test_a_cancelled_caller_leaves_its_place():
    slots = Slots(1)
    await slots.take()
    tasks, order = await waiting(slots, 2)
    tasks[0].cancel()
    await asyncio.sleep(0)
    slots.give_back()
    await tasks[1]
    assert order == [1]
    slots.give_back()
    assert slots.take_free()


@pytest.mark.parametrize("given_first", [True, False])
async def test_no_slot_is_lost_if_a_caller_is_cancelled_in_the_turn_it_gets_one(given_first):
    slots = Slots(1)
    await slots.take()
    (task,), order = await waiting(slots, 1)
    if given_first:
        slots.give_back()
        task.cancel()
    else:
        task.cancel()
        slots.give_back()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order == []
    assert slots.take_free()
    assert not slots.take_free()

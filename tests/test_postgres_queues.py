"""Pauses and limits of queues on PostgreSQL: claims in flight, locks, guards by absence."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4
from zlib import crc32

import psycopg
import pytest

from pulsed.model.control import ControlScope, Numbers
from pulsed.store.postgres.statements import QUEUE_LOCK
from pulsed.store.sql.statement import Rows, Sql, Statement
from pulsed.store.verbs import claim as claim_verb
from pulsed.store.verbs.floors import Floors
from pulsed.store.verbs.script import drive
from pulsed.store.verbs.topics import topics_of
from tests.support.backends import only_postgres
from tests.support.guards import check
from tests.support.jobs import ALICE, a_job, claim, claim_one, submitted
from tests.support.statements import postgres_engine
from tests.test_queue_races import FREE, a_claim_that_has_not_seen_the_pause

backend = only_postgres

QUEUE = (ControlScope.QUEUE, "default")


async def test_a_pause_waits_for_a_claim_in_flight(backend):
    """One that has begun before the pause, and so has not seen it."""
    store = backend.open()
    await submitted(store)
    with psycopg.connect(backend.url, application_name="pulsed/claim") as claiming:
        claiming.execute("UPDATE pulse_jobs SET updated_at = updated_at")
        pausing = asyncio.create_task(store.controls.pause(*QUEUE))
        assert await asyncio.wait({pausing}, timeout=0.2) == (set(), {pausing})
        claiming.commit()
        assert (await asyncio.wait_for(pausing, 10)).paused
    await store.aclose()


async def test_a_pause_does_not_wait_for_other_transactions(backend):
    """Such as yours, in which you enqueue: it may take minutes."""
    store = backend.open()
    await submitted(store)
    with psycopg.connect(backend.url, application_name="shop") as yours:
        yours.execute("UPDATE pulse_jobs SET updated_at = updated_at")
        await asyncio.wait_for(store.controls.pause(*QUEUE), 5)
    await store.aclose()


@contextlib.contextmanager
def locking(url: str, lock: str, name: str = "pulsed/claim") -> Iterator[psycopg.Connection[Any]]:
    """A session of this name, whose transaction has a lock."""
    with psycopg.connect(url, application_name=name) as session:
        session.execute(f"LOCK TABLE {lock} MODE")
        yield session


def in_flight(session: psycopg.Connection[Any]) -> int:
    """Return how many claims a session finds in flight."""
    statement = Statement(postgres_engine().claiming.in_flight, {})
    return len(session.execute(statement.sql.text).fetchall())


@pytest.mark.parametrize(
    "lock, name, expected",
    [
        ("pulse_jobs IN ROW EXCLUSIVE", "pulsed/claim", 1),
        ("pulse_jobs IN ROW EXCLUSIVE", "pulsed/sync", 1),
        ("pulse_jobs IN ROW EXCLUSIVE", "pulsed/work", 0),
        ("pulse_jobs IN ACCESS SHARE", "pulsed/claim", 0),
        ("pulse_controls IN ROW EXCLUSIVE", "pulsed/claim", 0),
    ],
)
async def test_a_claim_in_flight_is_guarded_by_its_lock_and_its_name(backend, lock, name, expected):
    store = backend.open()
    await store.now()
    idle = psycopg.connect(backend.url, application_name="pulsed/claim")
    with contextlib.closing(idle), locking(backend.url, lock, name) as claiming:
        assert in_flight(idle) == expected
        assert in_flight(claiming) == 0, "its own transaction"
    await store.aclose()


async def test_a_claim_that_still_waits_for_the_guarded_table_is_not_in_flight(backend):
    """It takes its snapshot after the lock, so it will see the pause."""
    store = backend.open()
    await store.now()
    waiting = psycopg.connect(backend.url, application_name="pulsed/claim")
    with contextlib.closing(waiting), locking(backend.url, "pulse_jobs IN SHARE", "shop"):
        waiting.execute("SELECT 1")  # begins a transaction
        waiting.pgconn.send_query(b"LOCK TABLE pulse_jobs IN ROW EXCLUSIVE MODE")
        waits = f"SELECT 1 FROM pg_locks WHERE pid = {waiting.info.backend_pid} AND NOT granted"
        while not backend.execute(waits):
            pass
        with contextlib.closing(backend.connect()) as session:
            assert in_flight(session) == 0
        waiting.cancel()
        while waiting.pgconn.get_result() is not None:
            pass  # it has stopped waiting
    await store.aclose()


def test_a_claim_in_flight_is_guarded_by_its_database(backend):
    """Tables of a database that was copied have the same numbers."""
    with contextlib.closing(backend.connect()) as admin:
        names = [f"{admin.info.dbname}_{each}" for each in ("one", "two")]
        urls = [backend.url.replace(admin.info.dbname, name) for name in names]
        try:
            admin.execute(f"CREATE DATABASE {names[0]}")
            with contextlib.closing(psycopg.connect(urls[0], autocommit=True)) as first:
                first.execute("CREATE TABLE pulse_jobs ()")
            admin.execute(f"CREATE DATABASE {names[1]} TEMPLATE {names[0]}")
            with locking(urls[0], "pulse_jobs IN ROW EXCLUSIVE"):
                found = [counted_in(url) for url in urls]
        finally:
            for name in names:
                admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    assert found == [1, 0]


def counted_in(url: str) -> int:
    with contextlib.closing(psycopg.connect(url)) as session:
        return in_flight(session)


def test_without_a_control_a_claim_is_one_statement():
    """As it was before there were controls: nothing is asked, neither first nor afterwards."""
    engine = postgres_engine()
    floors = Floors(lambda: 0.0)
    asked: list[Sql] = []

    def execute(statement: Statement) -> Rows:
        asked.append(statement.sql)
        return [(0, False, False, False)] if statement.sql is engine.claiming.levels else []

    drive(claim_verb.claim(engine, ALICE, "q", topics_of(()), 5, floors).script(), execute)
    asked.clear()
    floors.full_scan_took = 1.0  # so the next may not scan fully
    drive(claim_verb.claim(engine, ALICE, "q", topics_of(()), 5, floors).script(), execute)
    assert asked == [engine.claiming.claim]


# -- guards, by their absence ---------------------------------------------------------------------


async def test_a_claim_finds_in_its_own_statement_that_no_control_governs_the_queue(
    backend,
):
    engine = backend.open().engine
    [guard] = re.findall(FREE, engine.claiming.claim.text)
    scenario = a_claim_that_has_not_seen_the_pause
    await check(backend, scenario, "claim", guard, instead="true")


async def a_new_priority_goes_first(store, backend):
    urgent = a_job(priority=5)
    await store.submit([a_job(), a_job()])
    await claim_one(store, limit=1)
    await store.submit([urgent])
    assert (await claim_one(store, limit=1)).job_id == urgent.id


async def a_new_priority_comes_along(store, backend):
    await store.submit([a_job(), a_job()])
    await claim_one(store, limit=1)
    await store.submit([a_job(priority=-5)])
    assert [run.priority for run in await claim(store)] == [0, -5]


@pytest.mark.parametrize(
    "scenario, which", [(a_new_priority_goes_first, ">"), (a_new_priority_comes_along, "<")]
)
async def test_the_short_form_of_a_claim_is_for_one_priority(backend, scenario, which):
    engine = backend.open().engine
    other = rf"NOT EXISTS \(SELECT 1 FROM pulse_jobs [^)]*\)[^)]*priority {which} \$\d+::int\)"
    [guard] = re.findall(other, engine.claiming.claim_plain.text)
    await check(backend, scenario, "claim_plain", guard, instead="true")


async def a_claim_that_comes_second(store, backend):
    """It waits for the lock, and then sees what the first has committed."""
    await store.submit([a_job(), a_job()])
    await store.controls.override(*QUEUE, Numbers(running=1))
    with psycopg.connect(backend.url) as first:
        first.execute(
            "SELECT pg_advisory_xact_lock(%s, %s)", (QUEUE_LOCK, crc32(b"default") - 2**31)
        )
        first.execute(
            """UPDATE pulse_jobs SET status = 'RUNNING', locked_by = %s, lease_ms = 30000,
                lease_until = now() + interval '1 hour', started_at = now()
            WHERE id = (SELECT min(id::text)::uuid FROM pulse_jobs)""",
            (uuid4(),),
        )
        second = asyncio.create_task(claim(store))
        await asyncio.wait({second}, timeout=0.2)
        first.commit()
        assert await asyncio.wait_for(second, 10) == []


async def test_claims_from_a_limited_queue_take_turns_and_count_afterwards(backend):
    await check(
        backend,
        a_claim_that_comes_second,
        "lock_queue",
        f"pg_advisory_xact_lock({QUEUE_LOCK}, $1::int)",
        instead="$1::int",
    )


async def test_a_count_before_the_lock_would_not_do(backend, monkeypatch):
    """With the count in a statement before that of the lock, the limit is overshot."""
    store = backend.open()
    engine, taken = store.engine, []
    lock_queue, usage = engine.lock_queue, engine.controls.queue_usage

    def counted_first(queue):
        taken.append((yield Statement(usage, {"name": queue, "most": 1})))
        yield from lock_queue(queue)

    [(_, tat, now)] = [(0, "NULL::timestamptz", "now()")]
    early = replace(usage, text=f"SELECT 0, {tat}, {now}", names=())
    monkeypatch.setattr(engine, "lock_queue", counted_first)
    vars(engine.controls)["queue_usage"] = early
    with pytest.raises(AssertionError):
        await a_claim_that_comes_second(store, backend)
    assert taken
    assert taken[-1][0][0] == 0, "that is what a count before the lock says"
    await store.aclose()

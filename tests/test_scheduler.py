"""The loop that fires schedules: when it polls, how much it fires, how it handles errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest

from pulsed import Context
from pulsed.engine.upkeep import scheduler as scheduler_module
from pulsed.engine.upkeep.scheduler import LONGEST_SLEEP, SHORTEST_SLEEP, Scheduler
from pulsed.errors import SchemaError, StorageError, TransientStorageError
from pulsed.model.job import Status
from pulsed.model.schedule import CatchUp, ScheduleFilter, ScheduleState
from pulsed.store.blocking import run_blocking
from pulsed.store.listener import SCHEDULES
from pulsed.store.postgres.dialect import PostgresDialect
from pulsed.store.postgres.session import Lane, Sessions
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sql.schedules import ScheduleStatements
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import EVERYTHING
from tests.support.performed import Performed
from tests.support.schedules import APP, SECOND, a_spec, jobs_of, put, read, tick
from tests.support.workers import until, working
from tests.test_postgres_plans import nodes


class Naps:
    """Stands in for sleeping: remembers how long each was to be, and ends after so many."""

    def __init__(self, scheduler: Scheduler, number: int = 1) -> None:
        self.seconds: list[float] = []
        self._number = number
        setattr(scheduler, "_sleep", self._nap)  # noqa: B010 - an instance's own method

    async def _nap(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._number:
            raise asyncio.CancelledError


async def naps(scheduler: Scheduler, number: int = 1) -> list[float]:
    """Run the loop until it wanted to sleep so many times."""
    taken = Naps(scheduler, number)
    with contextlib.suppress(asyncio.CancelledError):
        await scheduler.run()
    return taken.seconds


# -- how long it sleeps ---------------------------------------------------------------------------


async def test_it_sleeps_until_the_next_occurrence(store, clock):
    await put(store, "late", every=1000 * SECOND)
    await put(store, "soon", every=3 * SECOND)
    assert await naps(Scheduler(store, longest_sleep=100)) == [3.0]
    clock.advance(2.25)
    assert await naps(Scheduler(store, longest_sleep=100)) == [0.75]


async def test_it_sleeps_no_longer_than_its_longest_sleep(store):
    (nothing,) = await naps(Scheduler(store))
    assert 0.8 * LONGEST_SLEEP <= nothing <= LONGEST_SLEEP
    await put(store, every=1000 * SECOND)
    (far,) = await naps(Scheduler(store))
    assert 0.8 * LONGEST_SLEEP <= far <= LONGEST_SLEEP


async def test_what_is_paused_does_not_wake_it(store):
    await put(store, every=SECOND)
    await store.schedules.pause(APP, "s")
    (seconds,) = await naps(Scheduler(store))
    assert seconds > 1


async def test_after_a_fire_it_sleeps_until_the_following_occurrence(store, clock):
    await put(store, every=3 * SECOND)
    clock.advance(4)
    assert await naps(Scheduler(store)) == [2.0]
    assert len(await jobs_of(store)) == 1


async def test_what_the_budget_leaves_is_looked_at_without_a_pause(store, clock, monkeypatch):
    monkeypatch.setattr(scheduler_module, "BUDGET", -1.0)
    await put(store)
    clock.advance(61)
    assert await naps(Scheduler(store)) == [0.0]


async def test_a_wake_up_ends_the_sleep(store):
    looked = asyncio.Semaphore(0)
    scheduler = Scheduler(store, longest_sleep=3600)
    due = store.schedules.due

    async def looking(*args: Any, **options: Any) -> Any:
        answer = await due(*args, **options)
        looked.release()
        return answer

    store.schedules.due = looking
    task = asyncio.create_task(scheduler.run())
    async with asyncio.timeout(60):
        await looked.acquire()
        scheduler.wake()
        await looked.acquire()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_hints_without_end_do_not_make_it_look_without_end(store, monkeypatch):
    slept: list[float] = []
    us, really_sleep = asyncio.current_task(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        if asyncio.current_task() is us:
            slept.append(seconds)
        else:  # a server's thread, or another one of this process
            await really_sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    scheduler = Scheduler(store)
    for seconds in (5.0, 0.05, 0.0):
        scheduler.wake()
        await scheduler._sleep(seconds)
    assert slept == [SHORTEST_SLEEP, 0.05, 0.0]


# -- trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [TransientStorageError("away"), SchemaError("old"), ValueError()])
async def test_the_loop_survives_whatever_happens(store, clock, caplog, error):
    await put(store)
    clock.advance(61)
    due, failures = store.schedules.due, [error, error]

    async def failing(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await due(*args, **options)

    store.schedules.due = failing
    with caplog.at_level(logging.WARNING):
        assert (await naps(Scheduler(store), 3))[:2] == [1.0, 1.0]
    assert len(await jobs_of(store)) == 1
    assert "firing schedules failed" in caplog.text


@pytest.mark.parametrize(
    "trouble", [TransientStorageError("away"), StorageError("disk I/O error")], ids=repr
)
async def test_a_database_in_trouble_does_not_park_a_schedule(store, clock, trouble):
    await put(store)
    clock.advance(61)

    async def in_trouble(fires: Any) -> Any:
        raise trouble

    fire = store.schedules.fire
    store.schedules.fire = in_trouble
    with pytest.raises(StorageError):
        await tick(store)
    store.schedules.fire = fire
    assert (await read(store)).state is ScheduleState.ACTIVE
    assert len(await tick(store)) == 1


async def test_declarations_that_cannot_be_written_do_not_hold_up_what_is_due(
    store, clock, monkeypatch
):
    monkeypatch.setattr(scheduler_module, "AFTER_FAILURE", 0.0)
    await put(store)
    clock.advance(61)
    tries = 0

    async def declare() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise SchemaError("refused")

    firing = asyncio.create_task(Scheduler(store, declare=declare).run())
    await until(lambda: tries == 3)
    await until(lambda: jobs_of(store))
    firing.cancel()
    assert len(await jobs_of(store)) == 1


async def test_what_is_due_is_fired_while_declarations_are_written(store, clock):
    await put(store)

    async def declare() -> None:
        clock.advance(61)
        scheduler.wake()
        await until(lambda: jobs_of(store))
        written.set()

    written = asyncio.Event()
    scheduler = Scheduler(store, declare=declare)
    firing = asyncio.create_task(scheduler.run())
    async with asyncio.timeout(10):
        await written.wait()
    firing.cancel()


TOO_MUCH = '{"topic":"t","payload":"{}","every":60000000,"priority":9223372036854775807000}'


async def test_a_schedule_refused_by_the_database_is_found_among_the_others(store, backend, clock):
    for n in range(5):
        await put(store, f"s{n}")
    backend.execute(f"UPDATE pulse_schedules SET spec = '{TOO_MUCH}' WHERE name = 's2'")
    clock.advance(61)
    assert len(await tick(store)) == 4
    row = await read(store, "s2")
    assert row.state is ScheduleState.ERROR
    assert row.error


# -- notifications -------------------------------------------------------------------------------


@pytest.mark.embedded("a server fires schedules by itself")
async def test_a_schedule_of_another_process_wakes_who_listens(backend):
    """A schedule that is put elsewhere sends a notification, which ends the longest sleep."""
    here, there = backend.open(own_clock=False), backend.open(own_clock=False)
    await here.now()
    await there.now()
    woken = asyncio.Event()
    async with here.listen([SCHEDULES], lambda _: woken.set()) as listener, asyncio.timeout(60):
        await until(lambda: listener.healthy)
        priorities = itertools.count()

        async def heard() -> bool:
            await put(there, priority=next(priorities))
            return woken.is_set()

        await until(heard)  # it may have begun to listen a moment later
        woken.clear()
        await put(there, "new")
        await woken.wait()
        await there.schedules.pause(APP, "s")
        woken.clear()
        await there.schedules.resume(APP, "s")
        await woken.wait()
    await here.aclose()
    await there.aclose()


async def test_a_worker_fires_what_another_process_puts(backend):
    """Its next poll would come seconds later."""
    here, there = backend.open(own_clock=False), backend.open(own_clock=False)
    ran = asyncio.Event()

    async def email() -> None:
        ran.set()

    async with working(here, email) as it:
        await until(lambda: it.worker._listener is not None and it.worker._listener.healthy)
        it.worker._scheduler._longest_sleep = 3600
        it.worker._scheduler.wake()
        await asyncio.sleep(0)
        await put(there, at=await there.now())
        async with asyncio.timeout(60):
            await ran.wait()
    await here.aclose()
    await there.aclose()


async def test_a_worker_runs_every_occurrence_once(backend):
    store = backend.open(own_clock=False)
    ran: list[Any] = []

    async def email(ctx: Context) -> None:
        ran.append(ctx.occurrence)

    step = SECOND / 10
    await put(store, every=step, catch_up=CatchUp.ALL)
    async with working(store, email):
        await until(lambda: len(ran) >= 10)
    first = (await read(store)).anchor + step
    assert sorted(ran) == [first + n * step for n in range(len(ran))]
    await store.aclose()


# -- many at once ---------------------------------------------------------------------------------

MANY, BROKEN = 10_000, 100


@pytest.fixture
async def crowd(store, backend, clock) -> None:
    """Ten thousand schedules due at one instant; the hundred that come first cannot be fired."""
    await put(store, "template")
    columns = "app, spec, declared, state, anchor, created_at, updated_at"
    numbers = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY}) "
        f"INSERT INTO pulse_schedules (id, name, next_run_at, {columns}) "
    )
    if backend.engine == "sqlite":
        values = f"SELECT randomblob(16), 's' || i, next_run_at + (i > {BROKEN}), {columns} "
    else:
        values = (
            "SELECT gen_random_uuid(), 's' || i, next_run_at + "
            f"(i > {BROKEN})::int * interval '1 microsecond', {columns} "
        )
    backend.execute(numbers + values + "FROM n, pulse_schedules WHERE name = 'template'")
    backend.execute("DELETE FROM pulse_schedules WHERE name = 'template'")
    names = ", ".join(f"'s{n}'" for n in range(1, BROKEN + 1))
    backend.execute(f"UPDATE pulse_schedules SET spec = '{{}}' WHERE name IN ({names})")
    clock.advance(61)


@pytest.mark.embedded("counts what the database is asked to do")
async def test_ten_thousand_at_once_are_fired_in_large_batches_and_the_broken_ones_parked(
    store, crowd, caplog, monkeypatch
):
    """In as few statements as the same jobs could be enqueued with, and one more for the cursors.

    That none of them goes through all schedules for each one is what the plans below say.
    """
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(scheduler_module, "BUDGET", 3600.0)
    performed = Performed(store)
    assert len(await tick(store)) == MANY - BROKEN
    batches = 20  # of five hundred
    assert performed.verbs == {
        "due_schedules": batches + 1,  # the last finds nothing
        "fire": batches,
        "set_schedule_error": BROKEN,
    }
    assert performed.statements["fire"] == 2 * batches
    assert (await store.counts(EVERYTHING))[Status.PENDING] == MANY - BROKEN
    parked = await store.schedules.list_page(ScheduleFilter(state=ScheduleState.ERROR))
    assert len(parked) == BROKEN
    assert all(row.error for row in parked)


# -- plans ----------------------------------------------------------------------------------------

SCHEMA = "pulsed_schedule_plans"


@pytest.mark.parametrize("analyzed", [True, False])
async def test_sqlite_looks_schedules_up_by_their_indexes(tmp_path, clock, analyzed):
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    for n in range(50):
        await put(store, f"s{n}")
    clock.advance(61)
    await tick(store)
    await store.aclose()
    statements = ScheduleStatements(store.dialect)
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        if analyzed:
            connection.execute("ANALYZE")
        for name, search in {
            "due": "pulse_schedules_due (next_run_at<?)",
            "next_due": "pulse_schedules_due (next_run_at>?)",
            "advance": "sqlite_autoindex_pulse_schedules_1 (id=?)",
            "set_error": "sqlite_autoindex_pulse_schedules_1 (id=?)",
            "get": "sqlite_autoindex_pulse_schedules_2 (app=? AND name=?)",
            "unfinished": "pulse_jobs_unfinished (schedule_id=?)",
            "fires": "pulse_jobs_occurrence (schedule_id=? AND occurrence>? AND occurrence<?), "
            "pulse_jobs_occurrence (schedule_id=? AND occurrence=?), "
            "sqlite_autoindex_pulse_jobs_1 (id=?)",
        }.items():
            sql = getattr(statements, name)
            values = dict.fromkeys(sql.names)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {sql.text}", values).fetchall()
            steps = [step for *_, step in plan if re.search(r"\b(s|j|pulse_\w+)\b", step)]
            found = ", ".join(step.partition(" USING INDEX ")[2] for step in steps)
            assert found == search, plan


@pytest.mark.parametrize("believed_active", [20_000, 0], ids=["known", "believed to be idle"])
def test_postgres_looks_schedules_up_by_their_indexes(postgres_url, believed_active):
    """Also when statistics say that none is active, and the index of due schedules seems empty."""
    store = PostgresStore(postgres_url, PostgresOptions(schema=SCHEMA))
    run_blocking(store.schedules.put(APP, "template", a_spec()))
    run_blocking(store.aclose())
    statements = ScheduleStatements(PostgresDialect(SCHEMA))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            f"""INSERT INTO {SCHEMA}.pulse_schedules (id, name, next_run_at, app, spec, declared,
                state, anchor, created_at, updated_at)
            SELECT gen_random_uuid(), 's' || i, now() + i * interval '1 s', app, spec, declared,
                'PAUSED', anchor, created_at, updated_at
            FROM {SCHEMA}.pulse_schedules, generate_series(1, 20000) AS i"""
        )
        connection.execute(f"UPDATE {SCHEMA}.pulse_schedules SET state = 'PAUSED'")
        connection.execute(f"VACUUM ANALYZE {SCHEMA}.pulse_schedules")
        if believed_active:
            connection.execute(f"UPDATE {SCHEMA}.pulse_schedules SET state = 'ACTIVE'")
            connection.execute(f"ANALYZE {SCHEMA}.pulse_schedules")
        try:
            check_plans(connection, statements)
        finally:
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def check_plans(connection: psycopg.Connection[Any], statements: ScheduleStatements) -> None:
    for name, value in Sessions(PostgresOptions()).at_connect(Lane.WORK).items():
        connection.execute(f"SET {name} = '{value}'")
    for name, indexes in {
        "due": ["pulse_schedules_due"],
        "next_due": ["pulse_schedules_due"],
        "advance": ["pulse_schedules_pkey", "pulse_schedules_pkey"],
        "set_error": ["pulse_schedules_pkey"],
        "get": ["pulse_schedules_app_name_key"],
        "unfinished": ["pulse_jobs_unfinished"],
    }.items():
        sql = getattr(statements, name)
        connection.execute(f"PREPARE hot AS {sql.text}")
        arguments = f"({', '.join(['NULL'] * len(sql.names))})" if sql.names else ""
        answer = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE hot{arguments}").fetchone()
        assert answer is not None
        connection.execute("DEALLOCATE hot")
        scans = [
            node.get("Index Name", node["Node Type"])
            for node in nodes(answer[0][0]["Plan"])
            if node.get("Relation Name") in ("pulse_schedules", "pulse_jobs")
            and node["Node Type"] != "ModifyTable"
        ]
        assert scans == indexes, name

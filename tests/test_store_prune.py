"""Removing jobs that ended long ago: which ones, how many, and concurrently with others."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

from pulsed.model.job import Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.outcome import Cancelled, Failed, Outcome, Released, Report, Succeeded
from pulsed.store import migrations
from pulsed.store.sqlite.engine import SqliteEngine
from tests.support.backends import SqliteBackend, only_postgres
from tests.support.faults import Fault
from tests.support.jobs import (
    EVERYTHING,
    NO_WAIT,
    a_job,
    claim,
    claim_one,
    row,
    running,
    settle,
    submitted,
)
from tests.support.schedules import jobs_of, put, tick
from tests.support.statements import sql_of

postgres = only_postgres
AT_ONCE = dict.fromkeys(TERMINAL, 0.0)
HOUR = 3600.0

ENDS: dict[Status, Outcome] = {
    Status.SUCCEEDED: Succeeded("1"),
    Status.CANCELLED: Cancelled("no"),
    Status.DEAD_LETTERED: Failed("boom", final=True),
}
every_end = pytest.mark.parametrize("status", TERMINAL, ids=[each.value for each in TERMINAL])


async def ended(store, status=Status.SUCCEEDED, number=1):
    """Let jobs end now; returns their ids."""
    jobs = [a_job(max_attempts=1) for _ in range(number)]
    await store.submit(jobs)
    runs = await claim(store, limit=number)
    reports = [Report.of(run, ENDS[status]) for run in runs]
    assert len(await store.settle(reports)) == number
    return [run.job_id for run in runs]


async def left(store):
    return {job.id for job in await store.list_jobs(EVERYTHING, limit=10_000)}


# -- which jobs -----------------------------------------------------------------------------------


@every_end
async def test_a_job_is_removed_when_its_time_is_up_and_not_before(store, clock, status):
    (job_id,) = await ended(store, status)
    clock.advance(HOUR)
    assert (await store.prune({status: HOUR}, limit=10)).total == 0
    assert (await store.prunable({status: HOUR})) == {status: 0}
    clock.advance(0.001)
    assert (await store.prunable({status: HOUR})) == {status: 1}
    assert (await store.prune({status: HOUR}, limit=10)).removed == {status: 1}
    assert await store.get([job_id]) == {}
    assert (await store.prune({status: HOUR}, limit=10)).total == 0


@every_end
async def test_only_what_is_named_is_removed(store, clock, status):
    made = {each: (await ended(store, each))[0] for each in TERMINAL}
    clock.advance(HOUR)
    assert (await store.prune({status: 60.0}, limit=10)).removed == {status: 1}
    assert await left(store) == {made[each] for each in TERMINAL if each is not status}
    assert (await store.prune({}, limit=10)).removed == {}


async def test_each_status_has_its_own_time(store, clock):
    made = {each: (await ended(store, each))[0] for each in TERMINAL}
    clock.advance(HOUR)
    ages = {Status.SUCCEEDED: 60.0, Status.CANCELLED: 2 * HOUR, Status.DEAD_LETTERED: 30.0}
    pruned = await store.prune(ages, limit=10)
    assert pruned.removed == {
        Status.SUCCEEDED: 1,
        Status.CANCELLED: 0,
        Status.DEAD_LETTERED: 1,
    }
    assert await left(store) == {made[Status.CANCELLED]}


async def test_a_job_that_has_not_ended_is_never_removed(store, backend, clock):
    """However old it is, and whatever a prune is asked for."""
    retrying = await running(store, max_attempts=5)
    await settle(store, retrying, Failed("x", delay=1e6))
    waiting = await submitted(store, delay=1e6)
    backend.execute("UPDATE pulse_jobs SET status = 'WAITING' WHERE attempts = 0")
    pending = await submitted(store, delay=1e6)
    run = await running(store)
    clock.advance(1e8)
    assert (await store.prune(dict.fromkeys(Status, 0.0), limit=100)).total == 0
    assert await left(store) == {retrying.job_id, waiting, pending, run.job_id}


async def test_the_time_counts_from_the_end_and_not_from_the_submission(store, clock):
    await submitted(store)
    clock.advance(HOUR)
    await settle(store, await claim_one(store), Succeeded())
    clock.advance(60)
    assert (await store.prune({Status.SUCCEEDED: HOUR}, limit=10)).total == 0


async def test_a_replayed_job_begins_its_time_anew(store, clock):
    (job_id,) = await ended(store, Status.DEAD_LETTERED)
    clock.advance(HOUR)
    await store.replay([job_id])
    assert (await store.prune(AT_ONCE, limit=10)).total == 0
    await settle(store, await claim_one(store), Failed("again", final=True))
    clock.advance(HOUR - 1)
    assert (await store.prune({Status.DEAD_LETTERED: HOUR}, limit=10)).total == 0
    assert (await row(store, job_id)).status is Status.DEAD_LETTERED


async def test_failures_go_with_their_job_and_no_others(store, clock):
    kept = await running(store, max_attempts=1, topic="other")
    await settle(store, kept, Failed("stays"))
    gone = await running(store, max_attempts=5, backoff=NO_WAIT)
    await settle(store, gone, Failed("first"))
    await settle(store, await claim_one(store), Succeeded())
    assert len(await store.failures(gone.job_id)) == 1
    clock.advance(1)
    assert (await store.prune({Status.SUCCEEDED: 0.0}, limit=10)).total == 1
    assert await store.failures(gone.job_id) == []
    assert len(await store.failures(kept.job_id)) == 1


async def test_a_clock_that_was_set_back_removes_nothing(store, clock):
    (job_id,) = await ended(store)
    clock.advance(-HOUR)
    assert (await store.prune(AT_ONCE, limit=10)).total == 0
    assert await left(store) == {job_id}


async def test_the_longest_times_do_not_overflow(store, clock):
    await ended(store)
    assert (await store.prune({Status.SUCCEEDED: 100 * 366 * 86_400.0}, limit=10)).total == 0


# -- how many -------------------------------------------------------------------------------------


async def test_never_more_than_the_limit_and_the_longest_ended_first(store, clock):
    order = []
    for _ in range(5):
        order += await ended(store)
        clock.advance(1)
    for number in (2, 2, 1, 0):
        pruned = await store.prune({Status.SUCCEEDED: 0.0}, limit=2)
        assert pruned.total == number
        order = order[number:]
        assert await left(store) == set(order)


async def test_the_limit_holds_over_all_statuses(store, clock):
    for status in TERMINAL:
        await ended(store, status, 2)
    clock.advance(1)
    totals = [(await store.prune(AT_ONCE, limit=4)).total for _ in range(3)]
    assert totals == [4, 2, 0]
    assert await left(store) == set()


async def test_no_status_keeps_the_others_from_their_turn(store, clock):
    for status in TERMINAL:
        await ended(store, status, 6)
    clock.advance(1)
    for _ in range(2):
        pruned = await store.prune(AT_ONCE, limit=6)
        assert set(pruned.removed.values()) == {2}
    assert (await store.prune({Status.SUCCEEDED: 0.0}, limit=2)).total == 2
    assert (await store.prune(AT_ONCE, limit=4)).total == 4  # what one leaves others get
    assert await left(store) == set()


async def test_kept_dead_letters_do_not_stand_in_the_way(store, clock):
    dead = await ended(store, Status.DEAD_LETTERED, 5)
    clock.advance(1)
    await ended(store)
    clock.advance(1)
    assert (await store.prune({Status.SUCCEEDED: 0.0}, limit=2)).total == 1
    assert await left(store) == set(dead)


async def test_the_next_batch_may_begin_where_the_last_one_ended(store, clock):
    for _ in range(3):
        await ended(store)
        clock.advance(1)
    first = await store.prune({Status.SUCCEEDED: 0.0}, limit=2)
    assert first.reached == {Status.SUCCEEDED: clock.now - timedelta(seconds=2)}
    second = await store.prune({Status.SUCCEEDED: 0.0}, limit=2, since=first.reached)
    assert second.total == 1
    assert second.reached == {Status.SUCCEEDED: clock.now - timedelta(seconds=1)}
    third = await store.prune({Status.SUCCEEDED: 0.0}, limit=2, since=second.reached)
    assert (third.total, third.reached) == (0, second.reached)


async def test_jobs_that_ended_at_one_instant_are_not_passed_over(store, clock):
    await ended(store, number=5)
    clock.advance(1)
    first = await store.prune({Status.SUCCEEDED: 0.0}, limit=2)
    rest = await store.prune({Status.SUCCEEDED: 0.0}, limit=10, since=first.reached)
    assert (first.total, rest.total) == (2, 3)


# -- beside others --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_lost_answer(store, clock, when, times):
    """What a lost try removed is removed, no more than a batch for each try."""
    await ended(store, Status.DEAD_LETTERED, 6)
    clock.advance(1)
    fault = Fault(store, "prune", when, times)
    assert (await store.prune(AT_ONCE, limit=2)).total == 2
    assert fault.hits == times
    remaining = await left(store)
    assert len(remaining) == (4 if when == "before" else 4 - 2 * times)
    assert [len(await store.failures(job_id)) for job_id in remaining] == [1] * len(remaining)


async def test_many_at_once_remove_each_job_once(backend, clock):
    stores = [backend.open() for _ in range(4)]
    await ended(stores[0], number=300)
    clock.advance(1)
    removed = 0
    while batch := sum(
        pruned.total
        for pruned in await asyncio.gather(*(each.prune(AT_ONCE, limit=20) for each in stores))
    ):
        removed += batch
    assert removed == 300
    for each in stores:
        await each.aclose()


async def test_a_job_that_somebody_holds_is_passed_over(postgres, clock):
    """A prune waits for no lock: not for a replay in flight, nor for a frozen one."""
    store = postgres.open()
    await store.now()
    first, second = await ended(store, Status.DEAD_LETTERED, 2)
    clock.advance(1)
    with closing(postgres.connect()) as other, other.transaction():
        other.execute(f"SELECT FROM pulse_jobs WHERE id = {postgres.literal(first)} FOR UPDATE")
        pruned = await asyncio.wait_for(store.prune(AT_ONCE, limit=10), 60)
        assert pruned.total == 1
    assert await left(store) == {first}
    assert len(await store.failures(first)) == 1
    assert (await store.failures(second)) == []
    assert (await store.prune(AT_ONCE, limit=10)).total == 1
    await store.aclose()


async def test_an_old_snapshot_does_not_slow_the_next_batch(postgres, clock):
    """While one is held, what was removed stays in the index; only the first batch wades in it."""
    store = postgres.open()
    await store.now()
    postgres.execute(
        f"""INSERT INTO pulse_jobs (id, queue, topic, status, payload, next_run_at, submitted_at,
            completed_at) SELECT gen_random_uuid(), 'default', 't', 'SUCCEEDED', '{{}}', now(),
            now(), '{clock.now}'::timestamptz + i * interval '1 ms'
        FROM generate_series(1, 4000) AS i ORDER BY md5(i::text)"""
    )
    clock.advance(60)

    def blocks_read(connection, since):
        sql = store.engine.retention.prune
        values = {"status": "'SUCCEEDED'", "age": "0", "most": "10"}
        values |= {"now": f"'{clock.now}'", "since": f"'{since}'"}
        connection.execute(f"PREPARE pruning AS {sql.text}")
        explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE pruning"
        with connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
            arguments = ", ".join(values[name] for name in sql.names)
            [plan] = connection.execute(f"{explain}({arguments})").fetchone()
        connection.execute("DEALLOCATE pruning")
        return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]

    with closing(postgres.connect()) as holder, closing(postgres.connect()) as looking:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT FROM pulse_jobs LIMIT 1")
        pruned = await store.prune({Status.SUCCEEDED: 0.0}, limit=3500)
        assert pruned.total == 3500
        from_the_beginning = blocks_read(looking, "1970-01-01Z")
        from_where_it_was = blocks_read(looking, pruned.reached[Status.SUCCEEDED])
    assert 10 * from_where_it_was < from_the_beginning
    await store.aclose()


async def test_a_worker_s_report_on_a_removed_job_is_refused(store, clock):
    run = await running(store)
    await settle(store, run, Succeeded())
    clock.advance(1)
    await store.prune(AT_ONCE, limit=10)
    assert not await settle(store, run, Released())


async def test_an_occurrence_whose_job_was_removed_is_not_fired_again(store, clock):
    """The cursor remembers it, not the job."""
    await put(store, every=timedelta(seconds=60))
    clock.advance(60)
    (fired,) = await tick(store)
    await settle(store, await claim_one(store), Succeeded())
    clock.advance(1)
    assert (await store.prune(AT_ONCE, limit=10)).total == 1
    assert await jobs_of(store) == []
    assert await tick(store) == []
    clock.advance(59)
    (following,) = await tick(store)
    assert fired.occurrence is not None
    assert following.occurrence == fired.occurrence + timedelta(seconds=60)


# -- turns ----------------------------------------------------------------------------------------


async def test_one_process_has_the_turn_until_it_ends(backend, clock):
    stores = [backend.open() for _ in range(3)]
    assert [await each.take_turn(length=50) for each in stores] == [True, False, False]
    clock.advance(49.9)
    assert not await stores[0].take_turn(length=50)
    clock.advance(0.1)
    assert [await each.take_turn(length=50) for each in stores[::-1]] == [True, False, False]
    for each in stores:
        await each.aclose()


async def test_of_many_that_ask_at_once_one_gets_the_turn(backend):
    stores = [backend.open() for _ in range(5)]
    await stores[0].now()
    answers = await asyncio.gather(*(each.take_turn(length=50) for each in stores))
    assert sum(answers) == 1
    for each in stores:
        await each.aclose()


async def test_a_turn_taken_under_a_clock_that_ran_ahead_does_not_last(store, clock):
    clock.advance(1e6)
    assert await store.take_turn(length=50)
    clock.advance(-1e6)
    assert await store.take_turn(length=50)
    assert not await store.take_turn(length=50)


async def test_a_watchdog_frozen_in_its_transaction_holds_up_nobody(postgres, clock):
    store = postgres.open()
    await store.now()
    with closing(postgres.connect()) as frozen, frozen.transaction():
        frozen.execute("UPDATE pulse_meta SET prune_after = prune_after")
        assert not await asyncio.wait_for(store.take_turn(length=50), 60)
    assert await store.take_turn(length=50)
    await store.aclose()


# -- the schema -----------------------------------------------------------------------------------


def test_older_code_can_live_with_the_index():
    for engine in ("sqlite", "postgres"):
        assert migrations.migrations(engine)[2].oldest_code == 1


async def test_jobs_from_before_there_was_retention_are_removed_too(tmp_path, clock, monkeypatch):
    backend = SqliteBackend(tmp_path / "old.db", clock)
    everything = migrations.migrations
    monkeypatch.setattr(migrations, "migrations", lambda engine: everything(engine)[:2])
    old = backend.open()
    await old.migrate()
    await old.aclose()
    monkeypatch.undo()
    backend.execute(
        """INSERT INTO pulse_jobs (id, queue, topic, status, payload, next_run_at, submitted_at,
            completed_at) VALUES (randomblob(16), 'default', 't', 'SUCCEEDED', '{}', 1, 1, 1)"""
    )
    store = backend.open()
    assert (await store.prune(AT_ONCE, limit=10)).total == 1
    await store.aclose()


def test_sqlite_looks_finished_jobs_up_by_their_index_and_no_others(tmp_path, clock):
    async def make():
        store = SqliteBackend(tmp_path / "plans.db", clock).open()
        await ended(store, number=10)
        await store.aclose()

    asyncio.run(make())
    engine = SqliteEngine()
    with closing(sqlite3.connect(tmp_path / "plans.db")) as connection:
        connection.create_function("pulse_backoff", 6, lambda *_: 0.0)
        for analyzed in (False, True):
            if analyzed:
                connection.execute("ANALYZE")
            for name in (
                "prune",
                "claim",
                "settle",
                "settle_succeeded",
                "settle_alike",
                "beat",
                "reap",
                "replay",
                "delete",
            ):
                sql = sql_of(engine, name)
                params = dict.fromkeys([*sql.names, *sql.columns, "now"])
                plan = connection.execute(f"EXPLAIN QUERY PLAN {sql.text}", params).fetchall()
                steps = [step[-1] for step in plan if "pulse_jobs" in step[-1] or "j " in step[-1]]
                taken = [step for step in steps if "pulse_jobs_finished" in step]
                assert len(taken) == (1 if name == "prune" else 0), (name, steps)
                if name == "prune":
                    assert "status=? AND completed_at>? AND completed_at<?" in taken[0]

"""Guards that only concurrent writers need: taken out, one of two sessions loses what it had."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from pulsed.errors import TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Status
from pulsed.model.outcome import Failed, Report, Snoozed, Succeeded
from pulsed.model.step import StepKind
from pulsed.store.sql.dialect import HAS_WAITED
from pulsed.store.sql.jobs import LOWEST_ID
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.script import Script, Verb, VerbKind
from tests.support.backends import PostgresBackend, SqliteBackend, only_postgres
from tests.support.checkpoints import (
    CHILDREN_ONLY,
    a_family,
    children_of,
    claimed_children,
    suspended,
)
from tests.support.clock import Clock
from tests.support.guard_cases.claims import AT_0, POSTGRES_CLAIM
from tests.support.guards import (
    STILL_CLAIMABLE,
    without,
)
from tests.support.interleaving import WAITING_FOR_LOCKS
from tests.support.jobs import (
    ALICE,
    BOB,
    POLICIES,
    a_job,
    claim,
    reap,
    row,
    running,
    settle,
    submitted,
)
from tests.support.statements import sql_of
from tests.support.waiting import until

pytestmark = pytest.mark.embedded("takes guards out of the statements")
postgres = only_postgres

EXPIRED_STILL = ("AND j.status = 'RUNNING'", "AND coalesce(j.lease_until,")
LOCK = "FOR UPDATE SKIP LOCKED"
REAP_LOCK = "FOR UPDATE OF e SKIP LOCKED"

# -- on a server ----------------------------------------------------------------------------------


async def blocked(backend: PostgresBackend, sessions: int = 1) -> None:
    """Return when so many sessions of our database wait for a lock."""
    with contextlib.closing(backend.connect()) as looking:
        await until(lambda: looking.execute(WAITING_FOR_LOCKS).fetchone() == (sessions,))


async def claimed_by_both(postgres: PostgresBackend, *removed: str) -> bool:
    """Let one claim commit between another's choice of rows and its UPDATE."""
    store = postgres.open(retry=RetryPolicy.disabled())
    job = a_job()
    await store.submit([job])
    without(store, "claim", *removed)
    with contextlib.closing(postgres.connect()) as rival, rival.transaction():
        rival.execute(
            "UPDATE pulse_jobs SET status = 'RUNNING', lease_token = 5, attempts = 1, "
            f"locked_by = {postgres.literal(BOB)}, lease_until = now() + interval '1 h'"
        )
        task = asyncio.create_task(claim(store, ALICE))
        if LOCK in removed:
            await blocked(postgres)
        else:
            assert await task == []  # a locked row is skipped, not waited for
    claimed = await task
    await store.aclose()
    postgres.empty()
    return bool(claimed)


async def test_two_claims_that_saw_the_same_row_and_one_of_them_gets_it(postgres):
    assert not await claimed_by_both(postgres, STILL_CLAIMABLE)  # the row lock is enough
    assert not await claimed_by_both(postgres, LOCK)  # and so is the guard in the UPDATE
    assert await claimed_by_both(postgres, LOCK, STILL_CLAIMABLE)


AGED_STILL = STILL_CLAIMABLE.replace("j.", "b.")
PAUSE = "pg_advisory_xact_lock_shared(7)"
"""Where a statement waits that has its snapshot, until the test lets it go on."""


async def claimed_by_an_aged_claim_too(postgres: PostgresBackend, *removed: str) -> bool:
    """Let one claim commit between the snapshot of an aged one and its row lock."""
    store = postgres.open(retry=RetryPolicy.disabled())
    await store.submit([a_job()])
    without(store, "claim_aged", AGED_STILL, instead=f"AND {PAUSE} IS NOT NULL {AGED_STILL}")
    without(store, "claim_aged", *removed)

    def script() -> Script[Rows]:
        return (yield Statement(sql_of(store.engine, "claim_aged"), POSTGRES_CLAIM, AT_0))

    with contextlib.closing(postgres.connect()) as rival:
        rival.execute("SELECT pg_advisory_lock(7)")
        task = asyncio.create_task(store.run(Verb("test", VerbKind.TRANSACTION, script)))
        await blocked(postgres)
        rival.execute(
            "UPDATE pulse_jobs SET status = 'RUNNING', lease_token = 5, attempts = 1, "
            f"locked_by = {postgres.literal(BOB)}, lease_until = now() + interval '1 h'"
        )
        rival.execute("SELECT pg_advisory_unlock(7)")
        claimed = await task
    await store.aclose()
    postgres.empty()
    return bool(claimed)


async def test_an_aged_claim_that_saw_a_row_which_another_gets(postgres):
    """It picks without locks, so it asks once more when it locks, and when it writes."""
    assert not await claimed_by_an_aged_claim_too(postgres, AGED_STILL)
    assert not await claimed_by_an_aged_claim_too(postgres, STILL_CLAIMABLE)
    assert await claimed_by_an_aged_claim_too(postgres, AGED_STILL, STILL_CLAIMABLE)


async def reaped_a_living_job(postgres: PostgresBackend, clock: Clock, *removed: str) -> bool:
    """Let a heartbeat commit between a reaper's choice of rows and its UPDATE."""
    store = postgres.open(retry=RetryPolicy.disabled())
    run = await running(store, ALICE)
    clock.advance(31)
    without(store, "reap", *removed)
    with contextlib.closing(postgres.connect()) as worker, worker.transaction():
        worker.execute("UPDATE pulse_jobs SET lease_until = lease_until + interval '1 h'")
        task = asyncio.create_task(reap(store))
        if REAP_LOCK in removed:
            await blocked(postgres)
        else:
            assert await task == []
    reaped = await task
    assert reaped in ([], [run.job_id])
    await store.aclose()
    postgres.empty()
    return bool(reaped)


async def test_a_job_whose_heartbeat_has_just_committed_is_not_reaped(postgres, clock):
    again = "AND coalesce(j.lease_until, $1::timestamptz) < r.before"
    assert not await reaped_a_living_job(postgres, clock, again)
    assert not await reaped_a_living_job(postgres, clock, REAP_LOCK)
    assert await reaped_a_living_job(postgres, clock, REAP_LOCK, again)


async def test_a_job_that_has_just_succeeded_is_not_reaped(postgres, clock):
    """The guard on the status: without it, and without the lock, success would be undone."""

    async def undone(*removed: str) -> bool:
        store = postgres.open(retry=RetryPolicy.disabled())
        run = await running(store, ALICE)
        clock.advance(31)
        without(store, "reap", *removed)
        with contextlib.closing(postgres.connect()) as worker, worker.transaction():
            worker.execute(
                "UPDATE pulse_jobs SET status = 'SUCCEEDED', locked_by = NULL, lease_until = NULL"
            )
            task = asyncio.create_task(reap(store))
            await blocked(postgres)
        (trouble,) = await asyncio.gather(task, return_exceptions=True)
        found = await row(store, run.job_id)
        await store.aclose()
        postgres.empty()
        return trouble != [] or found.status is not Status.SUCCEEDED

    lease = "AND coalesce(j.lease_until, $1::timestamptz) < r.before"
    assert not await undone(REAP_LOCK)
    assert not await undone(REAP_LOCK, lease)
    assert not await undone(REAP_LOCK, EXPIRED_STILL[0])  # a lease that is gone is not over either
    assert await undone(REAP_LOCK, EXPIRED_STILL[0], lease)


async def pruned_a_replayed_job(postgres: PostgresBackend, clock: Clock, *removed: str) -> bool:
    """Let a replay commit between a pruner's choice of rows and its DELETE."""
    store = postgres.open(retry=RetryPolicy.disabled())
    run = await running(store, max_attempts=1)
    await settle(store, run, Failed("x"))
    clock.advance(60)
    without(store, "prune", *removed)
    with contextlib.closing(postgres.connect()) as operator, operator.transaction():
        operator.execute("UPDATE pulse_jobs SET status = 'PENDING', completed_at = NULL")
        task = asyncio.create_task(store.prune({Status.DEAD_LETTERED: 1.0}, limit=10))
        if LOCK in removed:
            await blocked(postgres)
        else:
            assert (await task).total == 0
    await task
    left = await store.get([run.job_id])
    assert len(await store.failures(run.job_id)) == len(left)
    await store.aclose()
    postgres.empty()
    return not left


async def test_a_dead_letter_that_is_just_replayed_is_not_pruned(postgres, clock):
    ended = "AND status IN ('SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')"
    same = "AND status = $1::text AND status IN"
    text = postgres.open().engine.retention.prune.text
    late = text[text.index("AND coalesce(completed_at") : text.index("RETURNING")]
    every = (same, "('SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')", late)
    assert not await pruned_a_replayed_job(postgres, clock, *every)  # the row lock is enough
    assert not await pruned_a_replayed_job(postgres, clock, LOCK)  # and so are the guards
    assert not await pruned_a_replayed_job(postgres, clock, LOCK, ended, late)  # each of them
    assert not await pruned_a_replayed_job(postgres, clock, LOCK, *every[:2])
    assert await pruned_a_replayed_job(postgres, clock, LOCK, *every)


WORKFLOWS_LAST = f"k.{HAS_WAITED}, "


@pytest.mark.parametrize(
    "statement, outcome, is_child, order",
    [
        ("settle", Snoozed(7), False, f"ORDER BY {WORKFLOWS_LAST}u.job_id"),
        ("settle_succeeded", Succeeded(), False, "ORDER BY u.job_id"),
        ("settle_children", Succeeded(), True, "ORDER BY u.job_id"),
    ],
)
async def test_reports_of_the_same_rows_in_another_order_do_not_deadlock(
    postgres, statement, outcome, is_child, order
):
    """Two batches meet at a row that a third session holds; each has locked its first rows."""

    async def deadlocks(*removed: str) -> bool:
        stores = [postgres.open(retry=RetryPolicy.disabled()) for _ in range(2)]
        await stores[0].submit([a_job() for _ in range(3)])
        reports = [Report(run.lease, outcome, is_child) for run in await claim(stores[0])]
        reports.sort(key=lambda report: report.lease.job_id)
        await stores[1].now()  # connected
        middle = postgres.literal(reports[1].lease.job_id)
        if removed:
            for store in stores:
                without(store, statement, *removed)
        with contextlib.closing(postgres.connect()) as holder, holder.transaction():
            holder.execute(f"SELECT FROM pulse_jobs WHERE id = {middle} FOR UPDATE")
            first = asyncio.create_task(stores[0].settle(reports))
            await blocked(postgres, 1)
            second = asyncio.create_task(stores[1].settle(reports[::-1]))
            await blocked(postgres, 2)
        answers = await asyncio.gather(first, second, return_exceptions=True)
        for store in stores:
            await store.aclose()
        postgres.empty()
        return any(isinstance(answer, TransientStorageError) for answer in answers)

    assert not await deadlocks()
    assert await deadlocks(order)


@pytest.mark.parametrize(
    "statement, outcome, guard",
    [
        ("settle", Snoozed(7), WORKFLOWS_LAST),
        ("settle_succeeded", Succeeded(), f"AND NOT j.{HAS_WAITED}"),
    ],
)
async def test_jobs_that_have_waited_are_locked_last_by_all(
    postgres, clock, statement, outcome, guard
):
    """Reports and a cancel of the same jobs meet at one that has waited, and that is held."""

    async def deadlocks(*removed: str) -> bool:
        async def meet(stores: list[SqlStore], held: Held) -> list[Act]:
            store = stores[0]
            first = await running(store, lease=1e6)
            await suspended(store, first, StepKind.SLEEP, delay=5)
            clock.advance(10)
            await submitted(store, lease=1e6)
            runs = sorted(await claim(store), key=lambda run: run.job_id)
            assert runs[0].job_id == first.job_id
            held(first.job_id)
            return [
                lambda: stores[0].settle([Report.of(run, outcome) for run in runs]),
                lambda: stores[1].cancel([run.job_id for run in runs]),
            ]

        return await deadlock_in(postgres, meet, statement, *removed)

    assert not await deadlocks()
    assert await deadlocks(guard)


async def test_whoever_has_no_children_is_locked_before_those_who_have(postgres):
    """Children end, and their family is cancelled, while a third session holds the last child."""

    async def deadlocks(*removed: str) -> bool:
        async def meet(stores: list[SqlStore], held: Held) -> list[Act]:
            parent, runs = await a_family(stores[0], 2)
            await suspended(stores[0], parent, StepKind.FAN_OUT)
            runs.sort(key=lambda run: run.job_id)
            held(runs[1].job_id)
            reports = [Report.of(run, Succeeded()) for run in runs]
            everybody = [parent.job_id, *(run.job_id for run in runs)]
            return [
                lambda: stores[0].settle(reports),
                lambda: stores[1].cancel(everybody),
            ]

        return await deadlock_in(postgres, meet, "lock_families", *removed)

    assert not await deadlocks()
    assert await deadlocks(f"f.above = 1 OR k.{HAS_WAITED}, ")


async def test_a_child_that_has_children_ends_in_the_order_of_ids(postgres, clock):
    """Its own child and its sibling end in one batch; a third session holds the parent of all."""

    async def deadlocks(*removed: str) -> bool:
        async def meet(stores: list[SqlStore], held: Held) -> list[Act]:
            store = stores[0]
            top, (inner, sibling) = await a_family(store, 2, lease=1e6)
            await store.workflows.add_children(inner.lease, children_of(inner.job_id, 1, lease=1e6))
            (left,) = await claimed_children(store, inner.job_id, 1)
            await suspended(store, inner, StepKind.FAN_OUT, delay=5)
            await suspended(store, top, StepKind.FAN_OUT)
            clock.advance(10)
            (again,) = await claim(store, topics=CHILDREN_ONLY)
            held(top.job_id)
            leaves = [Report.of(run, Succeeded()) for run in (left, sibling)]
            return [
                lambda: stores[0].settle(leaves),
                lambda: stores[1].settle([Report.of(again, Succeeded())]),
            ]

        return await deadlock_in(postgres, meet, "settle_children", *removed)

    assert not await deadlocks()
    assert await deadlocks(f"AND NOT j.{HAS_WAITED}")


Act = Callable[[], Coroutine[Any, Any, Any]]


Held = Callable[[UUID], None]


async def deadlock_in(
    postgres: PostgresBackend,
    meet: Callable[[list[SqlStore], Held], Awaitable[list[Act]]],
    statement: str,
    *removed: str,
) -> bool:
    """Whether two acts deadlock that begin, one after the other, while a row is held."""
    stores: list[SqlStore] = [postgres.open(retry=RetryPolicy.disabled()) for _ in range(2)]
    await stores[1].now()  # connected
    with contextlib.closing(postgres.connect()) as holder, holder.transaction():

        def held(job_id: UUID) -> None:
            row = f"id = {postgres.literal(job_id)}"
            holder.execute(f"SELECT FROM pulse_jobs WHERE {row} FOR UPDATE")

        acts = await meet(stores, held)
        for store in stores:
            without(store, statement, *removed)
        tasks = []
        for act in acts:
            tasks.append(asyncio.create_task(act()))
            await blocked(postgres, len(tasks))
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for store in stores:
        await store.aclose()
    postgres.empty()
    return any(isinstance(answer, TransientStorageError) for answer in answers)


async def test_a_claim_locks_no_more_rows_than_it_takes_whatever_the_planner_likes(postgres):
    """The choice is made once: re-run for each outer row, its LIMIT would not be one."""
    store = postgres.open()
    await store.submit([a_job(priority=n % 3) for n in range(50)])
    sql = sql_of(store.engine, "claim")
    assert "picked AS MATERIALIZED" in sql.text
    params = {
        "worker": ALICE,
        "queue": "default",
        "topics": '[{"t_topic":"email","t_max_attempts":3,"t_base":1,"t_power":2,"t_factor":1,'
        '"t_cap":60,"t_jitter":0,"t_lease_ms":30000}]',
        "most": 5,
        "now": postgres.clock.after(10),
        "above": "{101}",
        "below": "{1}",
        "l_priority": "{1,0}",
        "l_at": "{1970-01-01,1970-01-01}",
        "l_id": f"{{{LOWEST_ID},{LOWEST_ID}}}",
        "l_claimed": "{10,10}",
        "l_walked": "{10,10}",
    }
    text = sql.text
    for number in range(len(sql.names), 0, -1):
        value = params[sql.names[number - 1]]
        text = text.replace(f"${number}", str(value) if isinstance(value, int) else f"'{value}'")
    hostile = ["seqscan", "hashjoin", "mergejoin", "material", "memoize", "indexscan", "bitmapscan"]
    with contextlib.closing(postgres.connect()) as connection:
        connection.execute("SET jit = off")  # the planner overestimates the cost of these plans
        for off in ([], hostile, hostile[1:], ["nestloop"]):
            with connection.transaction(force_rollback=True):
                for name in off:
                    connection.execute(f"SET LOCAL enable_{name} = off")
                plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {text}"))
                assert "CTE picked" in plan
                assert "CTE Scan on picked" in plan
                assert len(connection.execute(text).fetchall()) == 5
    await store.aclose()


# -- SQLite: every write begins by taking the write lock ------------------------------------------


class Deferred(sqlite3.Connection):
    """A connection that begins without IMMEDIATE."""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return super().execute("BEGIN" if sql == "BEGIN IMMEDIATE" else sql, *args)


async def test_a_write_cannot_be_overtaken_between_its_look_and_its_act(tmp_path, clock):
    """A deferred transaction that has read cannot write any more once another one has."""

    async def claim_beside_an_intruder(backend: SqliteBackend, factory: Any) -> None:
        store = backend.open(retry=RetryPolicy.disabled(), dequeue_retry=RetryPolicy.disabled())
        await store.submit([a_job()])
        store._writer.close()
        looked = store._writer._execute
        store._writer._connect = lambda: sqlite3.connect(
            backend.path, isolation_level=None, check_same_thread=False, timeout=0, factory=factory
        )
        intruder = backend.connect()
        intruder.execute("PRAGMA busy_timeout = 0")

        def look_then_let_another_in(*args):
            rows = looked(*args)
            with contextlib.suppress(sqlite3.OperationalError):
                intruder.execute("UPDATE pulse_meta SET prune_after = 1")
            return rows

        store._writer._execute = look_then_let_another_in
        try:
            assert len(await store.claim(ALICE, "default", POLICIES, 1)) == 1
        except TransientStorageError as error:
            raise AssertionError("the claim was overtaken") from error
        finally:
            intruder.close()
            await store.aclose()

    await claim_beside_an_intruder(SqliteBackend(tmp_path / "a.db", clock), sqlite3.Connection)
    with pytest.raises(AssertionError, match="overtaken"):
        await claim_beside_an_intruder(SqliteBackend(tmp_path / "b.db", clock), Deferred)

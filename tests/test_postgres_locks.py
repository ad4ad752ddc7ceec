"""Rows and tables that another session has locked: everything else goes on, and they follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pulsed.engine.context import Context
from pulsed.engine.upkeep.bulk import perform_to_end
from pulsed.errors import JobsLocked, StorageBusy
from pulsed.model.audit import Operator
from pulsed.model.backoff import RetryPolicy
from pulsed.model.bulk import CANCEL, BulkState, SkipReason
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Lease, Status
from pulsed.model.outcome import Beat, Failed, Report, Snoozed, Succeeded
from pulsed.model.schedule import ScheduleFilter
from pulsed.model.step import StepKind
from pulsed.model.workflow import Record
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.server.access import Caller, TokenRole
from pulsed.rpc.server.authentication import Authenticator, NoAuthentication
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.store import tokens
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres import session as postgres_session
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.results import Accepted, Partly
from pulsed.store.verbs import bulk as verbs
from tests.support.backends import PostgresBackend
from tests.support.checkpoints import a_family, a_step, a_wait, statuses, suspended
from tests.support.clock import Clock
from tests.support.jobs import ALICE, TOPIC, a_job, a_worker_id, claim, reap, running, settle
from tests.support.own_sessions import AT_ONCE
from tests.support.servers import ServerThread
from tests.support.workers import all_finished, finished, row, submit, submit_many, until, working

POOL = 3


@contextmanager
def holding(url: str, statement: str) -> Iterator[None]:
    """Hold the locks of a statement in a session of its own."""
    with psycopg.connect(url) as other:
        other.execute(statement)
        yield
        other.rollback()


@asynccontextmanager
async def holding_beside(url: str, statement: str) -> AsyncIterator[None]:
    """Hold the locks of a statement while a worker runs in this loop, which must not be blocked:
    a transaction of the worker's may have to end first."""
    with psycopg.connect(url) as other:
        await asyncio.to_thread(other.execute, statement)
        yield
        other.rollback()


def blocked(admin: psycopg.Connection[Any], role: str = "%") -> int:
    """Return how many of our sessions wait for a lock."""
    found = admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE %s AND wait_event_type = 'Lock'",
        [f"pulsed/{role}"],
    ).fetchone()
    return int(found[0]) if found else 0


# -- heartbeats through a server ------------------------------------------------------------------


class LimitedAuthenticator(Authenticator):
    """Admits every caller, for one topic only."""

    async def authenticate(self, context: Any) -> Caller:
        return Caller("one topic", frozenset(TokenRole), frozenset([TOPIC]), None)


def a_small_store(url: str) -> PostgresStore:
    options = PostgresOptions(pool_size=POOL, retry=AT_ONCE, dequeue_retry=AT_ONCE)
    return PostgresStore(url, options)


@pytest.mark.parametrize("authenticator", [NoAuthentication(), LimitedAuthenticator()])
async def test_a_heartbeat_through_a_server_waits_for_no_other_work(
    postgres_url: str, admin: psycopg.Connection[Any], authenticator: Authenticator
):
    with ServerThread(lambda: a_small_store(postgres_url), authenticator) as server:
        far = RemoteStore(server.url)
        await far.submit([a_job()])
        (run,) = await claim(far)
        with holding(postgres_url, "LOCK TABLE pulse_schedules"):
            reads = [
                asyncio.create_task(far.schedules.list_page(ScheduleFilter("default")))
                for _ in range(POOL + 2)
            ]
            await until(lambda: blocked(admin) == POOL)
            assert await far.beat([run.lease], within=6.0) == {run.lease: Beat.OK}
            assert not any(read.done() for read in reads)
        await asyncio.gather(*reads)
        await far.aclose()


async def test_who_calls_a_server_is_known_without_waiting_for_other_work(
    postgres_url: str, admin: psycopg.Connection[Any]
):
    store = a_small_store(postgres_url)
    with holding(postgres_url, "LOCK TABLE pulse_schedules"):
        reads = [asyncio.create_task(store.schedules.list_page()) for _ in range(POOL + 2)]
        await until(lambda: blocked(admin) == POOL)
        async with asyncio.timeout(6.0):
            assert await tokens.read(store) == []
        assert not any(read.done() for read in reads)
    await asyncio.gather(*reads)
    await store.aclose()


# -- reports --------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports wait for a lock for a tenth of a second only."""
    monkeypatch.setattr(postgres_session, "LOCK_WITHIN", 0.1)


@pytest.fixture(params=["near", "far"])
async def store(
    request: pytest.FixtureRequest,
    postgres_url: str,
    admin: psycopg.Connection[Any],
    hasty: None,
) -> AsyncIterator[Store]:
    """PostgreSQL, by itself and behind a server."""
    near = PostgresStore(postgres_url, PostgresOptions(retry=AT_ONCE, dequeue_retry=AT_ONCE))
    if request.param == "near":
        yield near
        await near.aclose()
        return
    with ServerThread(lambda: near) as server:
        far = RemoteStore(server.url)
        yield far
        await far.aclose()


def rows(*ids: UUID) -> str:
    listed = ", ".join(f"'{job_id}'" for job_id in ids)
    return f"SELECT FROM pulse_jobs WHERE id IN ({listed}) FOR UPDATE"


async def test_a_report_that_waits_for_a_locked_row_is_busy(store: Store, postgres_url: str):
    run = await running(store)
    for outcome in (Succeeded("1"), Failed("x"), a_wait(StepKind.SLEEP, delay=60)):
        with holding(postgres_url, rows(run.job_id)), pytest.raises(StorageBusy):
            await store.settle([Report.of(run, outcome)])
    with holding(postgres_url, rows(run.job_id)), pytest.raises(StorageBusy):
        await store.workflows.record([Record(run.lease, a_step())])


async def test_what_is_not_locked_is_settled_and_the_rest_is_named(store: Store, postgres_url: str):
    parent, children = await a_family(store, 3)
    await suspended(store, parent, StepKind.FAN_OUT)
    other_parent, (child,) = await a_family(store, 1)
    waiter, target, mine, failed = [await running(store) for _ in range(4)]
    await store.workflows.watch(waiter.lease, target.job_id)
    await suspended(store, waiter, StepKind.JOB, key=str(target.job_id))
    gone = Lease(new_job_id(), 1, ALICE)
    reports = [
        *(Report.of(run, Succeeded("1")) for run in (*children, child, target, mine)),
        Report.of(failed, Failed("x", final=True)),
        Report.of(other_parent, a_wait(StepKind.SLEEP, delay=60)),
        Report(gone, Succeeded("1")),
    ]
    stuck = {*(run.lease for run in children), target.lease, mine.lease}
    free = {child.lease, failed.lease, other_parent.lease}
    with holding(postgres_url, rows(parent.job_id, waiter.job_id, mine.job_id)):
        assert await store.settle_free(reports) == Partly(Accepted(free), stuck)
    running_still = await statuses(store, [lease.job_id for lease in stuck])
    assert set(running_still) == {Status.RUNNING}
    assert await store.settle_free(reports) == Partly(Accepted(free | stuck), set())
    # And all who waited were woken.
    assert await statuses(store, [parent.job_id, waiter.job_id]) == [Status.PENDING] * 2
    assert len(await store.failures(failed.job_id)) == 1


async def test_a_server_gives_back_what_is_not_locked_and_the_rest_later(
    hasty: None, postgres_url: str, admin: psycopg.Connection[Any]
):
    """Jobs that could not be sent to a worker must not wait for their leases to expire."""
    near = PostgresStore(postgres_url, PostgresOptions(retry=AT_ONCE))
    claimed = [await running(near) for _ in range(3)]
    locked, *free = [run.job_id for run in claimed]
    dispatcher = Dispatcher(near, poll=0.3)

    async def are_free() -> bool:
        return await statuses(near, free) == [Status.PENDING] * 2

    with holding(postgres_url, rows(locked)):
        dispatcher.give_back(claimed)
        await until(are_free)
    await dispatcher.given_back()
    assert await statuses(near, [locked]) == [Status.PENDING]
    await near.aclose()


async def quick(n: int) -> int:
    return n


async def test_one_locked_row_holds_up_no_other_report_and_follows(store: Store, postgres_url: str):
    proceed = asyncio.Event()

    async def slow() -> None:
        await proceed.wait()

    stuck = await submit(store, "slow")
    async with working(store, slow, quick, concurrency=4) as it:
        await until(lambda: it.worker.describe().running == 1)
        async with holding_beside(postgres_url, rows(stuck)):
            proceed.set()
            many = await submit_many(store, "quick", 600)
            ended = await all_finished(store, many)
            assert {job.status for job in ended} == {Status.SUCCEEDED}
            assert (await row(store, stuck)).status is Status.RUNNING
        job = await finished(store, stuck)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)


async def test_many_locked_rows_hold_up_no_other_job(store: Store, postgres_url: str):
    proceed = asyncio.Event()

    async def slow(n: int) -> int:
        await proceed.wait()
        return n

    stuck = await submit_many(store, "slow", 20)
    async with working(store, slow, quick, concurrency=25) as it:
        await until(lambda: it.worker.describe().running == 20)
        pending = await submit_many(store, "quick", 100, delay=3600.0)
        async with holding_beside(postgres_url, rows(*stuck, *pending)):
            proceed.set()
            many = await submit_many(store, "quick", 300)
            ended = await all_finished(store, many)
            assert {job.status for job in ended} == {Status.SUCCEEDED}
            assert set(await statuses(store, stuck)) == {Status.RUNNING}
        jobs = await all_finished(store, stuck)
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}


async def test_a_table_locked_for_a_while_stops_nothing_for_good(
    postgres_url: str, admin: psycopg.Connection[Any], store: Store
):
    ids = await submit_many(store, "quick", 50)
    proceed = asyncio.Event()

    async def slow(n: int) -> int:
        await proceed.wait()
        return n

    held = await submit_many(store, "slow", 20)
    async with working(store, slow, quick, concurrency=30) as it:
        await all_finished(store, ids)
        await until(lambda: it.worker.describe().running == 20)
        async with holding_beside(postgres_url, "LOCK TABLE pulse_jobs IN ACCESS EXCLUSIVE MODE"):
            proceed.set()
            for _ in range(5):  # tries of the report, none of which waits for long
                await until(lambda: blocked(admin, "settle") > 0)
                await until(lambda: blocked(admin, "settle") == 0)
        jobs = await all_finished(store, [*held, *await submit_many(store, "quick", 50)])
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}


async def test_a_batch_that_outlasts_the_statement_timeout_is_made_smaller(
    postgres_url: str, admin: psycopg.Connection[Any]
):
    admin.execute(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END'; "
        "CREATE TRIGGER slowly BEFORE UPDATE ON pulse_jobs FOR EACH ROW "
        "WHEN (NEW.status = 'SUCCEEDED') EXECUTE FUNCTION slowly()"
    )
    options = PostgresOptions(retry=AT_ONCE, dequeue_retry=AT_ONCE, statement_timeout=0.2)
    store = PostgresStore(postgres_url, options)
    proceed = asyncio.Event()

    async def slow(n: int) -> int:
        await proceed.wait()
        return n

    try:
        ids = await submit_many(store, "slow", 60)
        async with working(store, slow, concurrency=60) as it:
            await until(lambda: it.worker.describe().running == 60)
            proceed.set()
            jobs = await all_finished(store, ids)
    finally:
        admin.execute("DROP TRIGGER slowly ON pulse_jobs; DROP FUNCTION slowly")
        await store.aclose()
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}


# -- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["first", "with others"])
async def test_one_locked_row_holds_up_no_checkpoint_of_others(
    store: Store, admin: psycopg.Connection[Any], postgres_url: str, first: bool
):
    proceed, proceed_first = asyncio.Event(), asyncio.Event()
    runs = []

    async def flow(ctx: Context, n: int) -> int:
        runs.append(n)
        await (proceed if n else proceed_first).wait()
        return await ctx.step(quick, n)

    ids = await submit_many(store, "flow", 12)
    stuck, *others = ids
    async with working(store, flow, concurrency=12) as it:
        await until(lambda: it.worker.describe().running == 12)
        async with holding_beside(postgres_url, rows(stuck)):
            proceed_first.set()
            if first:
                await until(lambda: blocked(admin, "settle") > 0)
            proceed.set()
            ended = await all_finished(store, others)
            assert {job.status for job in ended} == {Status.SUCCEEDED}
            assert (await row(store, stuck)).status is Status.RUNNING
        job = await finished(store, stuck)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)
    assert sorted(runs) == list(range(12))


# -- recovery -------------------------------------------------------------------------------------


async def test_a_locked_parent_or_waiter_holds_up_the_recovery_of_no_other_job(
    postgres_url: str, admin: psycopg.Connection[Any]
):
    backend = PostgresBackend(postgres_url, clock := Clock())
    store = backend.open(retry=RetryPolicy.disabled())
    parent, children = await a_family(store, 3)
    await suspended(store, parent, StepKind.FAN_OUT)
    waiter, target = [await running(store, a_worker_id()) for _ in range(2)]
    await store.workflows.watch(waiter.lease, target.job_id)
    await suspended(store, waiter, StepKind.JOB, key=str(target.job_id))
    silent = await running(store, a_worker_id())
    clock.advance(31)
    with holding(postgres_url, rows(parent.job_id, waiter.job_id)):
        async with asyncio.timeout(20):
            # The others are first in line, and do not use up its limit.
            assert await reap(store, limit=1) == [silent.job_id]
            assert await reap(store) == []
    left = {target.job_id, *(child.job_id for child in children)}
    assert set(await reap(store)) == left
    await store.aclose()


async def test_a_locked_waiter_holds_up_no_other_child_of_a_cancelled_parent(
    store: Store, postgres_url: str
):
    parent, children = await a_family(store, 3)
    waiter = await running(store)
    await store.workflows.watch(waiter.lease, children[0].job_id)
    await suspended(store, waiter, StepKind.JOB, key=str(children[0].job_id))
    for child in children:
        await settle(store, child, Snoozed(3600))
    with holding(postgres_url, rows(waiter.job_id)):
        async with asyncio.timeout(20):
            await settle(store, parent, Failed("x", final=True))
        told = await statuses(store, [child.job_id for child in children])
        assert told == [Status.PENDING, Status.CANCELLED, Status.CANCELLED]
    await store.workflows.cascade()
    assert await statuses(store, [children[0].job_id]) == [Status.CANCELLED]


# -- operators ------------------------------------------------------------------------------------


async def cancelled(store: Store, ids: Sequence[UUID]) -> Any:
    return await store.cancel(ids)


async def retried(store: Store, ids: Sequence[UUID]) -> Any:
    return await store.replay(ids)


async def deleted(store: Store, ids: Sequence[UUID]) -> Any:
    return await store.delete(ids)


@pytest.mark.parametrize("how", ["async", "blocking"])
@pytest.mark.parametrize("act", [cancelled, retried, deleted])
async def test_an_operator_hears_which_jobs_are_locked_and_the_others_are_done(
    store: Store, postgres_url: str, act: Any, how: str
):
    jobs = [a_job() for _ in range(3)]
    await store.submit(jobs)
    ids = [job.id for job in jobs]
    if act is not cancelled:
        await store.cancel(ids)
    before = await statuses(store, ids[:1])

    async def acting(some: Sequence[UUID]) -> Any:
        if how == "async":
            return await act(store, some)
        return await asyncio.to_thread(lambda: run_blocking(act(store, some)))

    with holding(postgres_url, rows(ids[0])):
        async with asyncio.timeout(20):
            with pytest.raises(JobsLocked, match=f"1 of 3 jobs .*{ids[0]}.* others were done"):
                await acting(ids)
            with pytest.raises(JobsLocked, match=f"Job {ids[0]} is locked .* nothing was changed"):
                await acting(ids[:1])
        assert await statuses(store, ids[:1]) == before
        found = await store.get(ids[1:])
        wanted = {cancelled: Status.CANCELLED, retried: Status.PENDING, deleted: None}[act]
        assert {found[each].status if each in found else None for each in ids[1:]} == {wanted}
    await acting(ids[:1])


async def test_a_locked_job_does_not_stop_an_act_on_all_that_match(
    store: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verbs, "BATCH", 2)
    jobs = [a_job() for _ in range(6)]
    await store.submit(jobs)
    stuck = jobs[3].id
    where = JobFilter(topic=TOPIC, status=(Status.PENDING,))
    begun = await store.bulk.start(new_job_id(), CANCEL, where, by=Operator("ops"))
    with holding(postgres_url, rows(stuck)):
        ended = await perform_to_end(store, begun.id)
    found = await store.get([job.id for job in jobs])
    assert [each for each, job in found.items() if job.status is not Status.CANCELLED] == [stuck]
    assert ended is not None
    assert (ended.state, ended.done, ended.skipped) == (BulkState.DONE, 5, 1)
    [skip] = await store.bulk.skips(begun.id)
    assert (skip.job_id, skip.reason) == (stuck, SkipReason.LOCKED)

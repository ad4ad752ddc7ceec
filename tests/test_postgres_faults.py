"""A real server that is cut off, crashes, or has its rows locked by others."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from pulsed.model.job import Status
from pulsed.model.outcome import Beat, Failed, Released, Report, Succeeded
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from tests.support.backends import AT_ONCE, only_postgres
from tests.support.cutting_proxy import CuttingProxy, Moment
from tests.support.interleaving import WAITING_FOR_LOCKS
from tests.support.jobs import (
    ALICE,
    BOB,
    EVERYTHING,
    a_job,
    a_worker_id,
    claim,
    claim_one,
    reap,
    row,
    running,
    settle,
    submitted,
)
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.waiting import until

backend = only_postgres

# -- the connection is cut ------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres_url) -> Iterator[CuttingProxy]:
    address = urlsplit(postgres_url)
    assert address.hostname is not None
    with CuttingProxy(address.hostname, address.port or 5432) as proxy:
        yield proxy


@pytest.fixture(params=["async", "blocking"])
async def cut(request, proxy, postgres_url, clock, backend):
    """A way to call a store behind the proxy, through either driver."""
    address = urlsplit(postgres_url)
    login, at, _ = address.netloc.rpartition("@")
    url = address._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}").geturl()
    options = PostgresOptions(retry=AT_ONCE, dequeue_retry=AT_ONCE)
    store = PostgresStore(url, options, clock=clock)

    async def call(verb: Any) -> Any:
        if request.param == "async":
            return await verb
        return await asyncio.to_thread(run_blocking, verb)

    yield store, call
    await asyncio.to_thread(run_blocking, store.aclose())
    await store.aclose()


moments = pytest.mark.parametrize("moment", ["before", "during", "after"])


@moments
async def test_a_submit_that_is_cut_off_stores_its_jobs_once(cut, proxy, moment: Moment):
    store, call = cut
    await call(store.counts(EVERYTHING))
    jobs = [a_job(payload='{"marker":"the-one"}'), a_job()]
    proxy.arm(b"the-one", moment)
    answer = await call(store.submit(jobs))
    assert proxy.cuts == 1
    assert answer.new in {"before": {2}, "during": {0, 2}, "after": {0}}[moment]
    assert answer.existing == frozenset()  # what the retry found may be its own
    assert set(await call(store.get([job.id for job in jobs]))) == {job.id for job in jobs}
    assert sum((await call(store.counts(EVERYTHING))).values()) == 2


@moments
async def test_a_success_that_is_cut_off_is_reported_once(cut, proxy, moment: Moment):
    store, call = cut
    run = await call(running(store))
    proxy.arm(b"the-one", moment)
    assert await call(settle(store, run, Succeeded('"the-one"')))
    assert proxy.cuts == 1
    found = await call(row(store, run.job_id))
    assert (found.status, found.result) == (Status.SUCCEEDED, '"the-one"')


@pytest.mark.parametrize("marker", [b"the-one", b"COMMIT"], ids=["statement", "commit"])
@moments
async def test_a_failure_that_is_cut_off_is_counted_once(cut, proxy, moment: Moment, marker):
    store, call = cut
    run = await call(running(store, max_attempts=5))
    proxy.arm(marker, moment)
    assert await call(settle(store, run, Failed("the-one")))
    assert proxy.cuts == 1
    found = await call(row(store, run.job_id))
    assert (found.status, found.attempts) == (Status.RETRYING, 1)
    assert len(await call(store.failures(run.job_id))) == 1


@moments
async def test_a_claim_that_is_cut_off_can_be_found_and_given_back(cut, proxy, moment: Moment):
    store, call = cut
    await call(store.submit([a_job(max_attempts=1, queue="the-one") for _ in range(4)]))
    await call(claim(store, BOB, queue="the-one", limit=1))  # connected and prepared
    proxy.arm(b"the-one", moment)
    runs = await call(claim(store, ALICE, queue="the-one", limit=1))
    assert (proxy.cuts, len(runs), store.doubtful_claims) == (1, 1, 1)
    strays = [lease for lease in await call(store.held(ALICE)) if lease != runs[0].lease]
    assert len(strays) in {"before": {0}, "during": {0, 1}, "after": {1}}[moment]
    await call(store.settle([Report(lease, Released()) for lease in strays]))
    rest = await call(claim(store, ALICE, queue="the-one"))
    assert [run.attempt for run in rest] == [1, 1]


# -- the server crashes ---------------------------------------------------------------------------


@pytest.fixture
def crashing() -> Iterator[ScratchPostgres]:
    """A server whose unsynced commits stay in its memory, to be lost with it."""
    with ScratchPostgres(settings={"wal_writer_delay": "10000ms", "autovacuum": "off"}) as server:
        yield server


async def test_a_claim_survives_a_crash_of_the_server(crashing):
    """No other worker gets the job while its worker has it."""
    store = PostgresStore(crashing.url, PostgresOptions(retry=AT_ONCE, dequeue_retry=AT_ONCE))
    await submitted(store)
    first = await claim_one(store, ALICE)
    crashing.kill()
    crashing.start()
    assert await claim(store, BOB) == []
    assert await store.beat([first.lease]) == {first.lease: Beat.OK}
    await store.aclose()


async def test_a_claim_that_a_real_crash_undid_never_shares_its_token(crashing):
    options = PostgresOptions(retry=AT_ONCE, dequeue_retry=AT_ONCE)
    store = PostgresStore(crashing.url, options)
    job_id = await submitted(store)
    unsynced = PostgresStore(f"{crashing.url}?options=-csynchronous_commit%3Doff", options)
    first = await claim_one(unsynced, ALICE)
    crashing.kill()
    crashing.start()
    await unsynced.aclose()

    found = await row(store, job_id)  # the acknowledged job is there, the unsynced claim is not
    assert (found.status, found.attempts, found.lease_token) == (Status.PENDING, 0, 0)
    second = await claim_one(store, ALICE)
    assert second.attempt == first.attempt
    assert second.lease_token > first.lease_token
    assert await store.beat([first.lease]) == {first.lease: Beat.LOST}
    assert not await settle(store, first, Succeeded("1"))

    assert await settle(store, second, Succeeded("2"))
    crashing.kill()
    crashing.start()
    found = await row(store, job_id)
    assert (found.status, found.result) == (Status.SUCCEEDED, "2")
    await store.aclose()


# -- rows locked by others ------------------------------------------------------------------------


async def test_a_row_locked_by_another_session_is_unknown_not_lost(backend, clock):
    """Another session locks the row briefly: the run continues and asks again."""
    store = backend.open()
    await store.submit([a_job() for _ in range(3)])
    first, second, lost = await claim(store)
    await settle(store, lost, Succeeded())
    clock.advance(10)
    leases = [first.lease, second.lease, lost.lease]
    with contextlib.closing(backend.connect()) as other, other.transaction():
        other.execute(
            f"SELECT FROM pulse_jobs WHERE id IN ({backend.literal(first.job_id)}, "
            f"{backend.literal(lost.job_id)}) FOR UPDATE"
        )
        answers = await store.beat(leases)
    assert answers == {
        first.lease: Beat.UNKNOWN,
        second.lease: Beat.OK,
        lost.lease: Beat.LOST,
    }
    assert (await row(store, first.job_id)).lease_until == clock.after(20)
    assert await store.beat(leases) == answers | {first.lease: Beat.OK}
    await store.aclose()


async def test_a_locked_row_does_not_hold_up_claims_or_the_watchdog(backend, clock):
    store = backend.open()
    held = await running(store)
    silent = await running(store, a_worker_id())  # alone: it pays, and waits for its retry
    waiting, free = await submitted(store), await submitted(store)
    clock.advance(31)
    with contextlib.closing(backend.connect()) as other, other.transaction():
        other.execute(
            f"SELECT FROM pulse_jobs WHERE id IN ({backend.literal(held.job_id)}, "
            f"{backend.literal(waiting)}) FOR UPDATE"
        )
        async with asyncio.timeout(60):
            assert await reap(store) == [silent.job_id]
            assert [run.job_id for run in await claim(store, BOB)] == [free]
    assert await reap(store) == [held.job_id]
    await store.aclose()


async def test_a_settle_waits_for_a_locked_row(backend):
    store = backend.open()
    run = await running(store)
    with contextlib.closing(backend.connect()) as other, other.transaction():
        other.execute("UPDATE pulse_jobs SET cancel_requested = true")
        task = asyncio.create_task(settle(store, run, Failed("x")))
        with contextlib.closing(backend.connect()) as looking:
            await until(lambda: looking.execute(WAITING_FOR_LOCKS).fetchone() == (1,))
    assert await task
    assert (await row(store, run.job_id)).status is Status.CANCELLED  # it saw the request
    await store.aclose()


async def test_the_servers_clock_decides_without_a_clock_of_the_tests(postgres_url, backend):
    store = PostgresStore(postgres_url)
    job_id = await submitted(store)
    with psycopg.connect(postgres_url) as connection:
        (now,) = connection.execute("SELECT now()").fetchone() or (None,)
    assert abs(((await row(store, job_id)).submitted_at - now).total_seconds()) < 30
    run = await claim_one(store)
    found = await row(store, job_id)
    assert found.lease_until is not None
    assert found.started_at is not None
    assert (found.lease_until - found.started_at).total_seconds() == pytest.approx(30, abs=1)
    assert run.lease_token == pytest.approx(found.started_at.timestamp() * 1e6, abs=1e6)
    await store.aclose()

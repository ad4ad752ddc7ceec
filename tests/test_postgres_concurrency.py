"""Many sessions on the same rows: no job twice, no limit exceeded, no deadlock."""

import asyncio
import random
from uuid import UUID

import pytest

from pulsed.model.backoff import RetryPolicy
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from pulsed.model.outcome import Failed, Outcome, Released, Report, Succeeded
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from tests.support.backends import PostgresBackend
from tests.support.clock import Clock
from tests.support.jobs import EVERYTHING, NO_WAIT, POLICIES, a_job, a_policy, a_worker_id

SESSIONS = 8
ONCE = RetryPolicy.disabled()  # a deadlock would be an error, not another try


@pytest.fixture
async def stores(postgres_url):
    """As many processes; every verb gets one try."""
    options = PostgresOptions(retry=ONCE, dequeue_retry=ONCE)
    stores = [PostgresStore(postgres_url, options) for _ in range(SESSIONS)]
    await stores[0].migrate()
    PostgresBackend(postgres_url, Clock()).empty()
    yield stores
    for store in stores:
        await store.aclose()


async def test_no_job_is_claimed_twice_and_no_claim_exceeds_its_limit(stores):
    jobs = [a_job(priority=random.randint(-2, 2)) for _ in range(600)]
    await stores[0].submit(jobs)
    claimed: list[UUID] = []

    async def work(store, limit):
        me = a_worker_id()
        while held := await store.claim(me, "default", POLICIES, limit):
            assert len(held) <= limit
            claimed.extend(a.job_id for a in held)
            ended = await store.settle([Report.of(a, Succeeded()) for a in held])
            assert len(ended) == len(held)

    await asyncio.gather(*(work(store, limit) for limit, store in enumerate(stores, 1)))
    left = await stores[0].claim(a_worker_id(), "default", POLICIES, 600)
    claimed += [a.job_id for a in left]
    await stores[0].settle([Report.of(a, Succeeded()) for a in left])
    assert len(claimed) == len(set(claimed)) == 600


async def test_batches_over_the_same_jobs_do_not_deadlock(stores):
    """Settles, heartbeats, cancels, replays and reaps of the same rows, each in its own order."""
    policy = a_policy(backoff=NO_WAIT, max_attempts=100_000, lease=30)
    await stores[0].submit([a_job(id=new_job_id()) for _ in range(60)])
    rounds = 12

    async def churn(store, seed):
        order = random.Random(seed)
        me = a_worker_id()
        for _ in range(rounds):
            held = await store.claim(me, "default", [policy], 20)
            known = [job.id for job in await store.list_jobs(EVERYTHING)]
            order.shuffle(held)
            order.shuffle(known)
            await store.beat([a.lease for a in held])
            await store.cancel(known[:5])
            outcomes: list[Outcome] = [Failed("again"), Released(), Succeeded()]
            await store.settle([Report.of(a, order.choice(outcomes)) for a in held])
            await store.replay(known)
            await store.watchdog()

    await asyncio.gather(*(churn(store, seed) for seed, store in enumerate(stores)))
    counts = await stores[0].counts(EVERYTHING)
    assert sum(counts.values()) == 60
    assert counts[Status.RUNNING] == 0


async def test_two_settles_of_the_same_jobs_in_opposite_orders_both_end(stores):
    for _ in range(10):
        await stores[0].submit([a_job() for _ in range(40)])
        held = await stores[0].claim(a_worker_id(), "default", POLICIES, 40)
        reports = [Report.of(a, Failed("no", final=True)) for a in held]
        answers = await asyncio.gather(
            *(
                store.settle(reports if number % 2 else reports[::-1])
                for number, store in enumerate(stores)
            )
        )
        everyone = {a.lease for a in held}
        assert all(answer == everyone for answer in answers)
        failures = await stores[0].failures(held[0].job_id)
        assert len(failures) == 1

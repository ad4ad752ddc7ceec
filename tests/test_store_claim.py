"""Claiming: the right jobs, in the right order, each to one worker, counted as it starts."""

import asyncio
import threading
from itertools import pairwise
from uuid import UUID

import pytest

from pulsed.model.backoff import Backoff
from pulsed.model.job import Status
from pulsed.model.outcome import Cancelled, Failed, Released, Snoozed, Succeeded
from pulsed.model.timetable import EPOCH
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.dialect import PostgresDialect
from tests.support.backends import close_blocking
from tests.support.jobs import (
    ALICE,
    BOB,
    EVERYTHING,
    NO_WAIT,
    a_job,
    a_policy,
    a_worker_id,
    claim,
    claim_one,
    ids,
    reap,
    row,
    running,
    settle,
    submitted,
)
from tests.support.schedules import after_statements

# -- the claim is the lease grant -----------------------------------------------------------------


async def test_the_claim_grants_the_lease_in_the_same_act(store, clock):
    job_id = await submitted(store)
    run = await claim_one(store, ALICE)
    found = await row(store, job_id)
    assert found.status is Status.RUNNING
    assert found.locked_by == ALICE
    assert found.lease_until == clock.after(30)
    assert found.started_at == clock.now
    assert (run.lease.job_id, run.lease.worker_id) == (job_id, ALICE)
    assert run.lease.token == found.lease_token > 0


async def test_an_attempt_is_counted_when_the_job_is_claimed(store):
    run = await running(store)
    assert run.attempt == 1
    assert (await row(store, run.job_id)).attempts == 1


async def test_a_worker_that_never_reports_has_used_an_attempt(store, clock):
    job_id = await submitted(store, max_attempts=3, backoff=NO_WAIT)
    for attempt in (1, 2, 3):
        assert (await claim_one(store)).attempt == attempt
        clock.advance(31)
        assert await reap(store) == [job_id]
    found = await row(store, job_id)
    assert (found.status, found.attempts) == (Status.DEAD_LETTERED, 3)
    assert await claim(store) == []


async def test_the_assignment_carries_all_that_a_run_needs(store, clock):
    job_id = await submitted(
        store, payload='{"n":1}', headers={"trace": "x"}, priority=3, timeout=5.0, max_attempts=4
    )
    submitted_at = clock.now
    clock.advance(2)
    run = await claim_one(store, ALICE, topics=[a_policy(lease=12.5)])
    assert run.job_id == job_id
    assert (run.topic, run.queue, run.priority) == ("email", "default", 3)
    assert (run.payload, run.headers) == ('{"n":1}', {"trace": "x"})
    assert (run.attempt, run.max_attempts, run.timeout) == (1, 4, 5.0)
    assert (run.lease_seconds, run.lease.worker_id) == (12.5, ALICE)
    assert run.submitted_at == run.next_run_at == submitted_at


async def test_the_assignment_tells_when_it_was_submitted_from_when_it_was_due(store, clock):
    clock.advance(0.123457)
    submitted_at = clock.now
    await submitted(store, delay=7.000001)
    due = clock.advance(7.000001)
    clock.advance(3)
    run = await claim_one(store)
    assert (run.submitted_at, run.next_run_at) == (submitted_at, due)


@pytest.mark.parametrize("number", [float("-inf"), -1e300])
def test_a_time_that_no_datetime_can_have_does_not_fail_its_batch(number):
    """A user's own INSERT may use '-infinity'."""
    assert PostgresDialect().instant(number) == EPOCH


async def test_every_claim_has_a_higher_token(store, clock):
    job_id = await submitted(store, max_attempts=10, backoff=NO_WAIT)
    tokens = []
    for outcome in (Failed("x"), Snoozed(0), Released(), Failed("y"), Released()):
        run = await claim_one(store)
        tokens.append(run.lease_token)
        await settle(store, run, outcome)
    assert all(earlier < later for earlier, later in pairwise(tokens))
    assert (await row(store, job_id)).lease_token == tokens[-1]


async def test_the_token_rises_although_the_clock_jumped_back(store, clock):
    job_id = await submitted(store, backoff=NO_WAIT)
    first = await claim_one(store)
    await settle(store, first, Released())
    clock.advance(-86_400)
    assert await claim(store) == []  # not due by that clock
    await store.cancel([job_id])
    await store.replay([job_id])
    second = await claim_one(store)
    assert second.lease_token == first.lease_token + 1


# -- which jobs -----------------------------------------------------------------------------------


async def test_higher_priority_first_then_earlier_then_lower_id(store, clock):
    base = UUID("01900000-0000-7000-8000-000000000000").int
    a, b, c, d, e, f = (UUID(int=base + n) for n in range(6))
    await store.submit(
        [
            a_job(id=f, priority=-100),
            a_job(id=e, delay=5, priority=0),
            a_job(id=d, delay=2, priority=0),
            a_job(id=c, delay=2, priority=0),
            a_job(id=b, delay=9, priority=100),
            a_job(id=a, delay=5, priority=0),
        ]
    )
    clock.advance(10)
    assert ids(await claim(store)) == [b, c, d, a, e, f]


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_the_order_holds_across_small_claims(store, clock, limit):
    jobs = [a_job(priority=n % 3, delay=(n * 7) % 5) for n in range(12)]
    await store.submit(jobs)
    clock.advance(10)
    expected = sorted(jobs, key=lambda job: (-job.priority, job.delay, job.id))
    claimed = []
    while batch := ids(await claim(store, limit=limit)):
        assert len(batch) <= limit
        claimed += batch
    assert claimed == [job.id for job in expected]


async def test_never_more_than_the_limit(store):
    await store.submit([a_job(priority=n % 4) for n in range(40)])
    for limit in (1, 5, 7):
        assert len(await claim(store, limit=limit)) == limit
    counts = await store.counts(EVERYTHING)
    assert (counts[Status.RUNNING], counts[Status.PENDING]) == (13, 27)


async def test_only_topics_that_the_worker_has_handlers_for(store):
    other = await submitted(store, topic="report", priority=50)
    mine = await submitted(store)
    assert ids(await claim(store)) == [mine]
    assert ids(await claim(store, topics=[a_policy("report"), a_policy()])) == [other]


async def test_jobs_of_foreign_topics_do_not_fill_the_batch(store):
    await store.submit([a_job(topic="report", priority=n % 3) for n in range(30)])
    mine = await submitted(store)
    assert ids(await claim(store, limit=1)) == [mine]


async def test_no_topics_claim_nothing(store):
    await submitted(store)
    assert await claim(store, topics=[]) == []


async def test_only_the_queue_asked_for(store):
    mail = await submitted(store, queue="mail", priority=9)
    default = await submitted(store)
    assert ids(await claim(store)) == [default]
    assert await claim(store) == []
    assert ids(await claim(store, queue="mail")) == [mail]
    assert await claim(store, queue="nobody's") == []


async def test_a_future_job_of_high_priority_does_not_hide_a_due_one(store):
    await store.submit([a_job(priority=50, delay=60) for _ in range(5)])
    due = await submitted(store, priority=-5)
    assert ids(await claim(store, limit=1)) == [due]


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("x", final=True), Cancelled()])
async def test_a_finished_job_is_never_claimed(store, clock, outcome):
    run = await running(store)
    await settle(store, run, outcome)
    clock.advance(1e6)
    assert await claim(store) == []


async def test_a_running_job_is_not_claimed_by_anybody(store, clock):
    await running(store, ALICE)
    clock.advance(1e6)  # not even when its lease is over: that is the watchdog's to decide
    assert await claim(store, ALICE) == []
    assert await claim(store, BOB) == []


async def test_a_retrying_job_is_a_pending_one_whose_time_has_not_come(store, clock):
    run = await running(store)
    await settle(store, run, Failed("x"))
    assert (await row(store, run.job_id)).status is Status.RETRYING
    clock.advance(0.999)
    assert await claim(store) == []
    clock.advance(0.001)
    again = await claim_one(store, BOB)
    assert (again.job_id, again.attempt) == (run.job_id, 2)


# -- policy left unset ----------------------------------------------------------------------------


async def test_unset_policy_is_filled_from_the_claiming_workers_topic(store, clock):
    job_id = await submitted(store)
    policy = a_policy(max_attempts=9, timeout=4.0, lease=120.0, backoff=Backoff.fixed(17))
    run = await claim_one(store, topics=[policy])
    assert (run.max_attempts, run.timeout, run.lease_seconds) == (9, 4.0, 120.0)
    found = await row(store, job_id)
    assert (found.max_attempts, found.timeout, found.lease_seconds) == (9, 4.0, 120.0)
    assert found.lease_until == clock.after(120)
    await settle(store, run, Failed("x"))
    assert (await row(store, job_id)).next_run_at == clock.after(17)


async def test_filled_policy_is_kept_by_later_claims(store, clock):
    job_id = await submitted(store)
    policy = a_policy(max_attempts=5, backoff=Backoff.fixed(10), lease=60.0, timeout=3.0)
    await settle(store, await claim_one(store, topics=[policy]), Failed("x"))
    clock.advance(10)
    other = a_policy(max_attempts=1, backoff=Backoff.fixed(99), lease=5.0, timeout=1.0)
    run = await claim_one(store, topics=[other])
    assert (run.max_attempts, run.lease_seconds, run.timeout) == (5, 60.0, 3.0)
    await settle(store, run, Failed("y"))
    found = await row(store, job_id)
    assert (found.status, found.next_run_at) == (Status.RETRYING, clock.after(10))


async def test_the_jobs_own_policy_wins_over_the_topics(store, clock):
    job_id = await submitted(
        store, max_attempts=2, backoff=Backoff.linear(30), lease=7.0, timeout=1.5
    )
    policy = a_policy(max_attempts=50, backoff=Backoff.exponential(9), lease=60.0, timeout=9.0)
    run = await claim_one(store, topics=[policy])
    assert (run.max_attempts, run.lease_seconds, run.timeout) == (2, 7.0, 1.5)
    assert (await row(store, job_id)).lease_until == clock.after(7)
    await settle(store, run, Failed("x"))
    assert (await row(store, job_id)).next_run_at == clock.after(30)


async def test_a_backoff_is_taken_whole_and_never_mixed(store, clock):
    job_id = await submitted(store, backoff=Backoff.fixed(8))
    policy = a_policy(backoff=Backoff(3, power=2, factor=5, cap=4, jitter=1))
    run = await claim_one(store, topics=[policy])
    await settle(store, run, Failed("x"))
    assert (await row(store, job_id)).next_run_at == clock.after(8)


async def test_topics_with_different_policies_are_claimed_in_the_order_of_the_queue(store, clock):
    topics = [a_policy("a", lease=10.0), a_policy("b", lease=20.0)]
    texts = [f'{{"x":"{"é" * size}"}}' for size in (1, 9999)]
    jobs = [a_job(topic=topic, payload=text) for topic in "abab" for text in texts]
    for job in jobs:
        await store.submit([job])
        clock.advance(1)
    runs = await claim(store, topics=topics)
    assert [run.job_id for run in runs] == [job.id for job in jobs]
    assert [run.payload for run in runs] == [job.payload for job in jobs]
    assert [run.lease_seconds for run in runs] == [10.0, 10.0, 20.0, 20.0] * 2


async def test_each_topic_fills_its_own_policy(store):
    await store.submit([a_job(topic="a"), a_job(topic="b")])
    topics = [a_policy("a", max_attempts=4, lease=10.0), a_policy("b", max_attempts=6, lease=20.0)]
    runs = {run.topic: run for run in await claim(store, topics=topics)}
    assert (runs["a"].max_attempts, runs["a"].lease_seconds) == (4, 10.0)
    assert (runs["b"].max_attempts, runs["b"].lease_seconds) == (6, 20.0)


# -- many workers ---------------------------------------------------------------------------------


async def test_concurrent_claims_share_the_jobs_out(store):
    await store.submit([a_job(priority=n % 3) for n in range(60)])
    workers = [a_worker_id() for _ in range(6)]
    batches = await asyncio.gather(*(claim(store, worker, limit=10) for worker in workers))
    while any(got := [await claim(store, worker, limit=10) for worker in workers]):
        batches += got
    claimed = [job_id for batch in batches for job_id in ids(batch)]
    assert len(claimed) == len(set(claimed)) == 60


def test_workers_on_stores_of_their_own_never_get_the_same_job(backend):
    stores = [backend.open() for _ in range(4)]
    run_blocking(stores[0].submit([a_job(priority=n % 3) for n in range(120)]))
    barrier = threading.Barrier(4)
    claimed: list[list[UUID]] = [[] for _ in stores]

    def work(n):
        barrier.wait()
        while batch := run_blocking(claim(stores[n], a_worker_id(), limit=7)):
            assert len(batch) <= 7
            claimed[n] += ids(batch)
        close_blocking(stores[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [job_id for mine in claimed for job_id in mine]
    # A claim that met only rows locked by others may come back empty: claim once more.
    last = backend.open()
    while batch := run_blocking(claim(last)):
        everything += ids(batch)
    close_blocking(last)
    assert len(everything) == len(set(everything)) == 120


async def test_headers_of_another_producer_do_not_spoil_the_claim(store, backend):
    """Foreign numbers in the headers must not fail every row they are claimed with."""
    await store.submit([a_job(headers={"tenant": "7"}) for _ in range(3)])
    backend.execute("""UPDATE pulse_jobs SET headers = '{"tenant": 7}'""")
    claimed = await claim(store, limit=3)
    assert [run.headers for run in claimed] == [{"tenant": "7"}] * 3


@pytest.mark.embedded("what goes wrong inside a server is not shown to its clients")
async def test_a_claim_that_ends_in_any_error_is_in_doubt(store, monkeypatch):
    perform = store.perform

    async def commit_and_stumble(verb):
        await perform(verb)
        raise ValueError("cannot read the answer")

    await store.submit([a_job()])
    monkeypatch.setattr(store, "perform", commit_and_stumble)
    with pytest.raises(ValueError, match="cannot read"):
        await claim(store)
    assert store.doubtful_claims == 1


@pytest.mark.embedded("counts the statements of a verb")
async def test_an_empty_queue_costs_one_statement_a_look(store, clock):
    """An idle worker polls every second, and there may be many of them."""
    await claim(store)  # makes the tables
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    for number in range(1, 5):
        after_statements(store, "claim", number, count, times=100)
    for _ in range(3):
        clock.advance(1)
        assert await claim(store) == []
    assert asked == 3
    await submitted(store, priority=5)
    clock.advance(1)
    assert (await claim_one(store)).priority == 5

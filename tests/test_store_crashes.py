"""Jobs whose process died while it ran several: only the one that kills processes pays for it."""

import pytest

from pulsed.model.job import Status
from pulsed.model.outcome import INTERRUPTED, LEASE_EXPIRED, Failed, Released, Snoozed, Succeeded
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


async def crash(store, clock):
    """Let every worker go silent until its jobs are recovered and a full scan is due."""
    clock.advance(31)
    return await reap(store)


async def suspects(store, clock, count, **options):
    """Return jobs whose processes died with all of them, twice."""
    jobs = [a_job(backoff=NO_WAIT, **options) for _ in range(count)]
    await store.submit(jobs)
    for _ in range(2):
        assert len(await claim(store, a_worker_id(), limit=count)) == count
        assert len(await crash(store, clock)) == count
    clock.advance(1)
    return {job.id for job in jobs}


# -- who pays -------------------------------------------------------------------------------------


async def test_a_job_kills_its_process_again_and_again_and_costs_its_neighbours_nothing(
    store, clock
):
    poison = await submitted(store, max_attempts=3, backoff=NO_WAIT)
    await store.submit([a_job(max_attempts=1, backoff=NO_WAIT) for _ in range(99)])
    processes = 0
    for _ in range(400):
        clock.advance(1)
        worker = a_worker_id()
        runs = await claim(store, worker, limit=100)
        if not runs:
            break
        if poison in ids(runs):
            processes += 1
            await crash(store, clock)
            continue
        for run in runs:
            assert run.attempt == 1
            assert await settle(store, run, Succeeded())
    assert processes == 5  # max_attempts and two
    found = await store.list_jobs(EVERYTHING, limit=200)
    ended = {job.id: (job.status, job.attempts) for job in found}
    assert ended.pop(poison) == (Status.DEAD_LETTERED, 3)
    assert set(ended.values()) == {(Status.SUCCEEDED, 1)}
    assert len(ended) == 99


async def test_a_process_that_dies_once_costs_no_attempt_and_no_time(store, clock):
    await store.submit([a_job(max_attempts=1) for _ in range(20)])
    first = await claim(store, ALICE, limit=20)
    assert sorted(await crash(store, clock)) == sorted(ids(first))
    again = await claim(store, BOB, limit=20)
    assert sorted(ids(again)) == sorted(ids(first))
    assert {run.attempt for run in again} == {1}


async def test_an_interrupted_job_says_so(store, clock):
    one, _ = [await submitted(store) for _ in range(2)]
    assert len(await claim(store, ALICE)) == 2
    await crash(store, clock)
    found = await row(store, one)
    assert (found.status, found.attempts, found.next_run_at) == (Status.PENDING, 0, clock.now)
    assert (found.last_outcome, found.last_error) == (INTERRUPTED, "worker lease expired")
    assert (found.last_worker, found.locked_by, found.lease_until) == (ALICE, None, None)
    assert found.crashes == 1


async def test_every_crash_is_in_the_history_of_a_job_with_its_attempt(store, clock):
    """Those that cost an attempt, and those before them that did not."""
    job_id = await submitted(store, max_attempts=2, backoff=NO_WAIT)
    other = await submitted(store, backoff=NO_WAIT)
    tokens = []
    for number in range(4):
        if number == 2:
            await store.cancel([other])
        clock.advance(1)
        (run,) = [run for run in await claim(store, a_worker_id()) if run.job_id == job_id]
        tokens.append(run.lease_token)
        await crash(store, clock)
    found = await store.failures(job_id)
    assert [(each.lease_token, each.attempt) for each in found] == [
        *zip(tokens, (1, 1, 1, 2), strict=True)
    ]
    given_back = "worker lease expired; it ran other jobs, too, so this attempt does not count"
    assert [each.error for each in found] == [given_back] * 2 + ["worker lease expired"] * 2
    assert (await row(store, job_id)).status is Status.DEAD_LETTERED


async def test_crashes_are_counted_where_people_see_them(store, clock):
    one, _ = [await submitted(store) for _ in range(2)]
    assert (await row(store, one)).crashes == 0
    for count in (1, 2):
        assert len(await claim(store, a_worker_id())) == 2
        await crash(store, clock)
        assert (await row(store, one)).crashes == count
        (listed,) = [job for job in await store.list_jobs(EVERYTHING) if job.id == one]
        assert listed.crashes == count


async def test_a_job_that_was_alone_pays(store, clock):
    run, other = await running(store, ALICE), await running(store, BOB)
    await crash(store, clock)
    for each in (run, other):
        found = await row(store, each.job_id)
        assert (found.status, found.attempts) == (Status.RETRYING, 1)
        assert found.last_outcome == LEASE_EXPIRED


async def test_a_job_beside_those_of_another_silent_worker_was_alone(store, clock):
    topics = [a_policy("short", lease=10.0), a_policy("long", lease=40.0)]
    for topic in ("short", "long"):
        await submitted(store, topic=topic)
    assert len(await claim(store, ALICE, topics=topics)) == 2
    alone = await submitted(store, topic="long")
    assert len(await claim(store, BOB, topics=topics)) == 1
    clock.advance(11)
    assert len(await reap(store)) == 1  # marks the other one of its worker
    clock.advance(30)
    assert len(await reap(store)) == 2
    found = await row(store, alone)
    assert (found.attempts, found.last_outcome) == (1, LEASE_EXPIRED)


async def test_a_job_is_alone_when_its_neighbours_have_ended(store, clock):
    await store.submit([a_job() for _ in range(2)])
    done, silent = await claim(store, ALICE)
    await settle(store, done, Succeeded())
    await crash(store, clock)
    assert (await row(store, silent.job_id)).attempts == 1


async def test_the_last_lease_of_a_dead_worker_to_expire_was_not_alone(store, clock):
    """Leases of one worker expire at different times, and maybe in different scans."""
    lengths = {"a": 10.0, "b": 20.0, "c": 40.0}
    topics = [a_policy(topic, lease=lease) for topic, lease in lengths.items()]
    jobs = {topic: await submitted(store, topic=topic, max_attempts=1) for topic in lengths}
    assert len(await claim(store, ALICE, topics=topics)) == 3
    for topic, after in (("a", 11), ("b", 10), ("c", 20)):
        clock.advance(after)
        assert await reap(store) == [jobs[topic]]
        found = await row(store, jobs[topic])
        assert (found.status, found.attempts) == (Status.PENDING, 0)


async def test_a_note_of_company_is_about_one_lease(store, clock):
    """The run after it may be alone."""
    short, long = [a_policy("a", lease=10.0), a_policy("b", lease=40.0)]
    await submitted(store, topic="a", delay=0)
    kept = await submitted(store, topic="b")
    assert len(await claim(store, ALICE, topics=[short, long])) == 2
    clock.advance(11)
    await reap(store)
    clock.advance(30)
    assert await reap(store) == [kept]
    run = await claim_one(store, ALICE, topics=[long])
    assert (run.job_id, run.attempt) == (kept, 1)
    clock.advance(41)
    assert await reap(store) == [kept]
    assert (await row(store, kept)).last_outcome == LEASE_EXPIRED


async def test_a_dead_worker_is_no_company_for_the_jobs_of_others(store, clock):
    short, long = [a_policy("a", lease=10.0), a_policy("b", lease=40.0)]
    await submitted(store, topic="a")
    await claim_one(store, ALICE, topics=[short])
    alone = await submitted(store, topic="b")
    await claim_one(store, BOB, topics=[long])
    clock.advance(11)
    assert len(await reap(store)) == 1
    clock.advance(30)
    assert await reap(store) == [alone]
    found = await row(store, alone)
    assert (found.last_outcome, found.attempts) == (LEASE_EXPIRED, 1)


async def test_a_reap_in_parts_takes_nobody_for_alone(store, clock):
    await store.submit([a_job(max_attempts=1) for _ in range(5)])
    assert len(await claim(store, ALICE)) == 5
    clock.advance(31)
    for expected in (2, 2, 1):
        assert len(await reap(store, limit=2)) == expected
    assert len(await claim(store, BOB)) == 5


async def test_a_cancelled_job_that_was_interrupted_does_not_run_again(store, clock):
    await store.submit([a_job() for _ in range(2)])
    asked, _ = await claim(store, ALICE)
    await store.cancel([asked.job_id])
    await crash(store, clock)
    assert (await row(store, asked.job_id)).status is Status.CANCELLED


# -- running apart --------------------------------------------------------------------------------


async def test_a_worker_runs_one_suspect_at_a_time(store, clock):
    jobs = await suspects(store, clock, 3)
    first = await claim_one(store, ALICE)
    clock.advance(1)
    assert await claim(store, ALICE) == []
    second = await claim_one(store, BOB)
    clock.advance(1)
    await settle(store, first, Succeeded())
    third = await claim_one(store, ALICE)
    assert {run.job_id for run in (first, second, third)} == jobs
    assert {run.attempt for run in (first, second, third)} == {1}


@pytest.mark.embedded("a server hints at its own store")
async def test_the_end_of_a_suspect_is_announced_for_the_next_one(store, clock):
    await suspects(store, clock, 2)
    run = await claim_one(store, ALICE)
    heard: list[set[str]] = []

    async def hint(queues: set[str]) -> None:
        heard.append(queues)

    store.hint = hint
    assert await settle(store, run, Succeeded())
    assert heard == [{"default"}]


async def test_a_suspect_runs_beside_ordinary_jobs(store, clock):
    jobs = await suspects(store, clock, 2)
    ordinary = {await submitted(store) for _ in range(3)}
    clock.advance(1)
    found = set(ids(await claim(store, ALICE, limit=3)))
    assert (len(found & jobs), len(found & ordinary)) == (1, 2)
    assert set(ids(await claim(store, ALICE, limit=3))) == ordinary - found


async def test_a_suspect_is_not_left_behind_by_a_queue_that_is_never_empty(store, clock):
    jobs = await suspects(store, clock, 2)
    await store.submit([a_job(priority=5) for _ in range(20)])
    found = []
    for _ in range(2):
        clock.advance(1)
        found += ids(await claim(store, a_worker_id(), limit=5))
    assert jobs < set(found)
    assert len(found) == 10


async def test_a_suspect_pays_also_in_company_and_its_company_does_not(store, clock):
    jobs = await suspects(store, clock, 2, max_attempts=1)
    ordinary = await submitted(store)
    runs = {run.job_id: run for run in await claim(store, ALICE)}
    (suspect,) = jobs & set(runs)
    assert set(runs) == {suspect, ordinary}
    await crash(store, clock)
    assert (await row(store, suspect)).status is Status.DEAD_LETTERED
    found = await row(store, ordinary)
    assert (found.status, found.attempts) == (Status.PENDING, 0)


@pytest.mark.parametrize(
    "outcome, clears",
    [(Failed("loud"), True), (Snoozed(0), True), (Released(), False)],
    ids=["failed", "snoozed", "released"],
)
async def test_a_report_ends_the_suspicion_and_a_hand_back_does_not(store, clock, outcome, clears):
    jobs = await suspects(store, clock, 2)
    for run in [await claim_one(store, worker) for worker in (ALICE, BOB)]:
        assert await settle(store, run, outcome)
    clock.advance(1)
    # Two that are no suspects run in one process.
    claimed = ids(await claim(store, ALICE))
    assert set(claimed) == jobs if clears else len(claimed) == 1


async def test_suspicion_takes_crashes_in_a_row(store, clock):
    jobs = [a_job(backoff=NO_WAIT, max_attempts=9) for _ in range(2)]
    await store.submit(jobs)
    for _ in range(3):
        for run in await claim(store, ALICE):
            await settle(store, run, Failed("loud"))
        assert len(await claim(store, ALICE)) == 2
        await crash(store, clock)
    assert len(await claim(store, ALICE)) == 2


async def test_suspects_are_taken_from_their_own_queue_for_their_own_topic_when_due(store, clock):
    jobs = await suspects(store, clock, 2)
    assert await claim(store, ALICE, queue="other") == []
    assert await claim(store, ALICE, topics=[a_policy("other")]) == []
    run = await claim_one(store, ALICE)
    assert run.job_id in jobs
    await settle(store, run, Released())
    clock.advance(-3600)
    assert await claim(store, ALICE) == []

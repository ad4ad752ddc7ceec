"""Queues and topics that controls govern: paused, limited, by rate and by age."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from pulsed.model.control import ControlScope, Numbers
from pulsed.model.outcome import Failed, Succeeded
from pulsed.model.rate import Rate
from tests.support.jobs import (
    ALICE,
    BOB,
    NO_WAIT,
    a_job,
    a_policy,
    claim,
    claim_one,
    reap,
    settle,
    submitted,
)

QUEUE = (ControlScope.QUEUE, "default")
BOTH = [a_policy("email"), a_policy("print")]


async def limit(store, **numbers):
    return await store.controls.override(*QUEUE, Numbers(**numbers))


async def many(store, number, **options):
    jobs = [a_job(**options) for _ in range(number)]
    await store.submit(jobs)
    return [job.id for job in jobs]


# -- pause ----------------------------------------------------------------------------------------


async def test_a_paused_queue_starts_nothing_and_a_resumed_one_starts_at_once(store):
    ids = await many(store, 3)
    first = await claim(store, limit=1)
    await store.controls.pause(*QUEUE)
    assert await claim(store) == []
    assert await claim(store) == [], "nor does a claim that knows"
    assert await settle(store, first[0], Succeeded()), "what runs may end"
    await store.controls.resume(*QUEUE)
    assert [run.job_id for run in await claim(store)] == ids[1:]


async def test_a_row_that_says_nothing_does_not_stop_the_queue(store, backend):
    """SQL by hand resumes a queue like this; the row goes with the next claim."""
    (job_id,) = await many(store, 1)
    await store.controls.pause(*QUEUE)
    assert await claim(store) == []
    backend.execute("UPDATE pulse_controls SET paused = (1 = 0), paused_at = NULL")
    assert [run.job_id for run in await claim(store)] == [job_id]


async def test_other_queues_go_on(store):
    await submitted(store, queue="other")
    await store.controls.pause(*QUEUE)
    assert len(await claim(store, queue="other")) == 1


async def test_a_job_that_became_due_during_a_pause_is_not_overlooked(store, clock):
    """Not even by floors that claims have raised meanwhile."""
    await submitted(store)
    await claim_one(store)
    assert await claim(store) == []
    await store.controls.pause(*QUEUE)
    late = await submitted(store, delay=5)
    for _ in range(8):
        clock.advance(1)
        assert await claim(store) == []
    await store.controls.resume(*QUEUE)
    assert [run.job_id for run in await claim(store)] == [late]


async def test_a_paused_topic_starts_nothing_and_others_of_its_queue_go_on(store, clock):
    mine = await submitted(store, topic="email")
    other = await submitted(store, topic="print")
    await store.controls.pause(ControlScope.TOPIC, "email")
    assert [run.job_id for run in await claim(store, topics=BOTH)] == [other]
    for _ in range(4):
        clock.advance(1)
        assert await claim(store, topics=BOTH) == []
    await store.controls.resume(ControlScope.TOPIC, "email")
    assert [run.job_id for run in await claim(store, topics=BOTH)] == [mine]


async def test_a_suspect_of_a_paused_queue_waits_too(store, backend):
    job_id = await submitted(store)
    backend.execute("UPDATE pulse_jobs SET crashes = 5")
    await store.controls.pause(*QUEUE)
    assert await claim(store) == []
    await store.controls.resume(*QUEUE)
    assert (await claim_one(store)).job_id == job_id


# -- running --------------------------------------------------------------------------------------


async def test_no_more_than_running_run_at_once_whoever_claims(store):
    await many(store, 10)
    await limit(store, running=3)
    runs = [*await claim(store, ALICE, limit=2), *await claim(store, BOB), *await claim(store)]
    assert len(runs) == 3
    await settle(store, runs[0], Succeeded())
    await settle(store, runs[1], Failed("oh"))
    assert len(await claim(store, BOB)) == 2
    assert await claim(store, ALICE) == []


async def test_the_slot_of_a_dead_worker_comes_back_with_its_lease(store, clock):
    await many(store, 2, backoff=NO_WAIT)
    await limit(store, running=1)
    await claim_one(store, ALICE)
    clock.advance(31)
    assert await claim(store, BOB) == [], "nobody has said yet that it is dead"
    assert len(await reap(store)) == 1
    assert len(await claim(store, BOB)) == 1


async def test_a_limit_of_one_queue_does_not_count_the_runs_of_others(store):
    await many(store, 3, queue="other")
    await claim(store, queue="other")
    await many(store, 3)
    await limit(store, running=2)
    assert len(await claim(store)) == 2


async def test_a_lowered_limit_lets_runs_end_and_a_raised_one_starts_more(store):
    await many(store, 10)
    await limit(store, running=4)
    runs = await claim(store)
    await limit(store, running=2)
    for run in runs[:2]:
        await settle(store, run, Succeeded())
        assert await claim(store) == []
    await settle(store, runs[2], Succeeded())
    assert len(await claim(store)) == 1
    await limit(store, running=5)
    assert len(await claim(store)) == 3


async def test_a_cleared_limit_is_none(store):
    await many(store, 5)
    await limit(store, running=1)
    assert len(await claim(store)) == 1
    await store.controls.clear(*QUEUE)
    assert len(await claim(store)) == 4


async def test_the_end_of_a_run_wakes_the_workers_of_a_limited_queue(store):
    """Otherwise each poll would start as many jobs as the limit has, and no more."""
    await many(store, 2)
    await limit(store, running=1)
    run = await claim_one(store)
    woken = asyncio.Event()
    async with store.listen(("default",), lambda _: woken.set()):
        if store.is_remote:
            assert await claim(store) == [], "now it is owed an offer"
        woken.clear()
        await settle(store, run, Succeeded())
        await asyncio.wait_for(woken.wait(), 10)


# -- rate -----------------------------------------------------------------------------------------


async def test_a_rate_is_never_exceeded_in_any_window(store, clock):
    """Starts are counted from outside; any window of the length has at most count + burst."""
    await many(store, 60)
    await limit(store, rate=Rate(10, per=60, burst=5))
    starts: list[datetime] = []
    for seconds in [0, 1, 2, 3, 5, 8, 13, 0.5, 60, 6, 6, 6, 6, 200, 1, 1, 1, 30, 5.999, 0.001]:
        clock.advance(seconds)
        starts += [clock.now] * len(await claim(store, limit=7))
    assert starts[:5] == [starts[0]] * 5, "a burst at first"
    for begin in starts:
        window = [each for each in starts if begin <= each < begin + timedelta(seconds=60)]
        assert len(window) <= 15
    passed = (starts[-1] - starts[0]).total_seconds()
    assert 0.5 * passed / 6 <= len(starts) <= passed / 6 + 5


@pytest.mark.embedded("a server comes back by itself, and offers")
async def test_a_claim_says_when_the_rate_permits_the_next(store, clock):
    await many(store, 3)
    await limit(store, rate=Rate(1, per=10, burst=2))
    first = await claim(store, limit=2)
    assert (len(first), first.again_in) == (2, None), "full: it comes again anyway"
    held_back = await claim(store)
    assert held_back == []
    assert held_back.again_in == pytest.approx(10)
    clock.advance(9.9)
    assert (await claim(store)).again_in == pytest.approx(0.1)
    clock.advance(0.1)
    last = await claim(store)
    assert len(last) == 1


async def test_a_clock_that_was_set_back_does_not_stop_a_rate_for_long(store, clock):
    await many(store, 1)
    await limit(store, rate=Rate(1, per=10))
    assert len(await claim(store)) == 1
    clock.advance(-3600)
    await many(store, 2)
    assert len(await claim(store)) == 1
    assert len(await claim(store)) == 0


async def test_a_throttled_job_uses_no_attempt(store, clock):
    await many(store, 2)
    await limit(store, rate=Rate(1, per=10))
    await claim_one(store)
    for _ in range(5):
        await claim(store)
    clock.advance(10)
    assert (await claim_one(store)).attempt == 1


async def test_rates_that_restrict_nothing_any_more_are_removed(store, backend, clock):
    await many(store, 2)
    await limit(store, rate=Rate(1, per=10))
    await claim_one(store)
    assert await store.controls.rates(ControlScope.QUEUE, ["default", "x"]) == {
        "default": clock.after(10)
    }
    clock.advance(3600)
    await store.prune({}, limit=10)
    assert backend.execute("SELECT * FROM pulse_rates") == []


# -- age ------------------------------------------------------------------------------------------


async def test_a_low_priority_under_constant_load_starts_when_its_priority_has_risen(store, clock):
    """Not before, and not later: after four minutes it is above every new job."""
    await limit(store, age=60.0)
    low = await submitted(store, priority=-3)
    started: dict[UUID, int] = {}
    for second in range(0, 300, 10):
        await submitted(store, priority=0)
        run = await claim_one(store, limit=1)
        started[run.job_id] = second
        await settle(store, run, Succeeded())
        clock.advance(10)
    assert started[low] == 240


async def test_without_age_it_would_starve(store, clock):
    low = await submitted(store, priority=-3)
    for _ in range(0, 300, 10):
        await submitted(store, priority=0)
        run = await claim_one(store, limit=1)
        assert run.job_id != low
        await settle(store, run, Succeeded())
        clock.advance(10)


async def test_jobs_start_in_the_order_of_their_risen_priorities(store, clock):
    """Over several priorities and claims; the reference is a sort of all that is due."""
    await limit(store, age=10.0)
    jobs: dict[UUID, tuple[int, int]] = {}
    for step in range(12):
        job_id = await submitted(store, priority=(step * 7) % 5 - 2)
        jobs[job_id] = ((step * 7) % 5 - 2, step)
        clock.advance(7)
    ages = {job_id: 12 * 7 - 7 * step for job_id, (_, step) in jobs.items()}

    def order(job_id):
        priority, step = jobs[job_id]
        return -(priority + ages[job_id] // 10), -priority, step

    expected = sorted(jobs, key=order)
    found: list[UUID] = []
    for size in (1, 2, 3, 1, 5):
        batch = [run.job_id for run in await claim(store, limit=size)]
        assert set(batch) == set(expected[len(found) : len(found) + size])
        found += batch
    assert set(found) == set(expected)


async def test_a_risen_priority_stops_at_the_highest(store, clock):
    await limit(store, age=1.0)
    old = await submitted(store, priority=-100)
    clock.advance(3600)
    high = await submitted(store, priority=100)
    assert (await claim_one(store, limit=1)).job_id == high, "equal, and by its own priority"
    assert (await claim_one(store, limit=1)).job_id == old


# -- together with limits of topics ---------------------------------------------------------------


def of_key(key: str):
    return {"limit_key": f"mail,{key}"}


MAIL = [a_policy("email", limit_name="mail")]


async def test_a_low_priority_rises_within_the_key_of_its_limit(store, clock):
    """Not before, and not later, like a job without a limit."""
    await limit(store, age=60.0)
    low = await submitted(store, priority=-3, **of_key("a"))
    started: dict[UUID, int] = {}
    for second in range(0, 300, 10):
        await submitted(store, priority=0, **of_key("a"))
        run = await claim_one(store, limit=1, topics=MAIL)
        started[run.job_id] = second
        await settle(store, run, Succeeded())
        clock.advance(10)
    assert started[low] == 240


async def test_without_age_it_would_starve_within_its_key(store, clock):
    await limit(store, running=50)
    low = await submitted(store, priority=-3, **of_key("a"))
    for _ in range(0, 300, 10):
        await submitted(store, priority=0, **of_key("a"))
        run = await claim_one(store, limit=1, topics=MAIL)
        assert run.job_id != low
        await settle(store, run, Succeeded())
        clock.advance(10)


async def test_a_key_takes_its_turn_beside_one_whose_jobs_have_risen(store, clock):
    await limit(store, age=1.0)
    risen = [await submitted(store, priority=0, **of_key("a")) for _ in range(4)]
    clock.advance(90)
    new = await submitted(store, priority=0, **of_key("b"))
    runs = await claim(store, limit=2, topics=MAIL)
    assert {run.job_id for run in runs} == {risen[0], new}


async def test_a_batch_of_a_key_is_the_best_by_risen_priority(store, clock):
    """Of several priorities; a limit of one leaves the rest."""
    await limit(store, age=10.0)
    old = await submitted(store, priority=-1, **of_key("a"))
    clock.advance(25)
    middle = await submitted(store, priority=0, **of_key("a"))
    clock.advance(25)
    new = await submitted(store, priority=3, **of_key("a"))
    order = []
    for size in (2, 1):
        runs = await claim(store, limit=size, topics=MAIL)
        order.append({run.job_id for run in runs})
    assert order == [{old, new}, {middle}]


async def test_jobs_with_a_limit_of_their_own_count_for_their_queue_too(store):
    await many(store, 3, limit_key="mail")
    await many(store, 3, topic="print")
    await limit(store, running=2)
    topics = [a_policy("email", limit_name="mail"), a_policy("print")]
    runs = [run for _ in range(4) for run in await claim(store, topics=topics)]
    assert len(runs) == 2
    for run in runs:
        await settle(store, run, Succeeded())
    assert sum([len(await claim(store, topics=topics)) for _ in range(3)]) == 2

"""Heartbeats: one call extends all of a worker's leases and answers for each."""

import pytest

from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease, Status
from pulsed.model.outcome import Beat, Failed, Released, Succeeded
from tests.support.jobs import (
    ALICE,
    BOB,
    NO_WAIT,
    a_job,
    a_policy,
    claim,
    claim_one,
    reap,
    row,
    running,
    settle,
)


async def test_a_beat_extends_the_lease_by_its_full_length(store, clock):
    run = await running(store)
    clock.advance(20)
    assert await store.beat([run.lease]) == {run.lease: Beat.OK}
    assert (await row(store, run.job_id)).lease_until == clock.after(30)


async def test_a_job_that_beats_is_never_reaped(store, clock):
    run = await running(store)
    for _ in range(10):
        clock.advance(29)
        assert await reap(store) == []
        await store.beat([run.lease])
    clock.advance(31)
    assert await reap(store) == [run.job_id]


async def test_each_lease_is_extended_by_its_own_length(store, clock):
    await store.submit([a_job(lease=5.0), a_job(), a_job(topic="slow")])
    topics = [a_policy(), a_policy("slow", lease=300.0)]
    runs = await claim(store, topics=topics)
    clock.advance(1)
    await store.beat([run.lease for run in runs])
    found = await store.get([run.job_id for run in runs])
    untils = sorted(job.lease_until for job in found.values())
    assert untils == [clock.after(5), clock.after(30), clock.after(300)]


async def test_a_beat_changes_the_end_of_the_lease_and_nothing_else(store, backend, clock):
    run = await running(store)
    before = backend.row(run.job_id)
    clock.advance(5)
    await store.beat([run.lease])
    after = backend.row(run.job_id)
    assert {name for name in after if after[name] != before[name]} == {"lease_until"}


async def test_a_beat_of_a_lost_lease_changes_nothing(store, backend, clock):
    run = await running(store, ALICE, backoff=NO_WAIT)
    clock.advance(31)
    await reap(store)
    await claim_one(store, BOB)
    before = backend.row(run.job_id)
    clock.advance(5)
    assert await store.beat([run.lease]) == {run.lease: Beat.LOST}
    assert backend.row(run.job_id) == before


async def test_each_job_gets_its_own_answer(store, clock):
    await store.submit([a_job() for _ in range(4)])
    kept, asked, ended, lost = await claim(store, ALICE)
    await store.cancel([asked.job_id])
    await settle(store, ended, Succeeded())
    await settle(store, lost, Released())
    gone = Lease(new_job_id(), 7, ALICE)
    clock.advance(3)
    answers = await store.beat([kept.lease, asked.lease, ended.lease, lost.lease, gone])
    assert answers == {
        kept.lease: Beat.OK,
        asked.lease: Beat.CANCEL,
        ended.lease: Beat.LOST,
        lost.lease: Beat.LOST,
        gone: Beat.LOST,
    }


async def test_a_job_asked_to_stop_keeps_its_lease_while_it_stops(store, clock):
    run = await running(store)
    await store.cancel([run.job_id])
    clock.advance(20)
    assert await store.beat([run.lease]) == {run.lease: Beat.CANCEL}
    found = await row(store, run.job_id)
    assert (found.status, found.lease_until) == (Status.RUNNING, clock.after(30))


@pytest.mark.parametrize("worker", [ALICE, BOB])
async def test_a_stale_and_the_current_lease_of_a_job_each_get_their_answer(store, clock, worker):
    old = await running(store, ALICE)
    await settle(store, old, Released())
    new = await claim_one(store, worker)
    clock.advance(10)
    answers = await store.beat([old.lease, new.lease, old.lease])
    assert answers == {old.lease: Beat.LOST, new.lease: Beat.OK}
    assert (await row(store, new.job_id)).lease_until == clock.after(30)


async def test_no_leases_are_no_work(store):
    assert await store.beat([]) == {}


async def test_held_lists_the_leases_of_one_worker_as_the_database_has_them(store):
    await store.submit([a_job() for _ in range(3)])
    first, second = await claim(store, ALICE, limit=2)
    await claim(store, BOB)
    assert set(await store.held(ALICE)) == {first.lease, second.lease}
    await settle(store, first, Failed("x"))
    assert await store.held(ALICE) == [second.lease]


async def test_held_lists_only_those_that_were_asked_to_stop_if_wanted(store):
    await store.submit([a_job() for _ in range(4)])
    first, second, third = await claim(store, ALICE, limit=3)
    (others,) = await claim(store, BOB)
    assert await store.held(ALICE, asked_to_stop=True) == []
    await store.cancel([first.job_id, third.job_id, others.job_id])
    assert set(await store.held(ALICE, asked_to_stop=True)) == {first.lease, third.lease}
    await settle(store, first, Failed("x"))
    assert await store.held(ALICE, asked_to_stop=True) == [third.lease]
    assert set(await store.held(ALICE)) == {second.lease, third.lease}

"""The watchdog: a failure report that the worker did not live to make."""

import asyncio
import threading
from datetime import timedelta
from uuid import UUID

import pytest

from pulsed.backoff import Backoff
from pulsed.job import EXPIRED, LEASE_EXPIRED, Beat, Failed, Status, Succeeded, WorkerInfo
from pulsed.store.blocking import run_blocking
from tests.support.backends import close_blocking
from tests.support.jobs import (
    ALICE,
    BOB,
    EVERYTHING,
    NO_WAIT,
    a_job,
    claim,
    reap,
    row,
    running,
    settle,
    submitted,
)

TICK, GRACE = 10.0, 15.0


# -- reaping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
@pytest.mark.parametrize(
    "backoff",
    [None, Backoff.linear(), Backoff.exponential(cap=3, jitter=0)],
    ids=["default", "linear", "exponential"],
)
async def test_going_silent_takes_the_same_path_as_failing_loudly(
    store, backend, clock, max_attempts, backoff
):
    """Same status, same next_run_at, same dead letter: only the words differ."""
    options = {"max_attempts": max_attempts, "backoff": backoff}
    loud, silent = await submitted(store, **options), await submitted(store, **options)
    for _ in range(max_attempts):
        runs = {run.job_id: run for run in await claim(store)}
        assert set(runs) == {loud, silent}
        clock.advance(31)
        assert await settle(store, runs[loud], Failed(LEASE_EXPIRED))
        assert await reap(store) == [silent]
        ours, theirs = backend.row(loud), backend.row(silent)
        differing = {name for name in ours if ours[name] != theirs[name]}
        assert differing <= {"id", "last_outcome", "lease_token"}
        assert (ours["last_outcome"], theirs["last_outcome"]) == ("FAILED", EXPIRED)
        if ours["status"] == "RETRYING":
            clock.now = (await row(store, loud)).next_run_at
    assert ours["status"] == "DEAD_LETTERED"
    assert len(await store.failures(loud)) == len(await store.failures(silent)) == max_attempts


async def test_a_silent_worker_s_job_is_retried_and_says_so(store, clock):
    run = await running(store, ALICE)
    clock.advance(31)
    tick = await store.watchdog(tick=1e9, grace=0)
    (reaped,) = tick.reaped
    assert (reaped.job_id, reaped.topic) == (run.job_id, "email")
    assert (reaped.status, reaped.worker_id) == (Status.RETRYING, ALICE)
    found = await row(store, run.job_id)
    assert (found.status, found.last_error) == (Status.RETRYING, "worker lease expired")
    assert found.next_run_at == clock.after(1)
    assert (found.locked_by, found.lease_until) == (None, None)
    assert (found.last_worker, found.last_outcome) == (ALICE, EXPIRED)


async def test_a_silent_worker_s_last_attempt_is_a_dead_letter(store, clock):
    run = await running(store, max_attempts=1)
    clock.advance(31)
    assert await reap(store) == [run.job_id]
    found = await row(store, run.job_id)
    assert (found.status, found.completed_at) == (Status.DEAD_LETTERED, clock.now)
    assert found.last_error == "worker lease expired"
    (failure,) = await store.failures(run.job_id)
    assert (failure.error, failure.lease_token) == ("worker lease expired", run.lease_token)


async def test_a_lease_is_over_only_after_its_end(store, clock):
    run = await running(store)
    clock.advance(30)
    assert await reap(store) == []
    clock.advance(0.000001)
    assert await reap(store) == [run.job_id]


async def test_only_running_jobs_are_reaped_and_only_once(store, clock):
    await store.submit([a_job() for _ in range(3)])
    done, silent, _ = await claim(store)
    await settle(store, done, Succeeded())
    clock.advance(31)
    assert len(await reap(store)) == 2
    assert await reap(store) == []
    assert (await row(store, silent.job_id)).attempts == 1


async def test_a_reap_is_bounded_and_takes_the_longest_silent_first(store, clock):
    order = []
    for _ in range(5):
        order.append((await running(store)).job_id)
        clock.advance(1)
    clock.advance(60)
    assert sorted(await reap(store, limit=2)) == sorted(order[:2])
    assert sorted(await reap(store, limit=2)) == sorted(order[2:4])
    assert await reap(store, limit=2) == order[4:]
    assert await reap(store, limit=2) == []


async def test_many_silent_jobs_in_one_look(store, clock):
    await store.submit([a_job() for _ in range(300)])
    assert len(await claim(store, limit=300)) == 300
    clock.advance(31)
    assert len(await reap(store)) == 300
    assert (await store.counts(EVERYTHING))[Status.RETRYING] == 300


def test_watchdogs_looking_at_once_reap_each_job_once(backend, clock):
    stores = [backend.open() for _ in range(3)]
    run_blocking(stores[0].submit([a_job(max_attempts=5) for _ in range(50)]))
    assert len(run_blocking(claim(stores[0], limit=50))) == 50
    clock.advance(31)
    barrier = threading.Barrier(3)
    reaped: list[list[UUID]] = [[], [], []]

    def look(n):
        barrier.wait()
        reaped[n] = run_blocking(reap(stores[n]))

    threads = [threading.Thread(target=look, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [job_id for mine in reaped for job_id in mine]
    assert len(everything) == len(set(everything)) == 50
    rows = run_blocking(stores[0].list_jobs(EVERYTHING))
    assert {found.attempts for found in rows} == {1}
    for store in stores:
        close_blocking(store)


async def test_after_a_reap_the_worker_hears_that_its_lease_is_lost(store, clock):
    run = await running(store, ALICE, backoff=NO_WAIT)
    clock.advance(31)
    await reap(store)
    assert await store.beat([run.lease]) == {run.lease: Beat.LOST}
    assert not await settle(store, run, Succeeded())


# -- grace after an outage ------------------------------------------------------------------------


async def look(store, **options):
    return await store.watchdog(tick=TICK, grace=GRACE, **options)


async def test_no_mass_reap_after_all_watchdogs_were_away(store, clock):
    """The workers were cut off by the same outage: they get time to beat first."""
    await look(store)
    await store.submit([a_job() for _ in range(20)])
    runs = await claim(store, limit=20)
    clock.advance(120)
    tick = await look(store)
    assert (tick.in_grace, tick.reaped) == (True, [])
    await store.beat([run.lease for run in runs[:15]])
    clock.advance(GRACE)
    tick = await look(store)
    assert not tick.in_grace
    assert {reaped.job_id for reaped in tick.reaped} == {run.job_id for run in runs[15:]}


async def test_grace_is_given_once_and_not_prolonged_by_looking(store, clock):
    await look(store)
    await running(store)
    clock.advance(120)
    in_grace = []
    for _ in range(5):
        in_grace.append((await look(store)).in_grace)
        clock.advance(5)
    assert in_grace == [True, True, True, False, False]


async def test_watchdogs_that_return_together_agree_on_one_grace(store, backend, clock):
    await look(store)
    clock.advance(120)
    other = backend.open()
    ticks = await asyncio.gather(look(store), look(other), look(store))
    assert all(tick.in_grace for tick in ticks)
    (value,) = backend.execute("SELECT reap_after FROM pulse_meta")
    clock.advance(1)
    await look(other)
    assert backend.execute("SELECT reap_after FROM pulse_meta") == [value]
    await other.aclose()


async def test_the_first_look_ever_needs_no_grace(store, clock):
    run = await running(store)
    clock.advance(31)
    tick = await look(store)
    assert not tick.in_grace
    assert [reaped.job_id for reaped in tick.reaped] == [run.job_id]


@pytest.mark.parametrize("away, grace", [(19.9, False), (20.0, False), (20.1, True)])
async def test_grace_begins_when_the_last_look_is_older_than_two_ticks(store, clock, away, grace):
    await look(store)
    clock.advance(away)
    assert (await look(store)).in_grace is grace


async def test_one_living_watchdog_is_enough_to_avoid_grace(store, backend, clock):
    """Each process's own pauses do not matter: the last look of anybody does."""
    other = backend.open()
    await look(store)
    run = await running(store)
    for _ in range(4):
        clock.advance(10)
        await look(other)
    assert (await row(store, run.job_id)).status is Status.RETRYING
    assert not (await look(store)).in_grace
    await other.aclose()


async def test_recovery_takes_a_lease_and_a_tick(store, clock):
    run = await running(store, ALICE)
    started = clock.now
    await look(store)
    while (await row(store, run.job_id)).status is Status.RUNNING:
        clock.advance(TICK)
        await look(store)
    assert clock.now - started <= timedelta(seconds=30 + TICK)


async def test_a_second_outage_gets_a_grace_of_its_own(store, clock):
    await look(store)
    for _ in range(2):
        clock.advance(120)
        assert (await look(store)).in_grace
        clock.advance(GRACE)
        assert not (await look(store)).in_grace


async def test_watchdogs_that_look_rarely_reap_all_the_same(store, clock):
    """Every look comes after more than two ticks, which must not be a reason to wait for ever."""
    await look(store)
    run = await running(store)
    reaped = []
    for _ in range(4):
        clock.advance(25)
        reaped += (await look(store)).reaped
    assert [job.job_id for job in reaped] == [run.job_id]


# -- presence -------------------------------------------------------------------------------------


def info(worker_id, **options) -> WorkerInfo:
    values = {
        "id": worker_id,
        "host": "host-1",
        "pid": 42,
        "queues": ("default", "mail"),
        "topics": ("email",),
        "slots": 100,
        "version": "1.2.3",
    } | options
    return WorkerInfo(**values)


async def test_a_worker_shows_itself_and_refreshes_what_changes(store, clock):
    await store.announce(info(ALICE))
    started = clock.now
    clock.advance(10)
    await store.announce(info(ALICE, running=3, stuck=1, state="draining"))
    (found,) = await store.workers()
    assert found == info(
        ALICE, running=3, stuck=1, state="draining", started_at=started, last_beat=clock.now
    )


async def test_a_retired_worker_is_gone_and_the_others_stay(store, clock):
    await store.announce(info(ALICE))
    clock.advance(1)
    await store.announce(info(BOB))
    await store.retire(ALICE)
    assert [worker.id for worker in await store.workers()] == [BOB]
    await store.retire(ALICE)


async def test_a_worker_silent_for_a_day_is_forgotten(store, clock):
    await store.announce(info(ALICE))
    clock.advance(3_600)
    await store.announce(info(BOB))
    clock.advance(86_400 - 1_800)
    await reap(store)
    assert [worker.id for worker in await store.workers()] == [BOB]


async def test_presence_decides_nothing_about_leases(store, clock):
    run = await running(store, ALICE)
    await store.announce(info(ALICE))
    await store.retire(ALICE)
    assert await store.beat([run.lease]) == {run.lease: Beat.OK}

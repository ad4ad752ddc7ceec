"""The watchdog: a failure report that the worker did not live to make."""

import asyncio
import random
import threading
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from pulsed.model.backoff import Backoff
from pulsed.model.job import Status, WorkerInfo
from pulsed.model.outcome import LEASE_ERROR, LEASE_EXPIRED, Beat, Failed, Succeeded
from pulsed.store.blocking import run_blocking
from tests.support.backends import close_blocking
from tests.support.jobs import (
    ALICE,
    BOB,
    EVERYTHING,
    NO_WAIT,
    a_job,
    claim,
    never_away,
    reap,
    row,
    running,
    settle,
    submitted,
)

TICK, GRACE = 10.0, 15.0
"""How often watchdogs scan here, and the grace of a 30-second lease after an outage."""


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
        assert await settle(store, runs[loud], Failed(LEASE_ERROR))
        assert await reap(store) == [silent]
        ours, theirs = backend.row(loud), backend.row(silent)
        differing = {name for name in ours if ours[name] != theirs[name]}
        assert differing <= {"id", "last_outcome", "lease_token"}
        assert (ours["last_outcome"], theirs["last_outcome"]) == ("FAILED", LEASE_EXPIRED)
        if ours["status"] == "RETRYING":
            clock.now = (await row(store, loud)).next_run_at
    assert ours["status"] == "DEAD_LETTERED"
    assert len(await store.failures(loud)) == len(await store.failures(silent)) == max_attempts


async def test_a_silent_worker_s_job_is_retried_and_says_so(store, clock):
    run = await running(store, ALICE)
    clock.advance(31)
    await never_away(store)
    tick = await store.watchdog()
    (reaped,) = tick.reaped
    assert (reaped.job_id, reaped.topic) == (run.job_id, "email")
    assert (reaped.status, reaped.worker_id) == (Status.RETRYING, ALICE)
    found = await row(store, run.job_id)
    assert (found.status, found.last_error) == (Status.RETRYING, "worker lease expired")
    assert found.next_run_at == clock.after(1)
    assert (found.locked_by, found.lease_until) == (None, None)
    assert (found.last_worker, found.last_outcome) == (ALICE, LEASE_EXPIRED)


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
    assert (await row(store, silent.job_id)).attempts == 0  # it was not alone


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
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 300


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
    assert {found.attempts for found in rows} == {0}  # each was given back, once
    for store in stores:
        close_blocking(store)


async def test_after_a_reap_the_worker_hears_that_its_lease_is_lost(store, clock):
    run = await running(store, ALICE, backoff=NO_WAIT)
    clock.advance(31)
    await reap(store)
    assert await store.beat([run.lease]) == {run.lease: Beat.LOST}
    assert not await settle(store, run, Succeeded())


# -- grace after an outage ------------------------------------------------------------------------


async def looks(store, clock, seconds: float, *, apart: float = TICK) -> list[UUID]:
    """Let time pass in which a watchdog scans regularly; returns what was reaped."""
    reaped = []
    until = clock.after(seconds)
    while clock.now < until:
        clock.advance(min(apart, (until - clock.now).total_seconds()))
        reaped += [job.job_id for job in (await store.watchdog()).reaped]
    return reaped


async def test_no_mass_reap_after_all_watchdogs_were_away(store, clock):
    """The workers were cut off by the same outage: they get time for a heartbeat first."""
    await never_away(store)
    await store.submit([a_job() for _ in range(20)])
    runs = await claim(store, limit=20)
    clock.advance(120)
    tick = await store.watchdog()
    assert (tick.in_grace, tick.reaped) == (True, [])
    await store.beat([run.lease for run in runs[:15]])
    assert await looks(store, clock, GRACE - 0.1, apart=5) == []
    clock.advance(0.1)
    tick = await store.watchdog()
    assert not tick.in_grace
    assert {reaped.job_id for reaped in tick.reaped} == {run.job_id for run in runs[15:]}


async def test_grace_is_not_prolonged_by_looking(store, clock):
    await never_away(store)
    await running(store)
    clock.advance(120)
    in_grace = []
    for _ in range(5):
        in_grace.append((await store.watchdog()).in_grace)
        clock.advance(5)
    assert in_grace == [True, True, True, False, False]


async def test_watchdogs_that_return_together_give_one_grace(store, backend, clock):
    await never_away(store)
    await running(store)
    clock.advance(120)
    other = backend.open()
    ticks = await asyncio.gather(store.watchdog(), other.watchdog(), store.watchdog())
    assert all(tick.in_grace for tick in ticks)
    clock.advance(8)
    assert (await other.watchdog()).in_grace
    clock.advance(7)
    assert not (await store.watchdog()).in_grace
    await other.aclose()


async def test_the_first_look_ever_knows_nothing_and_waits(store, clock):
    run = await running(store)
    clock.advance(31)
    assert (await store.watchdog()).in_grace
    assert await looks(store, clock, GRACE) == [run.job_id]


@pytest.mark.parametrize("lease", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("share, spared", [(0.99, False), (1.01, True)])
async def test_a_gap_counts_when_it_is_longer_than_the_time_between_two_beats(
    store, clock, lease, share, spared
):
    """A shorter one cannot make a live worker's lease expire, whatever its length."""
    await never_away(store)
    run = await running(store, lease=lease)
    await looks(store, clock, lease, apart=lease / 4)
    clock.advance(lease / 3 * share)
    tick = await store.watchdog()
    assert tick.in_grace is spared
    assert [job.job_id for job in tick.reaped] == ([] if spared else [run.job_id])


@pytest.mark.parametrize("lease, away", [(3.0, 4.0), (10.0, 14.0), (30.0, 34.0), (300.0, 400.0)])
async def test_a_grace_fits_the_lease_and_not_whoever_looks(store, clock, lease, away):
    """A worker keeps its job if it sends a heartbeat within L/3 after an outage."""
    await never_away(store)
    run = await running(store, lease=lease)
    short = await running(store, BOB, lease=1.0)
    clock.advance(away)
    assert (await store.watchdog()).reaped == []
    reaped = await looks(store, clock, lease / 3, apart=0.3)
    assert set(reaped) <= {short.job_id}
    assert await store.beat([run.lease]) == {run.lease: Beat.OK}


async def test_leases_of_different_lengths_come_back_each_in_its_time(store, clock):
    await never_away(store)
    runs = [await running(store, lease=lease) for lease in (3.0, 30.0, 300.0)]
    clock.advance(400)
    assert (await store.watchdog()).reaped == []
    graces: dict[UUID, datetime] = {}
    while len(graces) < len(runs):
        for job_id in await looks(store, clock, 1, apart=1):
            graces[job_id] = clock.now
    waited = [(graces[run.job_id] - graces[runs[0].job_id]).total_seconds() for run in runs]
    assert waited == [0, 13, 103]  # 2, 15 and 105 seconds after the first scan


async def test_one_living_watchdog_is_enough_to_avoid_grace(store, backend, clock):
    """Each process's own pauses do not matter: the last scan of any process does."""
    other = backend.open()
    await never_away(store)
    run = await running(store)
    assert await looks(other, clock, 40) == [run.job_id]
    assert not (await store.watchdog()).in_grace
    await other.aclose()


@pytest.mark.parametrize("lease", [30.0, 60.0, 300.0])
async def test_recovery_takes_a_lease_and_a_tick(store, clock, lease):
    await never_away(store)
    clock.advance(3)
    run = await running(store, lease=lease)
    started = clock.now
    while (await row(store, run.job_id)).status is Status.RUNNING:
        clock.advance(TICK)
        await store.watchdog()
    assert clock.now - started <= timedelta(seconds=lease + TICK)


async def test_a_second_outage_gets_a_grace_of_its_own(store, clock):
    await never_away(store)
    run = await running(store)
    for _ in range(2):
        clock.advance(120)
        assert (await store.watchdog()).in_grace
        await store.beat([run.lease])
        assert await looks(store, clock, GRACE) == []


async def test_a_database_that_flaps_gives_a_new_grace_within_the_first(store, clock):
    """Every worker sends a heartbeat after the first outage, and is cut off again at once."""
    await never_away(store)
    runs = [await running(store, max_attempts=1) for _ in range(5)]
    clock.advance(60)
    assert (await store.watchdog()).reaped == []
    await store.beat([run.lease for run in runs[:4]])
    clock.advance(5)
    assert (await store.watchdog()).reaped == []
    clock.advance(60)
    assert (await store.watchdog()).reaped == []
    assert await looks(store, clock, TICK) == []
    await store.beat([run.lease for run in runs[:4]])
    assert await looks(store, clock, TICK) == [runs[4].job_id]


@pytest.mark.parametrize("apart", [11, 25, 3600])
async def test_watchdogs_that_look_rarely_reap_all_the_same(store, clock, apart):
    """Every scan comes after a gap, which must not be a reason to wait for ever."""
    await never_away(store)
    run = await running(store)
    await looks(store, clock, 31, apart=apart)
    assert await looks(store, clock, 4 * apart, apart=apart) == [run.job_id]


async def test_few_ticks_are_kept_however_many_there_were(store, backend, clock):
    pauses = random.Random(1)
    for _ in range(300):
        clock.advance(pauses.uniform(0.1, 10))
        await store.watchdog()
    ((count,),) = backend.execute("SELECT count(*) FROM pulse_ticks")
    assert count < 60


# -- a clock that is set --------------------------------------------------------------------------


@pytest.mark.parametrize("after_an_outage", [False, True])
async def test_a_clock_that_was_set_back_does_not_stop_recovery(store, clock, after_an_outage):
    await never_away(store)
    dead, alive = await running(store, ALICE), await running(store, BOB)
    if after_an_outage:
        clock.advance(120)
        assert (await store.watchdog()).in_grace
        await store.beat([alive.lease, dead.lease])
    clock.advance(-3600)
    assert await looks(store, clock, 2) == []
    set_back = clock.now
    reaped: list[UUID] = []
    while not reaped:
        reaped = await looks(store, clock, 5, apart=5)
        assert await store.beat([alive.lease]) == {alive.lease: Beat.OK}
    assert reaped == [dead.job_id]
    assert clock.now - set_back <= timedelta(seconds=30 + TICK)


async def test_a_clock_that_is_set_forward_reaps_nobody_who_beats(store, clock):
    await never_away(store)
    run = await running(store)
    clock.advance(3600)
    assert (await store.watchdog()).reaped == []
    assert await store.beat([run.lease]) == {run.lease: Beat.OK}


async def test_a_lease_granted_before_the_clock_was_set_back_is_only_shortened(store, clock):
    await never_away(store)
    long, short = await running(store, lease=300.0), await running(store, lease=10.0)
    clock.advance(-3600)
    await store.watchdog()
    assert (await row(store, long.job_id)).lease_until == clock.after(300)
    assert (await row(store, short.job_id)).lease_until == clock.after(10)


async def test_small_differences_between_clocks_are_no_step(store, clock):
    """The instant of a transaction is that of its beginning, which may be before another's."""
    await never_away(store)
    run = await running(store)
    clock.advance(0.5)
    await store.watchdog()
    clock.advance(-0.4)
    await store.watchdog()
    assert (await row(store, run.job_id)).lease_until == clock.after(29.9)
    assert await looks(store, clock, 40) == [run.job_id]


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

"""Waits in the store: suspended without a lease, and woken by a time, a signal or another job."""

from datetime import timedelta

import pytest

from pulsed.errors import LeaseLost
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from pulsed.model.outcome import Failed, Outcome, Released, Report, Succeeded
from pulsed.model.step import StepKind, StepState
from tests.support.checkpoints import (
    a_wait,
    send,
    statuses,
    suspended,
    take,
)
from tests.support.jobs import (
    NO_WAIT,
    a_job,
    claim,
    claim_one,
    reap,
    row,
    running,
    settle,
    submitted,
)

FOREVER_AWAY = timedelta(days=365 * 1000)

# -- suspending -----------------------------------------------------------------------------------


async def test_a_suspended_job_waits_without_a_lease_and_has_its_attempt_back(store, clock):
    run = await running(store)
    assert await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    found = await row(store, run.job_id)
    assert (found.status, found.attempts) == (Status.WAITING, 0)
    assert (found.locked_by, found.lease_until) == (None, None)
    assert found.next_run_at == clock.after(60)
    assert (found.wait_kind, found.wait_key) == ("SIGNAL", "go")
    (open_wait,) = (await store.workflows.history(run.job_id)).checkpoints
    assert (open_wait.state, open_wait.until) == (StepState.OPEN, clock.after(60))
    assert await claim(store) == []


async def test_a_wait_without_an_end_is_never_claimed(store, clock):
    run = await running(store)
    await suspended(store, run, StepKind.SIGNAL, key="go")
    (open_wait,) = (await store.workflows.history(run.job_id)).checkpoints
    assert open_wait.until is None
    clock.now += FOREVER_AWAY
    assert await claim(store) == []


async def test_a_wait_may_end_at_an_instant_and_one_in_the_past_is_now(store, clock):
    later, past = await running(store), await running(store)
    await suspended(store, later, StepKind.SIGNAL, key="go", until=clock.after(90))
    await suspended(store, past, StepKind.SIGNAL, key="go", until=clock.after(-90))
    assert (await row(store, later.job_id)).next_run_at == clock.after(90)
    assert (await row(store, past.job_id)).next_run_at == clock.now
    assert (await claim_one(store)).job_id == past.job_id


async def test_a_sleep_is_over_when_the_clock_says_so(store, clock):
    run = await running(store, max_attempts=1)
    await suspended(store, run, StepKind.SLEEP, delay=3600)
    clock.advance(3599)
    assert await claim(store) == []
    clock.advance(1)
    again = await claim_one(store)
    assert (again.job_id, again.attempt) == (run.job_id, 1)
    assert again.lease_token > run.lease_token


async def test_a_job_suspends_again_and_again_without_using_up_its_attempts(store, clock):
    run = await running(store, max_attempts=1)
    for _ in range(5):
        await suspended(store, run, StepKind.SLEEP, delay=10)
        clock.advance(10)
        run = await claim_one(store)
    assert await settle(store, run, Succeeded())


async def test_a_wait_that_goes_on_keeps_when_it_began_and_takes_the_new_end(store, clock):
    run = await running(store)
    await suspended(store, run, StepKind.SIGNAL, key="go", delay=10)
    begun = clock.now
    clock.advance(10)
    run = await claim_one(store)
    await suspended(store, run, StepKind.SIGNAL, key="go", delay=30)
    (open_wait,) = (await store.workflows.history(run.job_id)).checkpoints
    assert (open_wait.started_at, open_wait.until) == (begun, clock.after(30))


async def test_a_zombie_cannot_suspend(store, clock):
    zombie = await running(store, backoff=NO_WAIT, max_attempts=5)
    clock.advance(31)
    await reap(store)
    await claim_one(store)
    assert not await suspended(store, zombie, StepKind.SLEEP, delay=1)
    assert (await row(store, zombie.job_id)).status is Status.RUNNING
    assert (await store.workflows.history(zombie.job_id)).checkpoints == []


async def test_a_request_to_cancel_turns_a_suspension_into_cancelled(store):
    run = await running(store)
    await store.cancel([run.job_id])
    assert await suspended(store, run, StepKind.SLEEP, delay=1)
    found = await row(store, run.job_id)
    assert found.status is Status.CANCELLED
    assert found.completed_at is not None
    assert (await store.workflows.history(run.job_id)).checkpoints == []


async def test_a_waiting_job_is_cancelled_at_once(store):
    run = await running(store)
    await suspended(store, run, StepKind.SIGNAL, key="go")
    assert await store.cancel([run.job_id]) == {run.job_id: Status.CANCELLED}


@pytest.mark.parametrize("stale_first", [True, False])
async def test_a_stale_wait_beside_the_current_one_is_refused(store, stale_first):
    old = await running(store)
    await settle(store, old, Released())
    new = await claim_one(store)
    reports = [Report.of(run, a_wait(StepKind.SIGNAL, key="go")) for run in (old, new)]
    assert await store.settle(reports if stale_first else reports[::-1]) == {new.lease}
    assert await statuses(store, [new.job_id]) == [Status.WAITING]
    assert await store.settle(reports) == {new.lease}


async def test_suspensions_and_other_reports_in_one_batch(store):
    await store.submit([a_job(max_attempts=1) for _ in range(5)])
    runs = await claim(store)
    await settle(store, runs[4], Released())
    outcomes: list[Outcome] = [
        a_wait(StepKind.SLEEP, delay=60),
        Succeeded("1"),
        Failed("no"),
        a_wait(StepKind.SIGNAL, key="go"),
        a_wait(StepKind.SLEEP, delay=60),
    ]
    reports = [Report.of(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)]
    ids = [run.job_id for run in runs]
    assert await store.settle(reports) == {run.lease for run in runs[:4]}
    assert await statuses(store, ids) == [
        Status.WAITING, Status.SUCCEEDED, Status.DEAD_LETTERED, Status.WAITING, Status.PENDING,
    ]  # fmt: skip


# -- signals --------------------------------------------------------------------------------------


async def test_a_signal_wakes_the_job_that_waits_for_it(store, clock):
    run = await running(store)
    await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    clock.advance(1)
    assert await send(store, run.job_id, "other") == (True, Status.WAITING)
    assert await claim(store) == []
    assert await send(store, run.job_id, "go") == (True, Status.WAITING)
    assert (await row(store, run.job_id)).next_run_at == clock.now
    assert (await claim_one(store)).job_id == run.job_id


async def test_signals_are_taken_once_each_and_in_their_order(store, clock):
    run = await running(store)
    for n in range(3):
        await send(store, run.job_id, payload=str(n))
    await send(store, run.job_id, "other", payload='"no"')
    clock.advance(1)
    await send(store, run.job_id, payload="3")
    taken = [await take(store, run.lease, nth=n, seq=n) for n in range(1, 6)]
    assert [one and one.value for one in taken] == ["0", "1", "2", "3", None]
    history = await store.workflows.history(run.job_id)
    assert [one.value for one in history.checkpoints] == ["0", "1", "2", "3"]


async def test_a_signal_that_was_taken_is_answered_again_from_its_checkpoint(store, clock):
    run = await running(store, backoff=NO_WAIT, max_attempts=5)
    await send(store, run.job_id, payload="1")
    await send(store, run.job_id, payload="2")
    first = await take(store, run.lease)
    clock.advance(31)
    await reap(store)
    run = await claim_one(store)
    assert await take(store, run.lease) == first
    second = await take(store, run.lease, nth=2, seq=2)
    assert (first and first.value, second and second.value) == ("1", "2")


async def test_a_wait_for_a_signal_that_timed_out_stays_so(store, clock):
    run = await running(store)
    assert await take(store, run.lease) is None
    await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    clock.advance(60)
    run = await claim_one(store)
    stored = await take(store, run.lease)
    assert stored is not None
    assert (stored.state, stored.value) == (StepState.TIMED_OUT, None)
    await send(store, run.job_id)
    assert await take(store, run.lease) == stored
    later = await take(store, run.lease, nth=2, seq=2)
    assert later is not None  # the signal is still there, for the next who asks
    assert later.state is StepState.DONE


async def test_a_signal_that_came_in_time_is_taken_though_the_deadline_has_passed(store, clock):
    run = await running(store)
    await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    await send(store, run.job_id, payload="7")
    clock.advance(600)
    run = await claim_one(store)
    stored = await take(store, run.lease)
    assert stored is not None
    assert (stored.state, stored.value) == (StepState.DONE, "7")


async def test_a_wait_whose_deadline_is_ahead_has_no_answer_yet(store, clock):
    run = await running(store, lease=600)
    await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    await send(store, run.job_id, "go")
    run = await claim_one(store)
    await take(store, run.lease)
    await suspended(store, run, StepKind.SLEEP, delay=0)
    run = await claim_one(store)
    assert await take(store, run.lease, nth=2, seq=2) is None


async def test_a_zombie_takes_no_signal(store):
    zombie = await running(store)
    await settle(store, zombie, Released())
    run = await claim_one(store)
    await send(store, run.job_id)
    with pytest.raises(LeaseLost):
        await take(store, zombie.lease)
    assert await take(store, run.lease) is not None


async def test_a_signal_that_is_sent_twice_arrives_once(store):
    run = await running(store)
    signal_id = new_job_id()
    for _ in range(3):
        assert await send(store, run.job_id, id=signal_id) == (True, Status.RUNNING)
    assert await take(store, run.lease) is not None
    assert await send(store, run.job_id, id=signal_id) == (True, Status.RUNNING)
    assert await take(store, run.lease, nth=2, seq=2) is None


async def test_a_job_that_has_ended_takes_no_signals(store):
    run = await running(store)
    before = new_job_id()
    await send(store, run.job_id, id=before)
    await settle(store, run, Succeeded())
    assert await send(store, run.job_id) == (False, Status.SUCCEEDED)
    assert await send(store, new_job_id()) == (False, None)
    # The answer to one that was stored in time may have been lost on its way.
    assert await send(store, run.job_id, id=before) == (True, Status.SUCCEEDED)


async def test_a_job_may_be_signalled_before_it_runs(store):
    job_id = await submitted(store)
    assert await send(store, job_id, payload="5") == (True, Status.PENDING)
    run = await claim_one(store)
    taken = await take(store, run.lease)
    assert taken is not None
    assert taken.value == "5"


# -- waiting for another job ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["success", "failure", "reap", "cancel"])
async def test_every_end_of_a_watched_job_wakes_those_who_wait_for_it(store, clock, how):
    target = await running(store, max_attempts=1)
    waiters = [await running(store, lease=600) for _ in range(2)]
    for waiter in waiters:
        watched = await store.workflows.watch(waiter.lease, target.job_id)
        assert watched is not None
        assert (watched.id, watched.status) == (target.job_id, Status.RUNNING)
        await suspended(store, waiter, StepKind.JOB, key=str(target.job_id))
    clock.advance(1)
    if how == "success":
        await settle(store, target, Succeeded("7"))
    elif how == "failure":
        await settle(store, target, Failed("no"))
    elif how == "reap":
        clock.advance(31)
        assert await reap(store) == [target.job_id]
    else:
        await settle(store, target, Released())
        await store.cancel([target.job_id])
    for waiter in waiters:
        found = await row(store, waiter.job_id)
        assert (found.status, found.next_run_at) == (Status.PENDING, clock.now)


async def test_watching_a_job_that_has_ended_says_what_it_came_to(store):
    target, waiter = await running(store), await running(store)
    await settle(store, target, Succeeded("7"))
    ended = await store.workflows.watch(waiter.lease, target.job_id)
    assert ended is not None
    assert (ended.status, ended.result) == (Status.SUCCEEDED, "7")
    assert await store.workflows.watch(waiter.lease, new_job_id()) is None


async def test_a_zombie_watches_nobody(store):
    target, zombie = await running(store), await running(store)
    await settle(store, zombie, Released())
    await claim_one(store)
    with pytest.raises(LeaseLost):
        await store.workflows.watch(zombie.lease, target.job_id)


async def test_a_waiter_whose_deadline_passes_runs_again_and_is_not_woken_later(store, clock):
    target, waiter = await running(store, lease=600), await running(store)
    await store.workflows.watch(waiter.lease, target.job_id)
    await suspended(store, waiter, StepKind.JOB, key=str(target.job_id), delay=60)
    clock.advance(60)
    again = await claim_one(store)
    await settle(store, target, Succeeded())
    assert (await row(store, waiter.job_id)).status is Status.RUNNING
    assert await settle(store, again, Succeeded())


async def test_removing_a_job_that_is_waited_for_wakes_those_who_wait(store):
    target = await submitted(store, delay=60)
    waiter = await running(store)
    await store.workflows.watch(waiter.lease, target)
    await suspended(store, waiter, StepKind.JOB, key=str(target))
    assert (await store.delete([target]))[target][0]
    run = await claim_one(store)
    assert run.job_id == waiter.job_id
    assert await store.workflows.watch(run.lease, target) is None


async def test_a_job_says_what_it_waits_for_only_while_it_does(store, clock):
    run = await running(store)
    assert await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    waiting = (await store.get([run.job_id]))[run.job_id]
    assert (waiting.wait_kind, waiting.wait_key) == ("SIGNAL", "go")
    clock.advance(60)
    assert await claim(store)
    row = (await store.get([run.job_id]))[run.job_id]
    assert (row.wait_kind, row.wait_key) == (None, None)

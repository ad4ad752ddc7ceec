"""What people do to jobs: cancel, replay, run now, delete."""

import pytest

from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from pulsed.model.outcome import Cancelled, Failed, Released, Snoozed, Succeeded
from tests.support.jobs import (
    ALICE,
    BOB,
    NO_WAIT,
    a_job,
    claim,
    claim_one,
    never_away,
    reap,
    row,
    running,
    settle,
    submitted,
)


async def job_in(store, backend, clock, status: Status):
    """Bring a job into a state; returns its id."""
    run = await running(store, max_attempts=5)
    match status:
        case Status.PENDING:
            await settle(store, run, Released())
        case Status.RETRYING:
            await settle(store, run, Failed("kept"))
        case Status.WAITING:
            await settle(store, run, Released())
            backend.execute("UPDATE pulse_jobs SET status = 'WAITING'")
        case Status.SUCCEEDED:
            await settle(store, run, Succeeded("1"))
        case Status.DEAD_LETTERED:
            await settle(store, run, Failed("kept", final=True))
        case Status.CANCELLED:
            await settle(store, run, Cancelled("kept"))
    assert (await row(store, run.job_id)).status is status
    return run.job_id


def every_status(*statuses: Status):
    return pytest.mark.parametrize("status", statuses, ids=[status.value for status in statuses])


# -- cancel ---------------------------------------------------------------------------------------


@every_status(Status.PENDING, Status.RETRYING, Status.WAITING)
async def test_a_waiting_job_is_cancelled_at_once(store, backend, clock, status):
    job_id = await job_in(store, backend, clock, status)
    clock.advance(3)
    assert await store.cancel([job_id]) == {job_id: Status.CANCELLED}
    found = await row(store, job_id)
    assert (found.status, found.completed_at) == (Status.CANCELLED, clock.now)
    clock.advance(1e6)
    assert await claim(store) == []


async def test_a_delayed_job_can_be_cancelled_before_it_is_due(store):
    job_id = await submitted(store, delay=3_600)
    assert await store.cancel([job_id]) == {job_id: Status.CANCELLED}


async def test_a_running_job_is_asked_and_keeps_its_lease(store, backend):
    run = await running(store)
    before = backend.row(run.job_id)
    assert await store.cancel([run.job_id]) == {run.job_id: Status.RUNNING}
    after = backend.row(run.job_id)
    assert {name for name in after if after[name] != before[name]} == {"cancel_requested"}
    assert (await row(store, run.job_id)).cancel_requested


@every_status(Status.SUCCEEDED, Status.DEAD_LETTERED, Status.CANCELLED)
async def test_a_cancel_that_comes_too_late_changes_nothing(store, backend, clock, status):
    job_id = await job_in(store, backend, clock, status)
    before = backend.row(job_id)
    clock.advance(1)
    assert await store.cancel([job_id]) == {job_id: status}
    assert backend.row(job_id) == before


@pytest.mark.parametrize(
    "outcome",
    [Failed("x"), Failed("x", delay=9), Failed("x", final=True), Snoozed(5), Released()],
    ids=["failure", "retry-after", "no-retry", "snooze", "release"],
)
async def test_a_cancel_request_survives_whatever_is_not_success(store, clock, outcome):
    run = await running(store, max_attempts=5)
    await store.cancel([run.job_id])
    clock.advance(2)
    assert await settle(store, run, outcome)
    found = await row(store, run.job_id)
    assert (found.status, found.completed_at) == (Status.CANCELLED, clock.now)
    assert (found.locked_by, found.lease_until) == (None, None)
    clock.advance(1e6)
    assert await claim(store) == []


@pytest.mark.parametrize("max_attempts", [1, 5])
async def test_a_cancel_request_survives_a_silent_worker(store, clock, max_attempts):
    run = await running(store, max_attempts=max_attempts)
    await store.cancel([run.job_id])
    clock.advance(31)
    await never_away(store)
    tick = await store.watchdog()
    assert [(reaped.job_id, reaped.status) for reaped in tick.reaped] == [
        (run.job_id, Status.CANCELLED)
    ]
    found = await row(store, run.job_id)
    assert (found.status, found.last_error) == (Status.CANCELLED, "worker lease expired")
    assert found.completed_at == clock.now


async def test_success_wins_over_a_cancel_request(store):
    run = await running(store)
    await store.cancel([run.job_id])
    assert await settle(store, run, Succeeded('"done"'))
    found = await row(store, run.job_id)
    assert (found.status, found.result) == (Status.SUCCEEDED, '"done"')


async def test_many_are_cancelled_at_once_and_strangers_are_left_out(store):
    waiting, stranger = await submitted(store, delay=5), new_job_id()
    run = await running(store)
    answers = await store.cancel([waiting, run.job_id, stranger, waiting])
    assert answers == {waiting: Status.CANCELLED, run.job_id: Status.RUNNING}
    assert await store.cancel([]) == {}


# -- replay ---------------------------------------------------------------------------------------


@every_status(Status.DEAD_LETTERED, Status.CANCELLED)
async def test_a_parked_job_gets_fresh_attempts(store, backend, clock, status):
    job_id = await job_in(store, backend, clock, status)
    token = (await row(store, job_id)).lease_token
    clock.advance(100)
    assert await store.replay([job_id]) == {job_id: (True, Status.PENDING)}
    found = await row(store, job_id)
    assert (found.status, found.attempts) == (Status.PENDING, 0)
    assert (found.next_run_at, found.completed_at) == (clock.now, None)
    assert (found.lease_token, found.cancel_requested) == (token, False)
    assert found.last_error == "kept"
    assert (await claim_one(store, BOB)).attempt == 1


@every_status(Status.PENDING, Status.RUNNING, Status.RETRYING, Status.WAITING, Status.SUCCEEDED)
async def test_nothing_else_can_be_replayed(store, backend, clock, status):
    job_id = await job_in(store, backend, clock, status)
    before = backend.row(job_id)
    clock.advance(1)
    assert await store.replay([job_id]) == {job_id: (False, status)}
    assert backend.row(job_id) == before


async def test_a_replay_forgets_the_request_that_cancelled_the_job(store, clock):
    run = await running(store, max_attempts=2, backoff=NO_WAIT)
    await store.cancel([run.job_id])
    await settle(store, run, Released())
    await store.replay([run.job_id])
    await settle(store, await claim_one(store), Failed("x"))
    assert (await row(store, run.job_id)).status is Status.RETRYING


async def test_a_replayed_job_keeps_its_failures_and_adds_to_them(store, clock):
    run = await running(store, max_attempts=1)
    await settle(store, run, Failed("before"))
    await store.replay([run.job_id])
    clock.advance(1)
    await settle(store, await claim_one(store), Failed("after"))
    failures = await store.failures(run.job_id)
    assert [(failure.attempt, failure.error) for failure in failures] == [
        (1, "before"),
        (1, "after"),
    ]


async def test_a_second_replay_of_a_job_that_waits_is_no_replay(store):
    run = await running(store, max_attempts=1)
    await settle(store, run, Failed("x"))
    await store.replay([run.job_id])
    assert await store.replay([run.job_id]) == {run.job_id: (False, Status.PENDING)}


async def test_many_are_replayed_at_once_and_each_is_judged_on_its_own(store, clock):
    await store.submit([a_job(max_attempts=1) for _ in range(3)])
    dead, done, live = await claim(store)
    await settle(store, dead, Failed("x"))
    await settle(store, done, Succeeded())
    answers = await store.replay([dead.job_id, done.job_id, live.job_id, new_job_id()])
    assert answers == {
        dead.job_id: (True, Status.PENDING),
        done.job_id: (False, Status.SUCCEEDED),
        live.job_id: (False, Status.RUNNING),
    }
    assert await store.replay([]) == {}


# -- run now --------------------------------------------------------------------------------------


async def test_a_delayed_job_is_run_now(store, clock):
    job_id = await submitted(store, delay=3_600)
    assert await claim(store) == []
    clock.advance(1)
    assert await store.expedite([job_id]) == {job_id: (True, Status.PENDING)}
    found = await row(store, job_id)
    assert (found.next_run_at, found.updated_at) == (clock.now, clock.now)
    assert (await claim_one(store)).job_id == job_id


async def test_a_retry_is_run_now_with_the_attempts_it_has_left(store):
    run = await running(store, max_attempts=5)
    await settle(store, run, Failed("later"))
    assert await store.expedite([run.job_id]) == {run.job_id: (True, Status.RETRYING)}
    assert (await claim_one(store)).attempt == 2


async def test_a_job_that_is_due_keeps_its_place_in_the_queue(store, clock):
    job_id = await submitted(store)
    due = (await row(store, job_id)).next_run_at
    clock.advance(5)
    assert await store.expedite([job_id]) == {job_id: (True, Status.PENDING)}
    assert (await row(store, job_id)).next_run_at == due


@every_status(Status.RUNNING, Status.SUCCEEDED, Status.DEAD_LETTERED, Status.CANCELLED)
async def test_nothing_else_can_be_run_now(store, backend, clock, status):
    job_id = await job_in(store, backend, clock, status)
    before = backend.row(job_id)
    assert await store.expedite([job_id, new_job_id()]) == {job_id: (False, status)}
    assert backend.row(job_id) == before


# -- delete ---------------------------------------------------------------------------------------


@every_status(*(status for status in Status if status is not Status.RUNNING))
async def test_a_job_that_does_not_run_is_removed_with_its_failures(store, backend, clock, status):
    job_id = await job_in(store, backend, clock, status)
    other = await running(store, BOB, max_attempts=1, topic="other")
    await settle(store, other, Failed("stays"))
    assert await store.delete([job_id]) == {job_id: (True, status)}
    assert await store.get([job_id]) == {}
    assert await store.failures(job_id) == []
    assert len(await store.failures(other.job_id)) == 1


async def test_a_running_job_is_not_removed(store, clock):
    job_id = await submitted(store, backoff=NO_WAIT)
    await settle(store, await claim_one(store), Failed("kept"))
    run = await claim_one(store, ALICE)
    assert await store.delete([job_id]) == {job_id: (False, Status.RUNNING)}
    assert len(await store.failures(job_id)) == 1
    assert await settle(store, run, Succeeded())


async def test_many_are_removed_at_once_and_strangers_are_left_out(store):
    run = await running(store)
    waiting = await submitted(store)
    assert await store.delete([waiting, run.job_id, new_job_id(), waiting]) == {
        waiting: (True, Status.PENDING),
        run.job_id: (False, Status.RUNNING),
    }
    assert await store.delete([]) == {}


async def test_a_report_on_a_removed_job_is_lost(store, clock):
    run = await running(store)
    await settle(store, run, Released())
    await store.delete([run.job_id])
    assert not await settle(store, run, Succeeded())
    assert await reap(store) == []

"""``updated_at``: when a job last changed in any way but a heartbeat's."""

from pulsed.model.outcome import Failed, Succeeded
from pulsed.model.step import StepKind
from tests.support.checkpoints import send, suspended
from tests.support.jobs import claim_one, reap, row, running, settle, submitted


async def changed_at(store, job_id):
    return (await row(store, job_id)).updated_at


async def test_a_new_job_was_last_changed_when_it_was_submitted(store, clock):
    job_id = await submitted(store, delay=60)
    submitted_at = clock.now
    clock.advance(3)
    assert await changed_at(store, job_id) == submitted_at


async def test_every_step_of_a_jobs_life_is_a_change(store, clock):
    job_id = await submitted(store, max_attempts=2)
    clock.advance(3)
    run = await claim_one(store)
    assert await changed_at(store, job_id) == clock.now
    clock.advance(3)
    await store.set_progress(run.lease, "50")
    assert await changed_at(store, job_id) == clock.now
    clock.advance(3)
    await settle(store, run, Failed("503", delay=0))
    assert await changed_at(store, job_id) == clock.now
    clock.advance(3)
    run = await claim_one(store)
    clock.advance(3)
    await settle(store, run, Succeeded("1"))
    assert await changed_at(store, job_id) == clock.now


async def test_a_heartbeat_is_no_change(store, clock):
    run = await running(store)
    claimed_at = clock.now
    clock.advance(3)
    await store.beat([run.lease])
    assert await changed_at(store, run.job_id) == claimed_at


async def test_the_end_of_a_lease_is_a_change(store, clock):
    run = await running(store, lease=5)
    clock.advance(10)
    assert await reap(store) == [run.job_id]
    assert await changed_at(store, run.job_id) == clock.now


async def test_waiting_and_waking_are_changes(store, clock):
    run = await running(store)
    clock.advance(3)
    await suspended(store, run, StepKind.SIGNAL, key="go")
    assert await changed_at(store, run.job_id) == clock.now
    clock.advance(3)
    await send(store, run.job_id, "go")
    assert await changed_at(store, run.job_id) == clock.now


async def test_what_an_operator_does_is_a_change(store, clock):
    run = await running(store)
    clock.advance(3)
    await store.cancel([run.job_id])
    assert await changed_at(store, run.job_id) == clock.now
    clock.advance(3)
    await settle(store, run, Failed("stopped"))
    clock.advance(3)
    await store.replay([run.job_id])
    assert await changed_at(store, run.job_id) == clock.now

"""The zombie: a run that lost its lease and does not know it changes nothing any more."""

from collections.abc import Awaitable, Callable

import pytest

from pulsed.model.job import Assignment, Lease, Status
from pulsed.model.outcome import Beat, Cancelled, Failed, Outcome, Released, Snoozed, Succeeded
from pulsed.store.base import Store
from tests.support.clock import Clock
from tests.support.jobs import ALICE, BOB, NO_WAIT, claim_one, reap, row, running, settle

EVERY_OUTCOME: list[Outcome] = [
    Succeeded("1"),
    Failed("x"),
    Failed("x", final=True),
    Snoozed(9),
    Released(),
]


async def assert_fenced(store: Store, zombie: Lease) -> None:
    """Whatever a stale lease tries, the row stays as it is."""
    before = await row(store, zombie.job_id)
    failures = await store.failures(zombie.job_id)
    assert await store.beat([zombie]) == {zombie: Beat.LOST}
    assert not await store.set_progress(zombie, "0.5")
    for outcome in (*EVERY_OUTCOME, Cancelled()):
        assert not await settle(store, zombie, outcome), outcome
    assert await row(store, zombie.job_id) == before
    assert await store.failures(zombie.job_id) == failures


async def expire(store: Store, clock: Clock, run: Assignment) -> None:
    clock.advance(31)
    assert await reap(store) == [run.job_id]


async def fail(store: Store, clock: Clock, run: Assignment) -> None:
    assert await settle(store, run, Failed("reported by somebody with the same lease"))


async def release(store: Store, clock: Clock, run: Assignment) -> None:
    assert await settle(store, run, Released())


async def snooze(store: Store, clock: Clock, run: Assignment) -> None:
    assert await settle(store, run, Snoozed(0))


async def replay_after_expiry(store: Store, clock: Clock, run: Assignment) -> None:
    """Attempts start again at one: a fence made of them would let the first run in."""
    clock.advance(31)
    await reap(store)
    await store.cancel([run.job_id])
    assert (await store.replay([run.job_id]))[run.job_id] == (True, Status.PENDING)


async def replay_of_a_dead_letter(store: Store, clock: Clock, run: Assignment) -> None:
    assert await settle(store, run, Failed("x", final=True))
    assert (await store.replay([run.job_id]))[run.job_id] == (True, Status.PENDING)


LOSSES: list[Callable[[Store, Clock, Assignment], Awaitable[None]]] = [
    expire,
    fail,
    release,
    snooze,
    replay_after_expiry,
    replay_of_a_dead_letter,
]

every_loss = pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)


@every_loss
async def test_a_zombie_is_fenced_when_another_worker_has_the_job(store, clock, lose):
    zombie = await running(store, ALICE, backoff=NO_WAIT, max_attempts=5)
    await lose(store, clock, zombie)
    current = await claim_one(store, BOB)
    await assert_fenced(store, zombie.lease)
    assert await store.beat([current.lease]) == {current.lease: Beat.OK}
    assert await settle(store, current, Succeeded("1"))


@every_loss
async def test_a_self_zombie_is_fenced_when_the_same_worker_claimed_again(store, clock, lose):
    """The owner is the same, so only the token can tell the two runs apart."""
    zombie = await running(store, ALICE, backoff=NO_WAIT, max_attempts=5)
    await lose(store, clock, zombie)
    current = await claim_one(store, ALICE)
    assert current.lease_token > zombie.lease_token
    await assert_fenced(store, zombie.lease)
    assert await settle(store, current, Succeeded())


@every_loss
async def test_a_zombie_is_fenced_while_nobody_has_the_job(store, clock, lose):
    zombie = await running(store, ALICE, backoff=NO_WAIT, max_attempts=5)
    await lose(store, clock, zombie)
    before = await row(store, zombie.job_id)
    assert await store.beat([zombie.lease]) == {zombie.lease: Beat.LOST}
    assert not await store.set_progress(zombie.lease, "0.5")
    assert not await settle(store, zombie, Succeeded())
    assert await row(store, zombie.job_id) == before


@pytest.mark.parametrize("outcome", [*EVERY_OUTCOME, Cancelled()], ids=repr)
async def test_a_zombie_is_fenced_after_the_job_has_ended(store, clock, outcome):
    zombie = await running(store, ALICE, backoff=NO_WAIT)
    await expire(store, clock, zombie)
    current = await claim_one(store, BOB)
    assert await settle(store, current, outcome)
    await assert_fenced(store, zombie.lease)


async def test_the_right_worker_with_a_guessed_token_gets_nowhere(store):
    run = await running(store, ALICE)
    for token in (0, 1, run.lease_token - 1, run.lease_token + 1):
        await assert_fenced(store, Lease(run.job_id, token, ALICE))


async def test_the_right_token_in_another_workers_hands_gets_nowhere(store):
    run = await running(store, ALICE)
    await assert_fenced(store, Lease(run.job_id, run.lease_token, BOB))


async def test_a_claim_that_a_crash_of_the_server_undid_never_shares_its_token(
    store, backend, clock
):
    """Where commits do not wait for the disk, a crash may restore the row from before a claim.

    The worker lives on and claims again: with a bare counter it would get the same token, and its
    first run could report for the second.
    """
    job = await running(store, ALICE)
    backend.execute(
        "UPDATE pulse_jobs SET status = 'PENDING', attempts = 0, lease_token = 0, "
        f"locked_by = {backend.literal(None)}, lease_until = NULL, started_at = NULL"
    )
    clock.advance(0.05)  # no server restarts faster
    again = await claim_one(store, ALICE)
    assert (again.job_id, again.attempt) == (job.job_id, job.attempt)
    assert again.lease_token > job.lease_token
    await assert_fenced(store, job.lease)


async def test_replay_never_lowers_the_token(store):
    run = await running(store, max_attempts=1)
    await settle(store, run, Failed("x"))
    await store.replay([run.job_id])
    assert (await row(store, run.job_id)).lease_token == run.lease_token
    assert (await claim_one(store)).lease_token > run.lease_token


async def test_a_lease_that_is_over_still_counts_until_somebody_took_the_job(store, clock):
    """Time alone fences no run: the watchdog does, in the row."""
    run = await running(store, ALICE)
    clock.advance(1_000)
    assert await store.beat([run.lease]) == {run.lease: Beat.OK}
    assert (await row(store, run.job_id)).lease_until == clock.after(30)
    clock.advance(1_000)
    assert await settle(store, run, Succeeded())


async def test_progress_is_stored_under_the_lease(store):
    run = await running(store, ALICE)
    assert await store.set_progress(run.lease, '{"done":3}')
    assert (await row(store, run.job_id)).progress == '{"done":3}'
    assert (await row(store, run.job_id)).status is Status.RUNNING

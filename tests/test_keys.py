"""Keys in the store: at most one job of a topic holds a key, whatever happens to it."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pulsed.errors import DuplicateKey
from pulsed.model.job import JobFilter, NewJob, Status
from pulsed.model.outcome import Cancelled, Failed, Released, Snoozed, Succeeded
from pulsed.store.base import Store
from tests.support.clock import Clock
from tests.support.jobs import (
    NO_WAIT,
    a_job,
    claim_one,
    one_attempt,
    reap,
    row,
    running,
    settle,
    submitted,
)


async def holder(store: Store, **options: Any) -> UUID | None:
    """Return the job that keeps a job with this key from being stored, if one does."""
    job = a_job(**{"key": "k", **options})
    answer = await store.submit([job])
    if answer.new:
        assert not answer.holders
        await store.cancel([job.id])
        assert await store.delete([job.id])
        return None
    assert await store.get([job.id]) == {}
    return answer.holders[0]


# -- return ---------------------------------------------------------------------------------------


async def test_a_key_that_is_held_returns_its_holder(store):
    first = await submitted(store, key="k")
    answer = await store.submit([a_job(key="k")])
    assert (answer.new, answer.existing, dict(answer.holders)) == (0, frozenset(), {0: first})
    assert answer.is_new(0) is False


async def test_a_key_belongs_to_its_topic(store):
    await submitted(store, key="k")
    await submitted(store, key="k", topic="other")
    await submitted(store, key="K")
    await submitted(store)


async def test_a_batch_keeps_the_first_of_two_with_the_same_key(store):
    jobs = [a_job(key="b"), a_job(), a_job(key="a"), a_job(key="b"), a_job(key="a"), a_job()]
    answer = await store.submit(jobs)
    assert answer.new == 4
    assert dict(answer.holders) == {3: jobs[0].id, 4: jobs[2].id}
    assert (await store.get([job.id for job in jobs])).keys() == {
        jobs[place].id for place in (0, 1, 2, 5)
    }


async def test_the_id_counts_before_the_key(store):
    """The same job, submitted once more, is not a duplicate of itself."""
    job = a_job(key="k", on_duplicate="raise")
    await store.submit([job])
    answer = await store.submit([job])
    assert (answer.existing, dict(answer.holders)) == (frozenset([0]), {})


# -- how long -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_for", [None, "end"])
@pytest.mark.parametrize(
    "outcome, free",
    [
        (Succeeded("1"), True),
        (Failed("boom"), False),  # a retry follows
        (Snoozed(0.0), False),
        (Released(), False),
        (Cancelled(), True),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_job_holds_its_key_until_it_ends(store, key_for, outcome, free):
    run = await running(store, key="k", key_for=key_for, backoff=NO_WAIT)
    assert await holder(store) == run.job_id
    await settle(store, run, outcome)
    assert await holder(store) == (None if free else run.job_id)


async def test_a_dead_letter_holds_no_key(store):
    run = await running(store, key="k", **one_attempt())
    await settle(store, run, Failed("boom"))
    assert await holder(store) is None


async def test_a_cancelled_job_holds_no_key(store):
    job = await submitted(store, key="k", delay=60)
    await store.cancel([job])
    assert await holder(store) is None


async def test_a_running_job_that_is_asked_to_stop_holds_its_key(store):
    run = await running(store, key="k")
    await store.cancel([run.job_id])
    assert await holder(store) == run.job_id
    await settle(store, run, Failed("boom"))
    assert await holder(store) is None


async def test_a_key_until_the_start_is_free_from_the_first_claim_on(store):
    job = await submitted(store, key="k", key_for="start", backoff=NO_WAIT)
    assert await holder(store) == job
    run = await claim_one(store)
    second = await submitted(store, key="k", key_for="start", delay=60)
    await settle(store, run, Failed("boom"))  # its retry asks for no key
    assert (await claim_one(store)).job_id == job
    assert await holder(store) == second


async def test_a_key_for_a_period_outlasts_its_job(store, clock: Clock):
    run = await running(store, key="k", key_for="60")
    await settle(store, run, Succeeded("1"))
    clock.advance(59)
    assert await holder(store) == run.job_id
    clock.advance(2)
    assert await holder(store) is None


async def test_a_period_ends_although_its_job_has_not(store, clock: Clock):
    first = await submitted(store, key="k", key_for="60", delay=600)
    clock.advance(61)
    second = await submitted(store, key="k", key_for="60", delay=600)
    assert await holder(store) == second
    kept = await row(store, first)
    assert (kept.key, kept.key_held, kept.status) == ("k", False, Status.PENDING)


async def test_the_row_says_how_long(store, clock: Clock):
    job = await submitted(store, key="k", key_for="90")
    found = await row(store, job)
    assert (found.key, found.key_for, found.key_held) == ("k", "90", True)
    assert found.key_until == found.submitted_at + timedelta(seconds=90)


async def test_a_reaped_job_holds_its_key(store, clock: Clock):
    run = await running(store, key="k", lease=5.0, backoff=NO_WAIT)
    clock.advance(6)
    assert await reap(store) == [run.job_id]
    assert await holder(store) == run.job_id


# -- raise ----------------------------------------------------------------------------------------


async def test_a_duplicate_that_raises_stores_nothing(store):
    first = await submitted(store, key="k")
    jobs = [a_job(), a_job(key="other"), a_job(key="k", on_duplicate="raise")]
    with pytest.raises(DuplicateKey, match=rf"Job {first} of 'email' holds the key 'k'") as caught:
        await store.submit(jobs)
    assert caught.value.job_id == first
    assert await store.get([job.id for job in jobs]) == {}


async def test_a_batch_may_contain_its_own_duplicate(store):
    jobs = [a_job(key="k", on_duplicate="raise") for _ in range(2)]
    with pytest.raises(DuplicateKey):
        await store.submit(jobs)
    assert await store.get([job.id for job in jobs]) == {}


# -- replace --------------------------------------------------------------------------------------


def replacing(**options: Any) -> NewJob:
    return a_job(**{"key": "k", "on_duplicate": "replace", "key_for": "start", **options})


async def test_replacing_gives_the_holder_new_arguments_options_and_time(store, clock: Clock):
    first = await submitted(store, key="k", key_for="start", payload='{"n": 1}', delay=60)
    before = await row(store, first)
    clock.advance(50)
    new = replacing(
        payload='{"n": 2}', delay=60, priority=5, queue="fast", tags=("t",), max_attempts=7,
        headers={"a": "b"}, timeout=3.5, lease=12.5,
    )  # fmt: skip
    answer = await store.submit([new])
    assert (answer.new, dict(answer.holders), answer.replaced) == (0, {0: first}, {0})
    after = await row(store, first)
    assert (after.payload, after.priority, after.queue, after.tags) == (
        '{"n": 2}',
        5,
        "fast",
        ("t",),
    )
    assert (after.max_attempts, after.headers, after.timeout, after.lease_seconds) == (
        7, {"a": "b"}, 3.5, 12.5,
    )  # fmt: skip
    assert after.next_run_at == before.next_run_at + timedelta(seconds=50)
    assert after.submitted_at == before.submitted_at
    assert await store.get([new.id]) == {}


async def test_the_last_of_a_batch_replaces(store):
    jobs = [replacing(payload=f'{{"n": {n}}}') for n in range(4)]
    answer = await store.submit(jobs)
    assert (answer.new, answer.replaced) == (1, {1, 2, 3})
    assert (await row(store, jobs[0].id)).payload == '{"n": 3}'


async def test_a_job_that_has_started_is_not_replaced(store):
    run = await running(store, key="k", backoff=NO_WAIT)
    with pytest.raises(DuplicateKey, match="has started"):
        await store.submit([replacing()])
    await settle(store, run, Failed("boom"))
    with pytest.raises(DuplicateKey, match="has started"):
        await store.submit([replacing()])
    assert (await row(store, run.job_id)).payload == "{}"


async def test_a_job_enqueued_while_its_predecessor_runs_is_a_new_one(store):
    run = await running(store, key="k", key_for="start")
    answer = await store.submit([replacing()])
    assert answer.new == 1
    assert await settle(store, run, Succeeded("1"))


async def test_replacing_again_after_a_lost_answer_is_no_error(store):
    """The first try was committed, and the holder has started since."""
    first = await submitted(store, key="k")
    again = replacing(key_for="end")
    await store.submit([again])
    await claim_one(store)
    answer = await store.submit([again])
    assert (dict(answer.holders), answer.replaced) == ({0: first}, {0})


# -- replay ---------------------------------------------------------------------------------------


async def dead(store: Store, **options: Any) -> UUID:
    run = await running(store, **one_attempt(**options))
    assert await settle(store, run, Failed("boom"))
    return run.job_id


@pytest.mark.parametrize("key_for", ["start", "end"])
async def test_a_replayed_job_takes_its_key_back(store, key_for):
    job = await dead(store, key="k", key_for=key_for)
    assert (await store.replay([job]))[job] == (True, Status.PENDING)
    assert await holder(store) == job


async def test_a_dead_letter_whose_key_is_taken_stays(store):
    job, other = await dead(store, key="k"), await dead(store, key="other")
    taken = await submitted(store, key="k", delay=60)
    assert await store.replay([job, other]) == {
        job: (False, Status.DEAD_LETTERED),
        other: (True, Status.PENDING),
    }
    assert await holder(store) == taken


async def test_of_two_dead_letters_with_a_key_one_comes_back(store):
    jobs = [await dead(store, key="k") for _ in range(2)]
    answers = await store.replay(jobs)
    assert sorted(done for done, _ in answers.values()) == [False, True]


async def test_a_replayed_job_of_a_period_needs_no_key(store, clock: Clock):
    job = await dead(store, key="k", key_for="60")
    clock.advance(61)
    taken = await submitted(store, key="k", key_for="60", delay=600)
    assert (await store.replay([job]))[job] == (True, Status.PENDING)
    assert await holder(store) == taken


# -- search ---------------------------------------------------------------------------------------


async def test_jobs_are_found_by_their_keys(store):
    old = await dead(store, key="k")
    new = await submitted(store, key="k", delay=60)
    await submitted(store, key="k2", delay=60)
    await submitted(store, key="k", topic="other", delay=60)
    both = await store.list_jobs(JobFilter(topic="email", key="k"))
    assert [job.id for job in both] == [new, old]
    holds = await store.list_jobs(JobFilter(topic="email", key="k", holds_key=True))
    assert [job.id for job in holds] == [new]
    assert len(await store.list_jobs(JobFilter(key="k"))) == 3


# -- children -------------------------------------------------------------------------------------


async def test_a_child_whose_key_is_held_is_an_error(store):
    """Its parent would wait for a job that is not its child."""
    run = await running(store)
    taken = await submitted(store, key="k", topic="child")
    children = [
        a_job(topic="child", key=key, parent_id=run.job_id, parent_step="s|0") for key in "jkl"
    ]
    with pytest.raises(DuplicateKey) as caught:
        await store.workflows.add_children(run.lease, children)
    assert caught.value.job_id == taken
    assert await store.get([child.id for child in children]) == {}
    for _ in range(2):
        await store.workflows.add_children(run.lease, [children[0]])
    assert (await row(store, children[0].id)).key_held


async def test_a_job_without_a_key_holds_nothing(store):
    found = await row(store, await submitted(store))
    assert (found.key, found.key_held, found.key_until) == (None, False, None)

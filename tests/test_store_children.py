"""Children in the store: made once, and the one that decides the fan-out wakes the parent."""

import pytest

from pulsed.errors import LeaseLost
from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease, Status
from pulsed.model.outcome import Cancelled, Failed, Outcome, Released, Report, Succeeded
from pulsed.model.step import StepKind, StepState
from pulsed.model.workflow import collect_all, fail_fast, threshold
from tests.support.checkpoints import (
    CHILDREN_ONLY,
    a_family,
    children_of,
    send,
    statuses,
    suspended,
)
from tests.support.jobs import (
    ALICE,
    BOB,
    claim,
    claim_one,
    reap,
    row,
    running,
    settle,
)


async def test_children_are_inserted_once_however_often_they_are_added(store):
    run = await running(store)
    children = children_of(run.job_id, 3)
    await store.workflows.add_children(run.lease, children[:2])
    await store.workflows.add_children(run.lease, children)
    await store.workflows.add_children(run.lease, children)
    found = await store.get([child.id for child in children])
    assert len(found) == 3
    assert {child.parent_id for child in found.values()} == {run.job_id}
    assert {child.parent_step for child in found.values()} == {children[0].parent_step}


async def test_a_child_that_has_ended_is_left_alone_by_a_repeated_fan_out(store):
    run, (first, _) = await a_family(store, 2)
    await settle(store, first, Succeeded("1"))
    await store.workflows.add_children(run.lease, children_of(run.job_id, 2))
    assert (await row(store, first.job_id)).result == "1"


async def test_a_zombie_makes_no_children(store):
    zombie = await running(store)
    await settle(store, zombie, Released())
    run = await claim_one(store)
    for lease in (zombie.lease, run.lease._replace(worker_id=BOB), Lease(new_job_id(), 1, ALICE)):
        with pytest.raises(LeaseLost):
            await store.workflows.add_children(lease, children_of(run.job_id, 2))
    assert await store.get([child.id for child in children_of(run.job_id, 2)]) == {}


async def test_outcomes_tell_how_far_jobs_are(store):
    _, (good, bad, living) = await a_family(store, 3, max_attempts=1)
    await settle(store, good, Succeeded('{"n":1}'))
    await settle(store, bad, Failed("boom"))
    asked = [good.job_id, bad.job_id, living.job_id, new_job_id(), good.job_id]
    answers = await store.workflows.outcomes(asked)
    assert set(answers) == set(asked[:3])
    told = [answers[job_id] for job_id in asked[:3]]
    assert [one.status for one in told] == [
        Status.SUCCEEDED, Status.DEAD_LETTERED, Status.RUNNING
    ]  # fmt: skip
    assert [one.result for one in told] == ['{"n":1}', None, None]
    assert [one.error for one in told] == [None, "boom", None]
    assert {one.topic for one in told} == {"child"}
    assert await store.workflows.outcomes([]) == {}


STRATEGIES = {
    # strategy, how children end one after the other, which end decides it
    "all succeed": (fail_fast, "sss", 2),
    "the first failure": (fail_fast, "sfs", 1),
    "a cancelled child is a failure": (fail_fast, "css", 0),
    "all end, whatever they come to": (collect_all, "fcs", 2),
    "enough successes": (threshold(0.5), "sfss", 2),
    "too many failures": (threshold(0.5), "fffs", 2),
    "exactly enough at the end": (threshold(0.75), "fsss", 3),
}


@pytest.mark.parametrize("case", list(STRATEGIES))
async def test_a_parent_wakes_with_the_child_that_decides_it(store, clock, case):
    strategy, ends, decisive = STRATEGIES[case]
    parent, runs = await a_family(store, len(ends), max_attempts=1)
    await suspended(
        store, parent, StepKind.FAN_OUT,
        enough=strategy.enough(len(ends)), too_many=strategy.too_many(len(ends)),
    )  # fmt: skip
    outcomes: dict[str, Outcome] = {"s": Succeeded(), "f": Failed("no"), "c": Cancelled()}
    for index, (run, end) in enumerate(zip(runs, ends, strict=True)):
        (before,) = await statuses(store, [parent.job_id])
        assert before is (Status.WAITING if index <= decisive else Status.PENDING), index
        clock.advance(1)
        assert await settle(store, run, outcomes[end])
        if index == decisive:
            found = await row(store, parent.job_id)
            assert (found.status, found.next_run_at) == (Status.PENDING, clock.now)
    assert (await claim_one(store)).job_id == parent.job_id


async def test_children_that_end_in_one_batch_wake_their_parents(store):
    families = [await a_family(store, 3) for _ in range(3)]
    for parent, _ in families:
        await suspended(store, parent, StepKind.FAN_OUT)
    all_but_one = [run for _, runs in families for run in runs][:-1]
    await store.settle([Report.of(run, Succeeded()) for run in all_but_one])
    parents = [parent.job_id for parent, _ in families]
    assert await statuses(store, parents) == [Status.PENDING, Status.PENDING, Status.WAITING]


@pytest.mark.parametrize("how", ["settle", "reap", "cancel"])
async def test_every_end_of_the_last_child_wakes_the_parent(store, clock, how):
    parent, (run,) = await a_family(store, 1, max_attempts=1)
    await suspended(store, parent, StepKind.FAN_OUT)
    if how == "settle":
        await settle(store, run, Failed("no"))
    elif how == "reap":
        clock.advance(31)
        assert await reap(store) == [run.job_id]
    else:
        await settle(store, run, Released())
        await store.cancel([run.job_id])
    assert await statuses(store, [parent.job_id]) == [Status.PENDING]


async def test_a_child_that_tries_again_wakes_nobody(store):
    parent, (run,) = await a_family(store, 1, max_attempts=5)
    await suspended(store, parent, StepKind.FAN_OUT)
    for outcome in (Failed("again", delay=0), Released()):
        await settle(store, run, outcome)
        (run,) = await claim(store, topics=CHILDREN_ONLY)
    assert await statuses(store, [parent.job_id]) == [Status.WAITING]


async def test_what_was_decided_before_the_suspension_wakes_at_once(store, clock):
    """Every kind of wait: its condition is checked once more after the row is WAITING."""
    parent, (run,) = await a_family(store, 1)
    target = await running(store)
    waiter, signalled = await running(store), await running(store)
    await store.workflows.watch(waiter.lease, target.job_id)
    await settle(store, run, Succeeded())
    await settle(store, target, Succeeded())
    await send(store, signalled.job_id)
    clock.advance(1)
    await suspended(store, parent, StepKind.FAN_OUT, delay=60)
    await suspended(store, waiter, StepKind.JOB, key=str(target.job_id))
    await suspended(store, signalled, StepKind.SIGNAL, key="go")
    for one in (parent, waiter, signalled):
        found = await row(store, one.job_id)
        assert (found.status, found.next_run_at) == (Status.PENDING, clock.now)
        (open_wait,) = (await store.workflows.history(one.job_id)).checkpoints
        assert open_wait.state is StepState.OPEN
    assert len(await claim(store)) == 3


async def test_children_of_another_fan_out_do_not_matter(store):
    parent, _ = await a_family(store, 1)
    await suspended(store, parent, StepKind.FAN_OUT, key="another|1")
    assert await statuses(store, [parent.job_id]) == [Status.PENDING]  # that one has none


async def test_a_parent_that_waits_for_something_else_is_not_woken_by_its_children(store):
    parent, (run,) = await a_family(store, 1)
    await suspended(store, parent, StepKind.SIGNAL, key="go")
    await settle(store, run, Succeeded())
    assert await statuses(store, [parent.job_id]) == [Status.WAITING]

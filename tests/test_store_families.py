"""Parents and children: what ends together, what a replay brings back, what may be removed."""

import asyncio
from contextlib import closing

import pytest

from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.model.job import JobFilter, NewJob, Status, WorkerInfo
from pulsed.model.outcome import Failed, Outcome, Report, Succeeded
from pulsed.model.step import StepKind, StepState
from pulsed.model.workflow import child_id
from tests.support.backends import only_postgres
from tests.support.checkpoints import (
    CHILD,
    CHILDREN_ONLY,
    FAMILY,
    a_family,
    a_step,
    children_of,
    claimed_children,
    recorded,
    send,
    statuses,
    suspended,
)
from tests.support.jobs import BOB, NO_WAIT, claim, claim_one, reap, row, running, settle
from tests.support.workers import until

postgres = only_postgres

YEAR = 365 * 86_400
EVERY_END = dict.fromkeys((Status.SUCCEEDED, Status.DEAD_LETTERED, Status.CANCELLED), 60.0)


async def three_levels(store, **options):
    """Return the ids of a parent, of its two children, and of the two children of each."""
    top, children = await a_family(store, 2, **options)
    await suspended(store, top, StepKind.FAN_OUT)
    grandchildren = []
    for run in children:
        await store.workflows.add_children(run.lease, children_of(run.job_id, 2, **options))
        await suspended(store, run, StepKind.FAN_OUT)
        grandchildren += [child.id for child in children_of(run.job_id, 2)]
    return top.job_id, [run.job_id for run in children], grandchildren


async def fail(store, run):
    """End a run for good."""
    return await settle(store, run, Failed("no", final=True))


# -- the end of a parent --------------------------------------------------------------------------


async def test_cancelling_a_parent_cancels_its_whole_subtree(store):
    top, children, grandchildren = await three_levels(store)
    await store.cancel([top])
    everyone = [top, *children, *grandchildren]
    assert await statuses(store, everyone) == [Status.CANCELLED] * 7
    assert await store.workflows.cascade() == 0


async def test_a_failed_parent_takes_its_children_with_it(store):
    parent, runs = await a_family(store, 3)
    await settle(store, runs[0], Succeeded())
    await settle(store, runs[1], Failed("again"))
    await fail(store, parent)
    assert await statuses(store, [run.job_id for run in runs]) == [
        Status.SUCCEEDED, Status.CANCELLED, Status.RUNNING,
    ]  # fmt: skip
    assert (await row(store, runs[2].job_id)).cancel_requested


async def test_a_parent_that_tries_again_or_succeeds_leaves_its_children_alone(store):
    for outcome in (Failed("again", delay=60), Succeeded()):
        parent, (run,) = await a_family(store, 1)
        await settle(store, parent, outcome)
        assert not (await row(store, run.job_id)).cancel_requested
        assert await settle(store, run, Succeeded())


async def test_children_that_outlive_a_failed_parent_do_not_outlive_a_cancelled_one(store):
    for end, expected in (("failed", Status.PENDING), ("cancelled", Status.CANCELLED)):
        parent = await running(store)
        await store.workflows.add_children(
            parent.lease, children_of(parent.job_id, 2, outlives=True)
        )
        if end == "cancelled":
            await store.cancel([parent.job_id])
        await fail(store, parent)
        children = [child.id for child in children_of(parent.job_id, 2)]
        assert await statuses(store, children) == [expected] * 2


async def test_a_reaped_parent_without_attempts_left_takes_its_children_with_it(store, clock):
    parent = await running(store, max_attempts=1)
    await store.workflows.add_children(parent.lease, [])
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 2))
    clock.advance(31)
    assert await reap(store) == [parent.job_id]
    children = [child.id for child in children_of(parent.job_id, 2)]
    assert await statuses(store, children) == [Status.CANCELLED] * 2


async def test_a_running_child_is_asked_and_passes_it_on_when_it_ends(store):
    parent, (run,) = await a_family(store, 1)
    await store.workflows.add_children(run.lease, children_of(run.job_id, 2))
    await suspended(store, parent, StepKind.FAN_OUT)
    await store.cancel([parent.job_id])
    grandchildren = [child.id for child in children_of(run.job_id, 2)]
    assert await statuses(store, grandchildren) == [Status.PENDING] * 2
    assert await suspended(store, run, StepKind.FAN_OUT)
    everyone = [parent.job_id, run.job_id, *grandchildren]
    assert await statuses(store, everyone) == [Status.CANCELLED] * 4


@pytest.mark.embedded("a server sees to it, not its clients")
async def test_upkeep_goes_on_where_a_process_died_between_two_levels(backend):
    store = backend.open()
    top, children, grandchildren = await three_levels(store)
    everyone = [top, *children, *grandchildren]
    cascade = store.workflows.cascade
    store.tell_children = _nothing  # the process is gone as soon as the first level is done
    await store.cancel([top])
    assert (
        await statuses(store, everyone)
        == [Status.CANCELLED] + [Status.WAITING] * 2 + [Status.PENDING] * 4
    )
    assert await cascade() == 1
    assert await statuses(store, everyone) == [Status.CANCELLED] * 3 + [Status.PENDING] * 4
    assert await cascade() == 2
    assert await statuses(store, everyone) == [Status.CANCELLED] * 7
    assert await cascade() == 0
    await store.aclose()


async def _nothing() -> None:
    pass


@pytest.mark.embedded("a server sees to it, not its clients")
async def test_a_large_family_is_told_in_bounded_batches(backend):
    store = backend.open()
    parent = await running(store)
    children = children_of(parent.job_id, 25)
    await store.workflows.add_children(parent.lease, children)
    cascade = store.workflows.cascade
    store.tell_children = _nothing
    await fail(store, parent)
    ids = [child.id for child in children]
    for left in (15, 5, 0):
        assert await cascade(limit=10) == 1
        assert (await statuses(store, ids)).count(Status.PENDING) == left
    assert await cascade(limit=10) == 0
    await store.aclose()


@pytest.mark.embedded("a server sees to it, not its clients")
async def test_upkeep_does_not_pause_while_there_are_children_to_cancel(store, monkeypatch):
    """Not even on a worker that scans rarely."""
    monkeypatch.setattr("pulsed.engine.upkeep.watchdog.BATCH", 2)
    monkeypatch.setattr("pulsed.engine.upkeep.watchdog.MOST_BATCHES", 2)
    monkeypatch.setattr("pulsed.store.sql_store.store.MOST_ROUNDS", 0)
    parent = await running(store)
    children = children_of(parent.job_id, 15)
    await store.workflows.add_children(parent.lease, children)
    await fail(store, parent)
    ids = [child.id for child in children]
    assert await statuses(store, ids) == [Status.PENDING] * 15
    us = WorkerInfo(id=BOB, host="h", pid=1, queues=("q",), topics=("t",), slots=1)
    upkeep = asyncio.create_task(Watchdog(store, tick=3600, describe=lambda: us).run())

    async def are_told():
        return await statuses(store, ids) == [Status.CANCELLED] * 15

    try:
        await until(are_told)
    finally:
        upkeep.cancel()
        await asyncio.wait([upkeep])


async def test_upkeep_does_not_wait_for_children_that_others_hold(postgres):
    store = postgres.open()
    store.tell_children = _nothing
    parent, (child,) = await a_family(store, 1)
    await fail(store, parent)
    with closing(postgres.connect()) as other, other.transaction():
        other.execute(
            f"SELECT FROM pulse_jobs WHERE id = {postgres.literal(child.job_id)} FOR UPDATE"
        )
        assert await store.workflows.cascade() == 0
    assert await store.workflows.cascade() == 1
    await store.aclose()


async def test_a_job_without_children_is_not_looked_after(store, backend):
    run = await running(store)
    await fail(store, run)
    assert backend.row(run.job_id)["cascades"] is None
    assert await store.workflows.cascade() == 0


async def test_a_cancelled_child_wakes_whoever_waits_for_it(store):
    parent = await running(store)
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 1))
    (child,) = children_of(parent.job_id, 1)
    waiter = await running(store)
    await store.workflows.watch(waiter.lease, child.id)
    await suspended(store, waiter, StepKind.JOB, key=str(child.id))
    await fail(store, parent)
    assert await statuses(store, [child.id, waiter.job_id]) == [
        Status.CANCELLED, Status.PENDING
    ]  # fmt: skip


# -- replays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last",
    [
        a_step("b", seq=2, state=StepState.FAILED, error="no"),
        a_step("signal", seq=2, kind=StepKind.SIGNAL, state=StepState.TIMED_OUT),
    ],
    ids=["failed", "timed out"],
)
async def test_a_replay_keeps_what_was_done_and_tries_again_what_failed(store, last):
    run = await running(store)
    await recorded(store, run, a_step("a", seq=1), last)
    await fail(store, run)
    assert await store.replay([run.job_id]) == {run.job_id: (True, Status.PENDING)}
    history = await store.workflows.history(run.job_id)
    assert [one.name for one in history.checkpoints] == ["a"]
    assert history.generation == 0


async def test_a_fresh_replay_begins_again_with_children_of_its_own(store):
    parent, (run,) = await a_family(store, 1)
    await settle(store, run, Succeeded())
    await recorded(store, parent, a_step())
    await fail(store, parent)
    for generation in (1, 2):
        replayed = await store.replay([parent.job_id], fresh=True)
        assert replayed == {parent.job_id: (True, Status.PENDING)}
        history = await store.workflows.history(parent.job_id)
        assert (history.checkpoints, history.generation) == ([], generation)
        await fail(store, await claim_one(store))
    assert await statuses(store, [run.job_id]) == [Status.SUCCEEDED]


async def failed_fan_out(store, parent, runs):
    """Let the second child fail, the third be cancelled, and the parent record and follow."""
    await settle(store, runs[0], Succeeded("1"))
    await fail(store, runs[1])
    await settle(store, runs[2], Failed("again", delay=60))
    await suspended(store, parent, StepKind.FAN_OUT, too_many=1)
    parent = await claim_one(store)
    failed = a_step("fan_out", kind=StepKind.FAN_OUT, state=StepState.FAILED, error="1 failed")
    await store.cancel([runs[2].job_id])
    assert await recorded(store, parent, failed)
    await fail(store, parent)


async def test_a_replay_reopens_a_failed_fan_out_and_replays_its_unsuccessful_children(store):
    parent, runs = await a_family(store, 3)
    await failed_fan_out(store, parent, runs)
    ids = [run.job_id for run in runs]
    await store.replay([parent.job_id])
    assert await statuses(store, ids) == [Status.SUCCEEDED, Status.PENDING, Status.PENDING]
    (reopened,) = (await store.workflows.history(parent.job_id)).checkpoints
    assert (reopened.state, reopened.error, reopened.until) == (StepState.OPEN, None, None)
    parent = await claim_one(store)
    await suspended(store, parent, StepKind.FAN_OUT, too_many=1)
    assert await statuses(store, [parent.job_id]) == [Status.WAITING]
    again = await claim(store, topics=CHILDREN_ONLY)
    await store.settle([Report.of(run, Succeeded()) for run in again])
    assert await statuses(store, [parent.job_id]) == [Status.PENDING]


async def test_a_replay_goes_down_the_whole_tree(store):
    top, children, grandchildren = await three_levels(store)
    await store.cancel([top])
    await store.replay([top])
    assert await statuses(store, [top, *children]) == [Status.PENDING] * 3
    assert await statuses(store, grandchildren) == [Status.PENDING] * 4


async def test_a_replay_brings_children_back_whose_parent_had_not_come_to_wait_for_them(store):
    parent = await running(store)
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 2))
    ids = [child.id for child in children_of(parent.job_id, 2)]
    await fail(store, parent)
    assert await statuses(store, ids) == [Status.CANCELLED] * 2
    await store.replay([parent.job_id])
    assert await statuses(store, ids) == [Status.PENDING] * 2


async def test_a_replay_leaves_the_children_of_a_fan_out_that_was_decided(store):
    parent, (run,) = await a_family(store, 1)
    await fail(store, run)
    await recorded(store, parent, a_step("fan_out", kind=StepKind.FAN_OUT))  # collect_all: done
    await fail(store, parent)
    await store.replay([parent.job_id])
    assert await statuses(store, [run.job_id]) == [Status.DEAD_LETTERED]


async def test_a_replay_after_a_fresh_one_finds_the_children_of_that_generation(store):
    parent, (old,) = await a_family(store, 1)
    await fail(store, old)
    await fail(store, parent)
    await store.replay([parent.job_id], fresh=True)
    parent = await claim_one(store)
    family = f"{FAMILY}|1"
    new = NewJob(
        id=child_id(parent.job_id, family, 0), topic=CHILD, payload="{}",
        parent_id=parent.job_id, parent_step=family,
    )  # fmt: skip
    await store.workflows.add_children(parent.lease, [new])
    await suspended(store, parent, StepKind.FAN_OUT, key=family)
    await fail(store, (await claim(store, topics=CHILDREN_ONLY))[0])
    await fail(store, await claim_one(store))
    await store.replay([parent.job_id])
    assert await statuses(store, [old.job_id, new.id]) == [
        Status.DEAD_LETTERED, Status.PENDING
    ]  # fmt: skip


@pytest.mark.embedded("a server sees to it, not its clients")
async def test_a_parent_that_was_replayed_spares_the_children_it_finds_again(backend):
    """What was left to do when it ended is no longer wanted once it runs again."""
    store = backend.open()
    parent = await running(store)
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 1))
    cascade = store.workflows.cascade
    store.tell_children = _nothing
    await fail(store, parent)
    await store.replay([parent.job_id])
    assert await cascade() == 0
    assert await statuses(store, [children_of(parent.job_id, 1)[0].id]) == [Status.PENDING]
    await store.aclose()


# -- removal --------------------------------------------------------------------------------------


async def test_a_child_of_a_living_parent_is_neither_pruned_nor_deleted(store, clock):
    parent, runs = await a_family(store, 3, parent={"lease": YEAR}, max_attempts=1)
    outcomes: list[Outcome] = [Succeeded(), Failed("no"), Succeeded()]
    for run, outcome in zip(runs, outcomes, strict=True):
        await settle(store, run, outcome)
    clock.advance(3600)
    ids = [run.job_id for run in runs]
    assert (await store.prune(EVERY_END, limit=100)).total == 0
    assert sum((await store.prunable(EVERY_END)).values()) == 0
    assert {removed for removed, _ in (await store.delete(ids)).values()} == {False}
    await suspended(store, parent, StepKind.SIGNAL, key="go")
    assert (await store.prune(EVERY_END, limit=100)).total == 0
    await store.cancel([parent.job_id])
    assert (await store.prune(EVERY_END, limit=100)).total == 0  # it may be replayed, and asks
    clock.advance(3600)
    assert (await store.prune(EVERY_END, limit=100)).total == 1  # the parent
    assert (await store.prune(EVERY_END, limit=100)).total == 3
    assert await store.get(ids) == {}


async def test_a_dead_letter_can_be_replayed_however_long_ago_its_children_succeeded(store, clock):
    parent, runs = await a_family(store, 2, parent={"max_attempts": 1})
    for run in runs:
        await settle(store, run, Succeeded("1"))
    await settle(store, parent, Failed("no", final=True))
    clock.advance(10 * 365 * 86_400)
    week = {Status.SUCCEEDED: 7 * 86_400.0, Status.CANCELLED: 7 * 86_400.0}
    assert (await store.prune(week, limit=100)).total == 0
    assert sum((await store.prunable(week)).values()) == 0
    assert (await store.replay([parent.job_id]))[parent.job_id][0]
    found = await store.workflows.outcomes([run.job_id for run in runs])
    assert [each.result for each in found.values()] == ["1", "1"]


async def test_a_job_that_another_one_waits_for_is_kept_until_that_has_ended(store, clock):
    """Also after the waiter was woken: it has yet to read what it waited for."""
    waiter, target = await running(store, lease=YEAR), await running(store)
    assert await store.workflows.watch(waiter.lease, target.job_id)
    await settle(store, target, Succeeded("7"))
    clock.advance(3600)
    assert (await store.prune(EVERY_END, limit=100)).total == 0
    assert (await store.workflows.outcomes([target.job_id]))[target.job_id].result == "7"
    await settle(store, waiter, Succeeded())
    assert (await store.prune(EVERY_END, limit=100)).total >= 1
    assert await store.get([target.job_id]) == {}


async def test_a_parent_with_living_children_is_not_deleted(store):
    parent, (run,) = await a_family(store, 1)
    await settle(store, parent, Succeeded())
    assert await store.delete([parent.job_id]) == {parent.job_id: (False, Status.SUCCEEDED)}
    await settle(store, run, Succeeded())
    assert await store.delete([parent.job_id]) == {parent.job_id: (True, Status.SUCCEEDED)}


@pytest.mark.embedded("a server sees to it, not its clients")
async def test_a_parent_is_not_pruned_before_its_children_have_been_told(backend, clock):
    store = backend.open()
    parent = await running(store)
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 2))
    cascade = store.workflows.cascade
    store.tell_children = _nothing
    await fail(store, parent)
    clock.advance(3600)
    assert (await store.prune(EVERY_END, limit=100)).total == 0
    assert sum((await store.prunable(EVERY_END)).values()) == 0
    assert await cascade() == 1
    assert (await store.prune(EVERY_END, limit=100)).total == 1
    await store.aclose()


@pytest.mark.parametrize("how", ["prune", "delete"])
async def test_checkpoints_and_signals_go_with_their_job(store, backend, clock, how):
    kept, gone = await running(store, lease=YEAR), await running(store)
    for run in (kept, gone):
        await recorded(store, run, a_step())
        await send(store, run.job_id)
    await settle(store, gone, Succeeded())
    clock.advance(3600)
    if how == "prune":
        assert (await store.prune(EVERY_END, limit=100)).total == 1
    else:
        await store.delete([gone.job_id])
    left = [kept.job_id] if backend.engine == "postgres" else [kept.job_id.bytes]
    for table in ("pulse_checkpoints", "pulse_signals"):
        assert [job_id for (job_id,) in backend.execute(f"SELECT job_id FROM {table}")] == left


# -- reading --------------------------------------------------------------------------------------


async def test_the_children_of_a_job_can_be_listed_and_counted(store):
    parent, runs = await a_family(store, 3)
    await a_family(store, 2)
    await settle(store, runs[0], Succeeded())
    where = JobFilter(parent=parent.job_id)
    listed = await store.list_jobs(where)
    assert {job.id for job in listed} == {run.job_id for run in runs}
    counts = await store.counts(where)
    assert (counts[Status.RUNNING], counts[Status.SUCCEEDED]) == (2, 1)


async def test_a_worker_that_takes_over_a_child_wakes_the_parent_as_well(store, clock):
    parent, (zombie,) = await a_family(store, 1, backoff=NO_WAIT, max_attempts=5)
    await suspended(store, parent, StepKind.FAN_OUT)
    clock.advance(31)
    assert await reap(store) == [zombie.job_id]
    (run,) = await claim(store, BOB, topics=CHILDREN_ONLY)
    assert not await settle(store, zombie, Succeeded())
    assert await statuses(store, [parent.job_id]) == [Status.WAITING]
    assert await settle(store, run, Succeeded())
    assert await statuses(store, [parent.job_id]) == [Status.PENDING]


async def test_all_children_can_be_claimed_together(store):
    parent = await running(store)
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 4))
    assert len(await claimed_children(store, parent.job_id, 4)) == 4


@pytest.mark.embedded("a server sees to it, not its clients")
async def test_a_fresh_start_leaves_no_child_of_the_first_untold(backend):
    store = backend.open()
    parent = await running(store)
    children = children_of(parent.job_id, 2)
    await store.workflows.add_children(parent.lease, children)
    tell, store.tell_children = store.tell_children, _nothing
    await fail(store, parent)
    store.tell_children = tell
    await store.replay([parent.job_id], fresh=True)
    assert await statuses(store, [child.id for child in children]) == [Status.CANCELLED] * 2
    await store.aclose()

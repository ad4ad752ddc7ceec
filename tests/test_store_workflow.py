"""What a store does for workflows: checkpoints, suspending, waking, signals, children."""

from datetime import timedelta

import pytest

from pulsed.errors import LeaseLost
from pulsed.job import (
    Cancelled,
    Failed,
    Lease,
    Outcome,
    Released,
    Report,
    Status,
    Succeeded,
    SucceededForGood,
    new_job_id,
)
from pulsed.step import StepKind, StepState
from pulsed.workflow import Record, collect_all, fail_fast, threshold
from tests.support.checkpoints import (
    CHILDREN_ONLY,
    a_family,
    a_step,
    a_wait,
    children_of,
    recorded,
    send,
    statuses,
    suspended,
    take,
)
from tests.support.jobs import (
    ALICE,
    BOB,
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


# -- checkpoints ----------------------------------------------------------------------------------


async def test_a_checkpoint_is_read_as_it_was_written(store, clock):
    run = await running(store)
    clock.advance(5)
    written = a_step(value='{"a":[1,null,"ü"]}', input_hash="abc", tries=3, took=2.5)
    assert await recorded(store, run, written)
    clock.advance(7)
    history = await store.history(run.job_id)
    (found,) = history.checkpoints
    assert (found.name, found.nth, found.seq, found.kind) == ("charge", 1, 1, StepKind.STEP)
    assert (found.state, found.value, found.input_hash) == (
        StepState.DONE, '{"a":[1,null,"ü"]}', "abc"
    )  # fmt: skip
    assert (found.error, found.tries, found.until) == (None, 3, None)
    assert found.ended_at == clock.after(-7)
    assert found.started_at == clock.after(-9.5)
    assert (history.generation, history.now) == (0, clock.now)


async def test_a_history_is_in_the_order_of_the_calls_and_the_jobs_own(store):
    run, other = await running(store), await running(store)
    steps = [a_step(f"s{10 - seq}", seq=seq) for seq in (3, 12, 1, 2)]
    assert await recorded(store, run, *steps)
    assert await recorded(store, other, a_step("of another"))
    history = await store.history(run.job_id)
    assert [checkpoint.seq for checkpoint in history.checkpoints] == [1, 2, 3, 12]


async def test_a_history_is_read_in_pages(store, clock):
    run = await running(store)
    steps = [a_step(f"s{10 - seq}", seq=seq, value=str(seq)) for seq in range(1, 8)]
    assert await recorded(store, run, *steps)
    assert await recorded(store, await running(store), a_step("of another"))

    async def page(skip: int, limit: int | None) -> list[str | None]:
        found = await store.history(run.job_id, skip=skip, limit=limit)
        assert (found.generation, found.now) == (0, clock.now)
        return [checkpoint.value for checkpoint in found.checkpoints]

    assert [await page(skip, 3) for skip in (0, 3, 6, 9)] == [
        ["1", "2", "3"], ["4", "5", "6"], ["7"], []
    ]  # fmt: skip
    assert await page(5, None) == ["6", "7"]


async def test_a_job_without_steps_and_no_job_at_all_have_an_empty_history(store, clock):
    for job_id in (await submitted(store), new_job_id()):
        assert await store.history(job_id) == ([], 0, clock.now)


async def test_uses_of_a_name_are_kept_apart(store):
    run = await running(store)
    assert await recorded(store, run, a_step(nth=1, seq=1), a_step(nth=2, seq=2, value="2"))
    history = await store.history(run.job_id)
    assert [(one.nth, one.value) for one in history.checkpoints] == [(1, "1"), (2, "2")]


async def test_what_a_step_came_to_is_never_overwritten(store):
    run = await running(store)
    assert await recorded(store, run, a_step(value="1"))
    for other in (a_step(value="2"), a_step(state=StepState.FAILED, value=None, error="no")):
        assert await recorded(store, run, other)
    (found,) = (await store.history(run.job_id)).checkpoints
    assert (found.state, found.value, found.error) == (StepState.DONE, "1", None)


async def test_a_failed_step_keeps_its_error_and_stays_failed(store):
    run = await running(store)
    failed = a_step(state=StepState.FAILED, value=None, error="no\x00 way", tries=5)
    assert await recorded(store, run, failed)
    assert await recorded(store, run, a_step())
    (found,) = (await store.history(run.job_id)).checkpoints
    assert (found.state, found.tries, found.value) == (StepState.FAILED, 5, None)
    assert found.error is not None
    assert found.error.startswith("no")
    assert "\x00" not in found.error


async def test_a_wait_that_is_open_can_still_be_decided_once(store, clock):
    run = await running(store)
    await suspended(store, run, StepKind.FAN_OUT, delay=60)
    run = await claim_one(store)  # it has no children: nothing to wait for
    (found,) = (await store.history(run.job_id)).checkpoints
    assert (found.state, found.until, found.ended_at) == (StepState.OPEN, clock.after(60), None)
    begun = found.started_at
    clock.advance(3)
    done = a_step("fan_out", kind=StepKind.FAN_OUT, value='{"ok":3}')
    assert await recorded(store, run, done)
    assert await recorded(store, run, a_step("fan_out", kind=StepKind.FAN_OUT, value="null"))
    (found,) = (await store.history(run.job_id)).checkpoints
    assert (found.state, found.value) == (StepState.DONE, '{"ok":3}')
    assert (found.started_at, found.ended_at) == (begun, clock.now)


async def test_each_lease_of_a_batch_is_answered_for_itself(store):
    await store.submit([a_job() for _ in range(4)])
    runs = await claim(store)
    await settle(store, runs[1], Released())
    await settle(store, runs[3], Succeeded())
    answer = await store.record([Record(run.lease, a_step()) for run in runs])
    assert answer == {runs[0].lease, runs[2].lease}
    for run, count in zip(runs, (1, 0, 1, 0), strict=True):
        assert len((await store.history(run.job_id)).checkpoints) == count
    assert await store.record([]) == set()


async def test_a_zombies_checkpoint_is_refused(store, clock):
    zombie = await running(store, backoff=NO_WAIT, max_attempts=5)
    clock.advance(31)
    await reap(store)
    run = await claim_one(store)
    assert not await recorded(store, zombie, a_step(value="1"))
    assert await recorded(store, run, a_step(value="2"))
    assert not await recorded(store, zombie, a_step(value="1"))
    (found,) = (await store.history(run.job_id)).checkpoints
    assert found.value == "2"


async def test_a_later_run_finds_what_an_earlier_one_has_written(store, clock):
    first = await running(store, backoff=NO_WAIT, max_attempts=5)
    await recorded(store, first, a_step("a", seq=1))
    clock.advance(31)
    await reap(store)
    second = await claim_one(store)
    await recorded(store, second, a_step("b", seq=2))
    history = await store.history(first.job_id)
    assert [one.name for one in history.checkpoints] == ["a", "b"]


async def test_a_success_for_good_forgets_the_checkpoints_and_a_plain_one_keeps_them(store):
    kept, forgotten = await running(store), await running(store)
    for run, outcome in ((kept, Succeeded("1")), (forgotten, SucceededForGood("2"))):
        await recorded(store, run, a_step())
        assert await settle(store, run, outcome)
    assert len((await store.history(kept.job_id)).checkpoints) == 1
    assert (await store.history(forgotten.job_id)).checkpoints == []
    found = await row(store, forgotten.job_id)
    assert (found.status, found.result) == (Status.SUCCEEDED, "2")


async def test_a_success_for_good_that_lost_its_lease_forgets_nothing(store):
    zombie = await running(store)
    await recorded(store, zombie, a_step())
    await settle(store, zombie, Released())
    await claim_one(store)
    assert not await settle(store, zombie, SucceededForGood())
    assert len((await store.history(zombie.job_id)).checkpoints) == 1


@pytest.mark.embedded("counts statements")
async def test_the_success_of_a_plain_job_is_one_statement(backend):
    store = backend.open()
    await store.submit([a_job() for _ in range(5)])
    runs = await claim(store)
    performed = []
    perform = store.perform

    async def counting(verb):
        script = verb.script

        def counted():
            steps, rows = script(), None
            while True:
                try:
                    statement = next(steps) if rows is None else steps.send(rows)
                except StopIteration as finished:
                    return finished.value
                performed.append(statement)
                rows = yield statement

        object.__setattr__(verb, "script", counted)
        return await perform(verb)

    store.perform = counting
    assert len(await store.settle([Report(run.lease, Succeeded()) for run in runs])) == 5
    assert len(performed) == 1
    await store.aclose()


# -- suspending -----------------------------------------------------------------------------------


async def test_a_suspended_job_waits_without_a_lease_and_has_its_attempt_back(store, clock):
    run = await running(store)
    assert await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    found = await row(store, run.job_id)
    assert (found.status, found.attempts) == (Status.WAITING, 0)
    assert (found.locked_by, found.lease_until) == (None, None)
    assert found.next_run_at == clock.after(60)
    assert (found.wait_kind, found.wait_key) == ("SIGNAL", "go")
    (open_wait,) = (await store.history(run.job_id)).checkpoints
    assert (open_wait.state, open_wait.until) == (StepState.OPEN, clock.after(60))
    assert await claim(store) == []


async def test_a_wait_without_an_end_is_never_claimed(store, clock):
    run = await running(store)
    await suspended(store, run, StepKind.SIGNAL, key="go")
    (open_wait,) = (await store.history(run.job_id)).checkpoints
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
    (open_wait,) = (await store.history(run.job_id)).checkpoints
    assert (open_wait.started_at, open_wait.until) == (begun, clock.after(30))


async def test_a_zombie_cannot_suspend(store, clock):
    zombie = await running(store, backoff=NO_WAIT, max_attempts=5)
    clock.advance(31)
    await reap(store)
    await claim_one(store)
    assert not await suspended(store, zombie, StepKind.SLEEP, delay=1)
    assert (await row(store, zombie.job_id)).status is Status.RUNNING
    assert (await store.history(zombie.job_id)).checkpoints == []


async def test_a_request_to_cancel_turns_a_suspension_into_cancelled(store):
    run = await running(store)
    await store.cancel([run.job_id])
    assert await suspended(store, run, StepKind.SLEEP, delay=1)
    found = await row(store, run.job_id)
    assert found.status is Status.CANCELLED
    assert found.completed_at is not None
    assert (await store.history(run.job_id)).checkpoints == []


async def test_a_waiting_job_is_cancelled_at_once(store):
    run = await running(store)
    await suspended(store, run, StepKind.SIGNAL, key="go")
    assert await store.cancel([run.job_id]) == {run.job_id: Status.CANCELLED}


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
    reports = [Report(run.lease, outcome) for run, outcome in zip(runs, outcomes, strict=True)]
    ids = [run.job_id for run in runs]
    assert await store.settle(reports) == set(ids[:4])
    assert await statuses(store, ids) == [
        Status.WAITING, Status.SUCCEEDED, Status.DEAD_LETTERED, Status.WAITING, Status.PENDING,
    ]  # fmt: skip


# -- children -------------------------------------------------------------------------------------


async def test_children_are_inserted_once_however_often_they_are_added(store):
    run = await running(store)
    children = children_of(run.job_id, 3)
    await store.add_children(run.lease, children[:2])
    await store.add_children(run.lease, children)
    await store.add_children(run.lease, children)
    found = await store.get([child.id for child in children])
    assert len(found) == 3
    assert {child.parent_id for child in found.values()} == {run.job_id}
    assert {child.parent_step for child in found.values()} == {children[0].parent_step}


async def test_a_child_that_has_ended_is_left_alone_by_a_repeated_fan_out(store):
    run, (first, _) = await a_family(store, 2)
    await settle(store, first, Succeeded("1"))
    await store.add_children(run.lease, children_of(run.job_id, 2))
    assert (await row(store, first.job_id)).result == "1"


async def test_a_zombie_makes_no_children(store):
    zombie = await running(store)
    await settle(store, zombie, Released())
    run = await claim_one(store)
    for lease in (zombie.lease, run.lease._replace(worker_id=BOB), Lease(new_job_id(), 1, ALICE)):
        with pytest.raises(LeaseLost):
            await store.add_children(lease, children_of(run.job_id, 2))
    assert await store.get([child.id for child in children_of(run.job_id, 2)]) == {}


async def test_outcomes_tell_how_far_jobs_are(store):
    _, (good, bad, living) = await a_family(store, 3, max_attempts=1)
    await settle(store, good, Succeeded('{"n":1}'))
    await settle(store, bad, Failed("boom"))
    asked = [good.job_id, bad.job_id, living.job_id, new_job_id(), good.job_id]
    answers = await store.outcomes(asked)
    assert set(answers) == set(asked[:3])
    told = [answers[job_id] for job_id in asked[:3]]
    assert [one.status for one in told] == [
        Status.SUCCEEDED, Status.DEAD_LETTERED, Status.RUNNING
    ]  # fmt: skip
    assert [one.result for one in told] == ['{"n":1}', None, None]
    assert [one.error for one in told] == [None, "boom", None]
    assert {one.topic for one in told} == {"child"}
    assert await store.outcomes([]) == {}


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
    await store.settle([Report(run.lease, Succeeded()) for run in all_but_one])
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
    """Every kind of wait: its condition is looked at once more after the row says WAITING."""
    parent, (run,) = await a_family(store, 1)
    target = await running(store)
    waiter, signalled = await running(store), await running(store)
    await store.watch(waiter.lease, target.job_id)
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
        (open_wait,) = (await store.history(one.job_id)).checkpoints
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
    history = await store.history(run.job_id)
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
        watched = await store.watch(waiter.lease, target.job_id)
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
    ended = await store.watch(waiter.lease, target.job_id)
    assert ended is not None
    assert (ended.status, ended.result) == (Status.SUCCEEDED, "7")
    assert await store.watch(waiter.lease, new_job_id()) is None


async def test_a_zombie_watches_nobody(store):
    target, zombie = await running(store), await running(store)
    await settle(store, zombie, Released())
    await claim_one(store)
    with pytest.raises(LeaseLost):
        await store.watch(zombie.lease, target.job_id)


async def test_a_waiter_whose_deadline_passes_runs_again_and_is_not_woken_later(store, clock):
    target, waiter = await running(store, lease=600), await running(store)
    await store.watch(waiter.lease, target.job_id)
    await suspended(store, waiter, StepKind.JOB, key=str(target.job_id), delay=60)
    clock.advance(60)
    again = await claim_one(store)
    await settle(store, target, Succeeded())
    assert (await row(store, waiter.job_id)).status is Status.RUNNING
    assert await settle(store, again, Succeeded())


async def test_removing_a_job_that_is_waited_for_wakes_those_who_wait(store):
    target = await submitted(store, delay=60)
    waiter = await running(store)
    await store.watch(waiter.lease, target)
    await suspended(store, waiter, StepKind.JOB, key=str(target))
    assert (await store.delete([target]))[target][0]
    run = await claim_one(store)
    assert run.job_id == waiter.job_id
    assert await store.watch(run.lease, target) is None


async def test_a_job_says_what_it_waits_for_only_while_it_does(store, clock):
    run = await running(store)
    assert await suspended(store, run, StepKind.SIGNAL, key="go", delay=60)
    waiting = (await store.get([run.job_id]))[run.job_id]
    assert (waiting.wait_kind, waiting.wait_key) == ("SIGNAL", "go")
    clock.advance(60)
    assert await claim(store)
    row = (await store.get([run.job_id]))[run.job_id]
    assert (row.wait_kind, row.wait_key) == (None, None)

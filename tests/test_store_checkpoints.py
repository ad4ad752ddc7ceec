"""Checkpoints in the store: what a step came to is written once, and only by the run that leads."""

import pytest

from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from pulsed.model.outcome import Released, Report, Succeeded
from pulsed.model.step import StepKind, StepState
from pulsed.model.workflow import Record
from tests.support.checkpoints import (
    a_step,
    recorded,
    suspended,
)
from tests.support.jobs import (
    ALICE,
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


async def test_a_checkpoint_is_read_as_it_was_written(store, clock):
    run = await running(store)
    clock.advance(5)
    written = a_step(value='{"a":[1,null,"ü"]}', input_hash="abc", tries=3, took=2.5)
    assert await recorded(store, run, written)
    clock.advance(7)
    history = await store.workflows.history(run.job_id)
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
    history = await store.workflows.history(run.job_id)
    assert [checkpoint.seq for checkpoint in history.checkpoints] == [1, 2, 3, 12]


async def test_a_history_is_read_in_pages(store, clock):
    run = await running(store)
    steps = [a_step(f"s{10 - seq}", seq=seq, value=str(seq)) for seq in range(1, 8)]
    assert await recorded(store, run, *steps)
    assert await recorded(store, await running(store), a_step("of another"))

    async def page(skip: int, limit: int | None) -> list[str | None]:
        found = await store.workflows.history(run.job_id, skip=skip, limit=limit)
        assert (found.generation, found.now) == (0, clock.now)
        return [checkpoint.value for checkpoint in found.checkpoints]

    assert [await page(skip, 3) for skip in (0, 3, 6, 9)] == [
        ["1", "2", "3"], ["4", "5", "6"], ["7"], []
    ]  # fmt: skip
    assert await page(5, None) == ["6", "7"]


async def test_a_job_without_steps_and_no_job_at_all_have_an_empty_history(store, clock):
    for job_id in (await submitted(store), new_job_id()):
        assert await store.workflows.history(job_id) == ([], 0, clock.now)


async def test_uses_of_a_name_are_kept_apart(store):
    run = await running(store)
    assert await recorded(store, run, a_step(nth=1, seq=1), a_step(nth=2, seq=2, value="2"))
    history = await store.workflows.history(run.job_id)
    assert [(one.nth, one.value) for one in history.checkpoints] == [(1, "1"), (2, "2")]


async def test_what_a_step_came_to_is_never_overwritten(store):
    run = await running(store)
    assert await recorded(store, run, a_step(value="1"))
    for other in (a_step(value="2"), a_step(state=StepState.FAILED, value=None, error="no")):
        assert await recorded(store, run, other)
    (found,) = (await store.workflows.history(run.job_id)).checkpoints
    assert (found.state, found.value, found.error) == (StepState.DONE, "1", None)


async def test_a_failed_step_keeps_its_error_and_stays_failed(store):
    run = await running(store)
    failed = a_step(state=StepState.FAILED, value=None, error="no\x00 way", tries=5)
    assert await recorded(store, run, failed)
    assert await recorded(store, run, a_step())
    (found,) = (await store.workflows.history(run.job_id)).checkpoints
    assert (found.state, found.tries, found.value) == (StepState.FAILED, 5, None)
    assert found.error is not None
    assert found.error.startswith("no")
    assert "\x00" not in found.error


async def test_a_wait_that_is_open_can_still_be_decided_once(store, clock):
    run = await running(store)
    await suspended(store, run, StepKind.FAN_OUT, delay=60)
    run = await claim_one(store)  # it has no children: nothing to wait for
    (found,) = (await store.workflows.history(run.job_id)).checkpoints
    assert (found.state, found.until, found.ended_at) == (StepState.OPEN, clock.after(60), None)
    begun = found.started_at
    clock.advance(3)
    done = a_step("fan_out", kind=StepKind.FAN_OUT, value='{"ok":3}')
    assert await recorded(store, run, done)
    assert await recorded(store, run, a_step("fan_out", kind=StepKind.FAN_OUT, value="null"))
    (found,) = (await store.workflows.history(run.job_id)).checkpoints
    assert (found.state, found.value) == (StepState.DONE, '{"ok":3}')
    assert (found.started_at, found.ended_at) == (begun, clock.now)


async def test_a_stale_and_the_current_checkpoint_of_a_job_each_get_their_answer(store):
    old = await running(store)
    await settle(store, old, Released())
    new = await claim_one(store)
    records = [Record(old.lease, a_step("theirs")), Record(new.lease, a_step("ours"))]
    assert await store.workflows.record(records) == {new.lease}
    assert [each.name for each in (await store.workflows.history(new.job_id)).checkpoints] == [
        "ours"
    ]


async def test_each_lease_of_a_batch_is_answered_for_itself(store):
    await store.submit([a_job() for _ in range(4)])
    runs = await claim(store)
    await settle(store, runs[1], Released())
    await settle(store, runs[3], Succeeded())
    answer = await store.workflows.record([Record(run.lease, a_step()) for run in runs])
    assert answer == {runs[0].lease, runs[2].lease}
    for run, count in zip(runs, (1, 0, 1, 0), strict=True):
        assert len((await store.workflows.history(run.job_id)).checkpoints) == count
    assert await store.workflows.record([]) == set()


async def test_a_zombies_checkpoint_is_refused(store, clock):
    zombie = await running(store, backoff=NO_WAIT, max_attempts=5)
    clock.advance(31)
    await reap(store)
    run = await claim_one(store)
    assert not await recorded(store, zombie, a_step(value="1"))
    assert await recorded(store, run, a_step(value="2"))
    assert not await recorded(store, zombie, a_step(value="1"))
    (found,) = (await store.workflows.history(run.job_id)).checkpoints
    assert found.value == "2"


async def test_a_later_run_finds_what_an_earlier_one_has_written(store, clock):
    first = await running(store, backoff=NO_WAIT, max_attempts=5)
    await recorded(store, first, a_step("a", seq=1))
    clock.advance(31)
    await reap(store)
    second = await claim_one(store)
    await recorded(store, second, a_step("b", seq=2))
    history = await store.workflows.history(first.job_id)
    assert [one.name for one in history.checkpoints] == ["a", "b"]


async def test_a_success_for_good_forgets_the_checkpoints_and_a_plain_one_keeps_them(store):
    kept, forgotten = await running(store), await running(store)
    for run, outcome in (
        (kept, Succeeded("1")),
        (forgotten, Succeeded("2", discard_checkpoints=True)),
    ):
        await recorded(store, run, a_step())
        assert await settle(store, run, outcome)
    assert len((await store.workflows.history(kept.job_id)).checkpoints) == 1
    assert (await store.workflows.history(forgotten.job_id)).checkpoints == []
    found = await row(store, forgotten.job_id)
    assert (found.status, found.result) == (Status.SUCCEEDED, "2")


async def test_a_stale_success_does_not_remove_the_checkpoints_of_the_current_run(store):
    old = await running(store, ALICE)
    await settle(store, old, Released())
    new = await claim_one(store)
    await recorded(store, new, a_step("one"))
    stale = Report.of(old, Succeeded("1", discard_checkpoints=True))
    assert await store.settle([stale, Report.of(new, Released())]) == {new.lease}
    assert len((await store.workflows.history(new.job_id)).checkpoints) == 1


async def test_a_success_for_good_that_lost_its_lease_forgets_nothing(store):
    zombie = await running(store)
    await recorded(store, zombie, a_step())
    await settle(store, zombie, Released())
    await claim_one(store)
    assert not await settle(store, zombie, Succeeded(discard_checkpoints=True))
    assert len((await store.workflows.history(zombie.job_id)).checkpoints) == 1


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

        verb.script = counted
        return await perform(verb)

    store.perform = counting
    assert len(await store.settle([Report.of(run, Succeeded()) for run in runs])) == 5
    assert len(performed) == 1
    await store.aclose()

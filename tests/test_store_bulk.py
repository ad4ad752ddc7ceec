"""Bulk operations: acts on all jobs that match, batch by batch, by whichever process is there."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from pulsed.engine.upkeep.bulk import EVERY, REST, BulkPerformer, perform_to_end
from pulsed.errors import InvalidOption, StorageRefused
from pulsed.model.audit import Operator
from pulsed.model.bulk import (
    CANCEL,
    DELETE,
    MOST_RUNNING,
    RETRY,
    RUN_NOW,
    BulkAct,
    BulkKind,
    BulkState,
    SkipReason,
)
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, PayloadField, Status
from pulsed.model.outcome import Failed
from pulsed.store.sql.bulk import HOLD
from pulsed.store.verbs import bulk as verbs
from tests.support.jobs import (
    ALICE,
    BOB,
    DEAD_LETTERS,
    TOPIC,
    a_job,
    claim,
    row,
    running,
    settle,
    submitted,
)

BY = Operator("ops")
PENDING = JobFilter(status=(Status.PENDING,), topic=TOPIC)


@pytest.fixture
def batches_of_two(monkeypatch):
    monkeypatch.setattr(verbs, "BATCH", 2)


async def pending(store, count, **options):
    jobs = [a_job(**options) for _ in range(count)]
    await store.submit(jobs)
    return [job.id for job in jobs]


async def dead(store, **options):
    run = await running(store, max_attempts=1, **options)
    await settle(store, run, Failed("broken", final=True))
    return run.job_id


async def start(store, act=CANCEL, where=PENDING, **options):
    return await store.bulk.start(new_job_id(), act, where, by=BY, **options)


async def to_end(store, bulk_id, performer=ALICE):
    while (now := await store.bulk.advance(performer, bulk_id)) is not None:
        if now.has_ended:
            return now
    raise AssertionError("somebody else performs it")


async def statuses(store, ids):
    found = await store.get(ids)
    return [found[job_id].status for job_id in ids]


# -- what it does ---------------------------------------------------------------------------------


async def test_it_acts_on_all_that_match_and_on_no_other(store, batches_of_two):
    ids = await pending(store, 5)
    other = await submitted(store, topic="other")
    begun = await start(store)
    assert (begun.state, begun.total, begun.is_at_least) == (BulkState.RUNNING, 5, False)
    ended = await to_end(store, begun.id)
    assert (ended.state, ended.done, ended.skipped) == (BulkState.DONE, 5, 0)
    assert set(await statuses(store, ids)) == {Status.CANCELLED}
    assert (await row(store, other)).status is Status.PENDING
    assert await store.bulk.get(begun.id) == ended
    assert await store.bulk.advance(ALICE) is None


async def test_each_batch_moves_the_cursor_with_its_jobs(store, batches_of_two):
    ids = await pending(store, 5)
    begun = await start(store)
    now = await store.bulk.advance(ALICE, begun.id)
    assert (now.state, now.done) == (BulkState.RUNNING, 2)
    assert await statuses(store, ids) == [Status.PENDING] * 3 + [Status.CANCELLED] * 2
    assert now.cursor == ids[3]


async def test_jobs_that_are_submitted_later_are_left_alone(store, clock, batches_of_two):
    await pending(store, 3)
    begun = await start(store)
    clock.advance(1)
    newer = await submitted(store)
    older = await submitted(store, id=UUID(int=7))
    ended = await to_end(store, begun.id)
    assert ended.done == 3
    assert await statuses(store, [newer, older]) == [Status.PENDING] * 2


async def test_of_the_same_instant_those_submitted_before_are_part_of_it(store):
    """The watermark tells them apart where the clock cannot."""
    await pending(store, 1)
    begun = await start(store)
    later = await submitted(store)
    assert (await to_end(store, begun.id)).done == 1
    assert (await row(store, later)).status is Status.PENDING


async def test_the_time_of_a_filter_is_kept(store, clock):
    early = await submitted(store)
    clock.advance(7200)
    late = await submitted(store)
    where = replace(PENDING, until=clock.now - timedelta(seconds=1))
    assert (await to_end(store, (await start(store, CANCEL, where)).id)).done == 1
    assert await statuses(store, [early, late]) == [Status.CANCELLED, Status.PENDING]


async def test_a_filter_that_is_too_long_is_refused(store):
    with pytest.raises(InvalidOption, match="20,000 characters"):
        await start(store, CANCEL, replace(PENDING, error="x" * 30_000))
    assert await store.bulk.list(limit=5) == []


async def test_a_job_that_does_not_match_any_more_is_skipped(store, backend, batches_of_two):
    ids = await pending(store, 2)
    begun = await start(store)
    await store.cancel(ids[:1])
    ended = await to_end(store, begun.id)
    assert (ended.done, ended.skipped) == (1, 0)


async def test_retry_sends_dead_letters_back(store):
    job_id = await dead(store)
    begun = await start(store, RETRY, DEAD_LETTERS)
    assert (await to_end(store, begun.id)).done == 1
    assert (await row(store, job_id)).status is Status.PENDING
    assert len(await claim(store)) == 1


async def test_a_retry_skips_jobs_whose_keys_are_taken_and_names_the_holders(store):
    free = await dead(store, key="free")
    taken = await dead(store, key="taken")
    holder = await submitted(store, key="taken")
    ended = await to_end(store, (await start(store, RETRY, DEAD_LETTERS)).id)
    assert (ended.done, ended.skipped, ended.state) == (1, 1, BulkState.DONE)
    [skip] = await store.bulk.skips(ended.id)
    assert (skip.job_id, skip.reason, skip.holder) == (taken, SkipReason.KEY, holder)
    assert str(holder) in skip.words
    assert await statuses(store, [free, taken]) == [Status.PENDING, Status.DEAD_LETTERED]


async def test_of_two_jobs_with_one_key_the_other_one_is_the_holder(store):
    first = await dead(store, key="k")
    second = await dead(store, key="k")
    ended = await to_end(store, (await start(store, RETRY, DEAD_LETTERS)).id)
    [skip] = await store.bulk.skips(ended.id)
    assert {skip.job_id, skip.holder} == {first, second}


async def test_a_large_retry_leaves_out_just_those_whose_keys_are_taken(store):
    jobs = [a_job(key=f"k{n}") for n in range(1_000)]
    await store.submit(jobs)
    await store.cancel([job.id for job in jobs])
    taken = {f"k{n}": a_job(key=f"k{n}") for n in range(0, 1_000, 100)}
    await store.submit([*taken.values()])
    where = JobFilter(status=(Status.CANCELLED,))
    ended = await to_end(store, (await start(store, RETRY, where)).id)
    assert (ended.done, ended.skipped) == (990, 10)
    key_of = {job.id: job.key for job in jobs}
    skips = await store.bulk.skips(ended.id)
    assert {key_of[skip.job_id]: skip.holder for skip in skips} == {
        key: job.id for key, job in taken.items()
    }


async def test_only_the_first_skipped_jobs_are_remembered(store, monkeypatch):
    monkeypatch.setattr(verbs, "MOST_SKIPS", 2)
    monkeypatch.setattr(verbs, "BATCH", 2)
    for key in "abcd":
        await dead(store, key=key)
        await submitted(store, key=key, delay=60)
    ended = await to_end(store, (await start(store, RETRY, DEAD_LETTERS)).id)
    assert ended.skipped == 4
    assert len(await store.bulk.skips(ended.id)) == 2


async def test_cancel_asks_running_jobs_to_stop(store):
    run = await running(store)
    where = JobFilter(status=(Status.RUNNING,), topic=TOPIC)
    assert (await to_end(store, (await start(store, CANCEL, where)).id)).done == 1
    assert (await row(store, run.job_id)).cancel_requested


async def test_delete_leaves_families_together(store):
    parent = await running(store)
    child = await dead(store, parent_id=parent.job_id, parent_step="step#1")
    ended = await to_end(store, (await start(store, DELETE, DEAD_LETTERS)).id)
    [skip] = await store.bulk.skips(ended.id)
    assert (skip.job_id, skip.reason, ended.done) == (child, SkipReason.FAMILY, 0)


async def test_run_now_makes_delayed_jobs_due(store):
    await pending(store, 2, delay=3600)
    assert (await to_end(store, (await start(store, RUN_NOW)).id)).done == 2
    assert len(await claim(store)) == 2


async def test_reschedule_gives_jobs_another_time(store, clock):
    [job_id] = await pending(store, 1)
    act = BulkAct(kind=BulkKind.RESCHEDULE, delay=60.0)
    begun = await start(store, act)
    clock.advance(7)  # a delay counts from the start
    await to_end(store, begun.id)
    assert (await row(store, job_id)).next_run_at == clock.now + timedelta(seconds=53)
    assert await claim(store) == []


async def test_a_time_that_has_passed_means_now(store, clock):
    [job_id] = await pending(store, 1)
    act = BulkAct(kind=BulkKind.RESCHEDULE, at=clock.now - timedelta(days=1))
    clock.advance(7)
    await to_end(store, (await start(store, act)).id)
    assert (await row(store, job_id)).next_run_at == clock.now


async def test_reprioritise_changes_who_is_first(store):
    first, second = await pending(store, 2)
    where = JobFilter(status=(Status.PENDING,), id_prefix=second.hex)
    act = BulkAct(kind=BulkKind.REPRIORITISE, priority=50)
    await to_end(store, (await start(store, act, where)).id)
    assert [each.job_id for each in await claim(store)] == [second, first]


async def test_move_changes_the_queue(store):
    ids = await pending(store, 2)
    act = BulkAct(kind=BulkKind.MOVE, queue="mail")
    assert (await to_end(store, (await start(store, act)).id)).done == 2
    assert await claim(store) == []
    assert {each.job_id for each in await claim(store, queue="mail")} == {*ids}


async def test_a_running_job_is_not_changed(store):
    run = await running(store)
    act = BulkAct(kind=BulkKind.MOVE, queue="mail")
    answers = await store.bulk.change([run.job_id], act, by=BY)
    assert answers == {run.job_id: (False, Status.RUNNING)}
    assert (await row(store, run.job_id)).queue == "default"


# -- who does it ----------------------------------------------------------------------------------


async def test_it_is_left_to_the_process_that_performs_it(store, clock, batches_of_two):
    await pending(store, 5)
    begun = await start(store)
    await store.bulk.advance(ALICE)
    assert await store.bulk.advance(BOB) is None
    assert await store.bulk.advance(BOB, begun.id) is None
    clock.advance(HOLD)  # it is gone
    now = await store.bulk.advance(BOB)
    assert now.done == 4
    assert await store.bulk.advance(ALICE) is None


async def test_several_operations_take_turns(store, clock, batches_of_two):
    await pending(store, 4)
    await pending(store, 4, topic="other")
    begun = []
    for topic in (TOPIC, "other"):
        where = JobFilter(status=(Status.PENDING,), topic=topic)
        begun.append((await start(store, CANCEL, where)).id)
        clock.advance(1)
    done = []
    for _ in range(4):
        done.append((await store.bulk.advance(ALICE)).id)
        clock.advance(1)
    assert done == [*begun, *begun]


async def test_the_loop_of_a_worker_performs_and_rests(store):
    await pending(store, 1)
    begun = await start(store)
    times = iter([10.0, 12.0, 20.0])  # the batch takes two seconds
    performer = BulkPerformer(store, clock=lambda: next(times))
    assert await performer.tick() == 2.0 * REST
    assert (await store.bulk.get(begun.id)).state is BulkState.DONE
    assert EVERY * 0.9 <= await performer.tick() <= EVERY * 1.1


async def test_a_caller_that_waits_performs_it(store, batches_of_two):
    await pending(store, 3)
    begun = await start(store)
    told = []
    ended = await perform_to_end(store, begun.id, lambda now: told.append(now.done))
    assert ended is not None
    assert (ended.state, told) == (BulkState.DONE, [2, 3])
    assert await perform_to_end(store, uuid4()) is None


async def test_stopping_ends_it_and_undoes_nothing(store, batches_of_two):
    ids = await pending(store, 5)
    begun = await start(store)
    await store.bulk.advance(ALICE)
    stopped = await store.bulk.stop(begun.id, by=BY)
    assert (stopped.state, stopped.done) == (BulkState.STOPPED, 2)
    assert await store.bulk.advance(ALICE) is None
    assert (await statuses(store, ids)).count(Status.CANCELLED) == 2
    assert await store.bulk.stop(begun.id, by=BY) == stopped
    assert await store.bulk.stop(uuid4(), by=BY) is None


async def test_starting_again_with_the_same_id_is_the_same_operation(store):
    await pending(store, 1)
    begun = await start(store)
    again = await store.bulk.start(begun.id, DELETE, PENDING, by=BY)
    assert again == begun
    assert len(await store.bulk.list(limit=10)) == 1


async def test_not_too_many_at_the_same_time(store):
    for _ in range(MOST_RUNNING):
        await start(store)
    with pytest.raises(InvalidOption, match="in progress"):
        await start(store)


async def test_the_newest_come_first(store, clock):
    ids = []
    for _ in range(3):
        ids.append((await start(store)).id)
        clock.advance(1)
    assert [each.id for each in await store.bulk.list(limit=2)] == ids[:0:-1]


@pytest.mark.embedded("lets the database refuse")
@pytest.mark.parametrize("times, state", [(2, BulkState.DONE), (3, BulkState.FAILED)])
async def test_a_batch_that_the_database_refuses_is_tried_again(store, times, state):
    """Another job may take a key between the check and the change."""
    [job_id] = await pending(store, 1)
    begun = await start(store)
    perform = store.perform
    refused: list[Any] = []

    async def refusing(verb):
        if verb.name == "perform_bulk" and verb.short_lock_wait and len(refused) < times:
            refused.append(verb)
            raise StorageRefused("duplicate key value")
        return await perform(verb)

    store.perform = refusing
    ended = await store.bulk.advance(ALICE, begun.id)
    assert ended.state is state
    assert ended.error == (None if state is BulkState.DONE else "duplicate key value")
    wanted = Status.CANCELLED if state is BulkState.DONE else Status.PENDING
    assert (await row(store, job_id)).status is wanted


@pytest.mark.embedded("lets a batch fail in a way of its own")
@pytest.mark.parametrize("stage", ["next_batch", "perform"])
async def test_an_operation_whose_batch_fails_holds_up_no_other(store, monkeypatch, stage, caplog):
    await pending(store, 1)
    broken, healthy = await start(store), await start(store)
    really = getattr(verbs, stage)

    def breaking(engine, *args, **options):
        verb = really(engine, *args, **options)

        def script():
            found = yield from verb.script()
            about = args[0].row if stage == "perform" else found.row
            if about.id == broken.id:
                raise ZeroDivisionError("of a bug")
            return found

        return replace(verb, script=script)

    monkeypatch.setattr(verbs, stage, breaking)
    ended = await store.bulk.advance(ALICE)
    assert (ended.id, ended.state) == (broken.id, BulkState.FAILED)
    assert ended.error == "ZeroDivisionError: of a bug"
    assert "ZeroDivisionError" in caplog.text
    following = await store.bulk.advance(ALICE)
    assert (following.id, following.state) == (healthy.id, BulkState.DONE)


@pytest.mark.embedded("writes what only a newer program would")
async def test_an_operation_of_a_newer_program_is_left_to_it(store, backend):
    await pending(store, 1)
    begun = await start(store)
    backend.execute("""UPDATE pulse_bulk SET filter = '{"colour": "red"}'""")
    assert await store.bulk.advance(ALICE) is None
    found = await store.bulk.get(begun.id)
    with pytest.raises(InvalidOption, match="newer pulsed: its filter has colour"):
        _ = found.where


# -- the audit log and retention ------------------------------------------------------------------


async def test_it_has_one_entry_in_the_audit_log(store, batches_of_two):
    await pending(store, 3)
    begun = await start(store)
    await to_end(store, begun.id)
    [entry] = await store.audit_log()
    assert (entry.id, entry.act, entry.affected) == (begun.id, "cancel jobs", 3)
    assert "ops" in (entry.actor, entry.claimed)
    assert entry.detail == "status=PENDING topic=email"


async def test_a_stop_has_an_entry(store):
    begun = await start(store)
    await store.bulk.stop(begun.id, by=BY)
    assert (await store.audit_log())[0].act == "stop bulk operation"


async def test_old_operations_are_removed_with_what_they_skipped(store, backend, clock):
    await dead(store, key="k")
    await submitted(store, key="k")
    ended = await to_end(store, (await start(store, RETRY, DEAD_LETTERS)).id)
    going_on = await start(store)
    clock.advance(91 * 86_400)
    await store.prune({}, limit=10)
    assert await store.bulk.get(ended.id) is None
    assert backend.execute("SELECT count(*) FROM pulse_bulk_skips") == [(0,)]
    assert await store.bulk.get(going_on.id) == going_on


async def test_a_filter_survives_its_storage(store):
    where = JobFilter(
        status=(Status.PENDING,),
        payload=(PayloadField(("n",), 2**70 + 1), PayloadField(("a", "b"), None)),
        parent=uuid4(),
        due=False,
    )
    assert (await start(store, CANCEL, where)).where == where

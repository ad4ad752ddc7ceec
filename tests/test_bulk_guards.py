"""The guards of bulk operations are tested by removal: cursor, state, hold and watermark."""

import pytest

from pulsed.model.audit import Operator
from pulsed.model.bulk import CANCEL, BulkAct, BulkKind, BulkState, SkipReason
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Status
from pulsed.store.sql.bulk import HOLD
from pulsed.store.verbs import bulk as verbs
from tests.support.guards import check
from tests.support.jobs import ALICE, BOB, TOPIC, a_job, row, running, submitted

pytestmark = pytest.mark.embedded("takes guards out of the statements")

PENDING = JobFilter(status=(Status.PENDING,), topic=TOPIC)


async def begun(store, count=3):
    await store.submit([a_job() for _ in range(count)])
    return await store.bulk.start(new_job_id(), CANCEL, PENDING, by=Operator("ops"))


async def batch_of(store, performer, limit=2):
    return await store.run(verbs.next_batch(store.engine, performer, None, limit))


async def perform(store, batch, performer):
    return await store.run(verbs.perform(store.engine, batch, performer))


async def test_a_batch_is_performed_by_whoever_moves_the_cursor(backend):
    async def scenario(store, _):
        started = await begun(store)
        mine, theirs = await batch_of(store, ALICE), await batch_of(store, BOB)
        assert mine.ids == theirs.ids
        assert await perform(store, mine, ALICE) is not None
        assert await perform(store, theirs, BOB) is None
        assert (await store.bulk.get(started.id)).skipped == 0

    guard = part(backend, "move_cursor", "AND cursor = ")
    anywhere = guard.replace("cursor", "(true OR cursor", 1) + ")"
    await check(backend, scenario, "move_cursor", guard, instead=anywhere)


def part(backend, statement, begin, end="\n"):
    """Return a part of a statement, whose parameters each engine writes in its own way."""
    text = getattr(backend.open().engine.bulk, statement).text
    at = text.index(begin)
    return text[at : text.index(end, at)]


async def test_a_stopped_operation_changes_nothing_more(backend):
    async def scenario(store, _):
        started = await begun(store)
        batch = await batch_of(store, ALICE)
        await store.bulk.stop(started.id, by=Operator("ops"))
        assert await perform(store, batch, ALICE) is None
        assert (await row(store, batch.ids[0])).status is Status.PENDING

    await check(backend, scenario, "move_cursor", "AND state = 'RUNNING' ")


async def test_a_job_that_changes_between_search_and_act_is_left_alone(backend):
    store = backend.open()
    started = await begun(store)
    batch = await batch_of(store, ALICE)
    await store.bulk.change(batch.ids[:1], BulkAct(kind=BulkKind.RESCHEDULE, delay=60.0))
    changed = f"UPDATE pulse_jobs SET topic = 'other' WHERE id = {backend.literal(batch.ids[1])}"
    backend.execute(changed)
    await perform(store, batch, ALICE)
    assert (await row(store, batch.ids[0])).status is Status.CANCELLED
    assert (await row(store, batch.ids[1])).status is Status.PENDING
    [skip] = await store.bulk.skips(started.id)
    assert (skip.job_id, skip.reason) == (batch.ids[1], SkipReason.CHANGED)
    await store.aclose()


async def test_an_operation_that_ended_is_not_performed_again(backend):
    async def scenario(store, _):
        await store.bulk.stop((await begun(store)).id, by=Operator("ops"))
        assert await batch_of(store, ALICE) is None

    await check(backend, scenario, "to_perform", "state = 'RUNNING' AND ")


async def test_a_stop_keeps_how_an_operation_ended(backend):
    async def scenario(store, _):
        started = await begun(store, count=0)
        await store.bulk.advance(ALICE)
        stopped = await store.bulk.stop(started.id, by=Operator("ops"))
        assert stopped.state is BulkState.DONE

    await check(backend, scenario, "end_bulk", " AND state = 'RUNNING'")


async def test_one_process_performs_at_a_time(backend):
    async def scenario(store, backend):
        await begun(store)
        await perform(store, await batch_of(store, ALICE), ALICE)
        assert await batch_of(store, BOB) is None
        assert await batch_of(store, ALICE) is not None
        backend.clock.advance(HOLD)
        assert await batch_of(store, BOB) is not None

    await check(backend, scenario, "to_perform", "held_until IS NULL OR", instead="true OR")


async def test_a_hold_from_before_the_clock_was_set_back_does_not_count(backend):
    async def scenario(store, backend):
        await begun(store)
        await perform(store, await batch_of(store, ALICE), ALICE)
        backend.clock.advance(-3600)
        assert await batch_of(store, BOB) is not None

    guard = part(backend, "to_perform", "OR held_until >", ")\n            ORDER BY")
    await check(backend, scenario, "to_perform", guard)


async def test_operations_in_progress_are_not_trimmed(backend):
    async def scenario(store, backend):
        started = await begun(store)
        backend.clock.advance(91 * 86_400)
        await store.prune({}, limit=10)
        assert await store.bulk.get(started.id) is not None

    await check(backend, scenario, "trim_bulk", "AND state <> 'RUNNING'")


MOVE = BulkAct(kind=BulkKind.MOVE, queue="mail")


async def test_only_jobs_that_have_not_started_are_changed(backend):
    async def scenario(store, _):
        run = await running(store)
        await store.bulk.change([run.job_id], MOVE)
        assert (await row(store, run.job_id)).queue == "default"

    await check(
        backend, scenario, "change_jobs", "j.status IN ('PENDING', 'RETRYING')", instead="true"
    )


async def test_a_changed_job_that_is_due_is_behind_what_claims_have_scanned(backend):
    """A claim begins at its floor; a job that moves below it would wait for the next full scan."""
    store = backend.open()
    job_id = await submitted(store)
    backend.clock.advance(60)
    await store.bulk.change([job_id], MOVE)
    assert (await row(store, job_id)).next_run_at == backend.clock.now
    await store.aclose()

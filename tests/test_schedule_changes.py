"""What people do to schedules: create, change, pause, resume, delete and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from pulsed.engine.upkeep.scheduler import template
from pulsed.errors import InvalidOption, ScheduleChanged
from pulsed.model.ids import new_job_id
from pulsed.model.schedule import CatchUp, ScheduleFilter, occurrence_id
from tests.support.schedules import (
    ACTIVE,
    APP,
    DONE,
    MINUTE,
    PAUSED,
    SECOND,
    a_spec,
    after_statements,
    all_jobs,
    jobs_of,
    occurrences,
    put,
    read,
    tick,
)

# -- creating and changing ------------------------------------------------------------------------


async def test_a_new_schedule_begins_one_interval_after_its_creation(store, clock):
    row, effect = await put(store)
    assert effect == "created"
    assert (row.state, row.error, row.missed, row.revision) == (ACTIVE, None, 0, 0)
    assert (row.anchor, row.created_at) == (clock.now, clock.now)
    assert row.next_run_at == clock.after(60)
    assert (row.last_occurrence, row.last_fired_at) == (None, None)
    assert await read(store) == row


async def test_what_is_said_again_changes_nothing(store, clock):
    first, _ = await put(store, headers={"b": "1", "a": "2"})
    clock.advance(90)  # due, and still unchanged
    again, effect = await put(store, headers={"a": "2", "b": "1"})
    assert (again, effect) == (first, "unchanged")


async def test_an_unchanged_declaration_after_a_fire_does_not_move_the_cursor(store, clock):
    await put(store)
    clock.advance(61)
    await tick(store)
    before = await read(store)
    assert (await put(store)).effect == "unchanged"
    assert await read(store) == before


async def test_an_edit_of_the_payload_keeps_a_due_occurrence_due(store, clock):
    row, _ = await put(store)
    clock.advance(90)
    changed, effect = await put(store, payload='{"n":1}', priority=3)
    assert effect == "changed"
    assert (changed.next_run_at, changed.anchor) == (row.next_run_at, row.anchor)
    assert changed.revision == row.revision + 1
    (job,) = await tick(store)
    assert (job.payload, job.priority, job.occurrence) == ('{"n":1}', 3, row.next_run_at)


@pytest.mark.parametrize(
    "says, kept",
    [
        ({"end": datetime(2031, 1, 1, tzinfo=UTC)}, True),
        ({"every": 2 * MINUTE}, False),
        ({"start": datetime(2029, 1, 1, tzinfo=UTC)}, False),
    ],
)
async def test_the_anchor_stays_unless_interval_or_start_change(store, clock, says, kept):
    row, _ = await put(store)
    clock.advance(130)
    await tick(store)
    changed, _ = await put(store, **says)
    expected = row.anchor if kept else says.get("start", clock.now)
    assert changed.anchor == expected
    assert changed.next_run_at is not None
    interval = says.get("every", MINUTE)
    assert (changed.next_run_at - expected) % interval == timedelta(0)
    assert changed.next_run_at > clock.now


async def test_another_timetable_takes_effect_at_its_next_instant(store, clock):
    await put(store)
    clock.advance(90)
    changed, _ = await put(store, cron="0 * * * *")
    assert changed.next_run_at == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert await tick(store) == []


async def test_schedules_of_two_apps_may_have_the_same_name(store):
    mine = await put(store)
    theirs = await store.schedules.put("other", "s", a_spec())
    assert theirs.effect == "created"
    assert theirs.row.id != mine.row.id
    assert [row.app for row in await store.schedules.list_page()] == [APP, "other"]
    assert await store.schedules.list_page(ScheduleFilter("other")) == [theirs.row]
    assert await store.schedules.get("nobody", "s") is None


async def test_what_would_never_run_is_refused_and_changes_nothing(store, clock):
    with pytest.raises(InvalidOption, match="never run"):
        await put(store, end=clock.after(30))
    assert await store.schedules.list_page() == []
    row, _ = await put(store)
    with pytest.raises(InvalidOption, match="never run again"):
        await put(store, end=clock.after(30))
    assert await read(store) == row


async def test_a_declaration_that_has_outlived_its_end_is_done_and_not_an_error(store, clock):
    """A worker must start although a schedule of its program has ended."""
    row, effect = await put(store, declared=True, end=clock.after(30))
    assert (row.state, row.next_run_at, effect) == (DONE, None, "created")


async def test_a_schedule_that_is_done_starts_again_when_it_is_given_new_times(store, clock):
    await put(store, at=clock.now)
    await tick(store)
    assert (await read(store)).state is DONE
    row, _ = await put(store, at=clock.after(60))
    assert (row.state, row.next_run_at) == (ACTIVE, clock.after(60))
    clock.advance(60)
    await tick(store)
    assert occurrences(await jobs_of(store)) == [clock.after(-60), clock.now]


# -- pausing, resuming, deleting ------------------------------------------------------------------


async def test_a_paused_schedule_is_not_fired_and_goes_on_with_what_is_to_come(store, clock):
    row, _ = await put(store, catch_up=CatchUp.ALL)
    clock.advance(90)  # due when it is paused
    paused = await store.schedules.pause(APP, "s")
    assert (paused.state, paused.next_run_at) == (PAUSED, row.next_run_at)
    assert await store.schedules.pause(APP, "s") == paused
    clock.advance(600)
    assert await tick(store) == []
    resumed = await store.schedules.resume(APP, "s")
    assert (resumed.state, resumed.missed) == (ACTIVE, 0)
    assert resumed.next_run_at == row.anchor + 12 * MINUTE  # in phase, later than now
    assert await store.schedules.resume(APP, "s") == resumed
    assert await tick(store) == []
    clock.advance(30)
    assert len(await tick(store)) == 1


async def test_an_edit_of_a_paused_schedule_leaves_it_paused(store, clock):
    await put(store)
    await store.schedules.pause(APP, "s")
    row, _ = await put(store, every=5 * MINUTE)
    assert row.state is PAUSED
    clock.advance(3600)
    assert await tick(store) == []


async def test_an_instant_that_passed_during_a_pause_is_due_on_resume(store, clock):
    await put(store, at=clock.after(60))
    await store.schedules.pause(APP, "s")
    clock.advance(3600)
    await store.schedules.resume(APP, "s")
    assert len(await tick(store)) == 1


async def test_resuming_after_the_end_is_the_end(store, clock):
    await put(store, end=clock.after(120))
    await store.schedules.pause(APP, "s")
    clock.advance(600)
    row = await store.schedules.resume(APP, "s")
    assert (row.state, row.next_run_at) == (DONE, None)
    assert await store.schedules.resume(APP, "s") == row
    assert await store.schedules.pause(APP, "s") == row


async def test_acts_on_a_schedule_that_is_not_there(store):
    assert await store.schedules.pause(APP, "s") is None
    assert await store.schedules.resume(APP, "s") is None
    assert await store.schedules.delete(APP, "s") is False


async def test_a_deleted_schedule_leaves_its_jobs_and_a_new_one_is_another(store, clock):
    old, _ = await put(store)
    clock.advance(60)
    await tick(store)
    assert await store.schedules.delete(APP, "s") is True
    assert await store.schedules.get(APP, "s") is None
    assert [job.schedule_id for job in await all_jobs(store)] == [old.id]
    new, effect = await put(store)
    assert (effect, new.id != old.id) == ("created", True)
    assert await jobs_of(store) == []


# -- changing what was seen -----------------------------------------------------------------------


async def test_a_version_is_changed_once(store, clock):
    seen = (await put(store)).row.version
    clock.advance(61)
    await tick(store)
    changed = await store.schedules.put(APP, "s", a_spec(priority=7), seen=seen)  # a fire is none
    assert (changed.effect, changed.row.spec.priority) == ("changed", 7)
    with pytest.raises(ScheduleChanged, match="'s' of app"):
        await store.schedules.put(APP, "s", a_spec(priority=8), seen=seen)
    assert await read(store) == changed.row


@pytest.mark.parametrize("act", ["pause", "resume"])
async def test_a_version_ends_with_a_pause_and_with_a_resume(store, act):
    await put(store)
    seen = (await store.schedules.pause(APP, "s")).version
    if act == "pause":
        seen = (await store.schedules.resume(APP, "s")).version
    row = await getattr(store.schedules, act)(APP, "s")
    with pytest.raises(ScheduleChanged):
        await store.schedules.put(APP, "s", a_spec(priority=7), seen=seen)
    assert await read(store) == row


async def test_a_schedule_that_was_deleted_meanwhile_is_not_made_again(store):
    seen = (await put(store)).row.version
    await store.schedules.delete(APP, "s")
    with pytest.raises(ScheduleChanged, match="deleted"):
        await store.schedules.put(APP, "s", a_spec(priority=7), seen=seen)
    assert await store.schedules.get(APP, "s") is None


# -- reading --------------------------------------------------------------------------------------


async def test_what_is_due_comes_with_the_longest_waiting_first(store, clock):
    for name, seconds in (("b", 20), ("a", 30), ("c", 10)):
        await put(store, name, every=seconds * SECOND)
    await put(store, "paused", every=SECOND)
    await store.schedules.pause(APP, "paused")
    due = await store.schedules.due(10)
    assert (due.rows, due.next_run_at, due.now) == ([], clock.after(10), clock.now)
    clock.advance(25)
    due = await store.schedules.due(10)
    assert [row.name for row in due.rows] == ["c", "b"]
    assert [row.name for row in (await store.schedules.due(1)).rows] == ["c"]


async def test_without_schedules_nothing_is_next(store):
    assert (await store.schedules.due(10)).next_run_at is None


async def test_schedules_left_to_others_are_read_only_beside_another_that_is_due(store, clock):
    for name, seconds in (("left", 10), ("next", 20)):
        await put(store, name, every=seconds * SECOND)
    clock.advance(15)
    due = await store.schedules.due(10, skip=1)
    assert (due.rows, due.next_run_at) == ([], clock.after(5))
    clock.advance(10)
    due = await store.schedules.due(10, skip=1)
    assert [row.name for row in due.rows] == ["left", "next"]


@pytest.mark.embedded("counts statements")
async def test_a_poll_that_finds_nothing_due_is_one_statement(store, clock):
    statements = list[int]()
    for number in (1, 2):
        after_statements(store, "due_schedules", number, partial(statements.append, number))
    await put(store)
    assert (await store.schedules.due(10)).rows == []
    assert statements == [1]
    clock.advance(60)
    assert len((await store.schedules.due(10)).rows) == 1
    assert statements == [1, 2]


@pytest.mark.embedded("acts between two statements")
async def test_a_schedule_that_becomes_due_during_the_read_comes_with_the_next(store, clock):
    for name, seconds in (("a", 10), ("b", 20)):
        await put(store, name, every=seconds * SECOND)
    clock.advance(15)
    after_statements(store, "due_schedules", 1, partial(clock.advance, 10))
    due = await store.schedules.due(10)
    assert [row.name for row in due.rows] == ["a"]
    assert due.now < clock.now
    assert [row.name for row in (await store.schedules.due(10)).rows] == ["a", "b"]


async def out_of_turn(store, row) -> UUID:
    job = template(row, row.spec, new_job_id())
    await store.submit([job])
    return job.id


async def in_pages(store, row, limit: int) -> list[UUID]:
    found: list[UUID] = []
    page = await store.schedules.fires(row.id, limit=limit)
    while page:
        assert len(page) <= limit
        found += [job.id for job in page]
        last = page[-1]
        page = await store.schedules.fires(
            row.id, limit=limit, before=last.moment, before_id=last.id
        )
    return found


async def test_fires_are_read_in_pages_and_runs_out_of_turn_stand_where_they_were_asked_for(
    store, clock
):
    row, _ = await put(store, catch_up=CatchUp.ALL)
    other, _ = await put(store, "other", catch_up=CatchUp.ALL)
    clock.advance(230)
    between = await out_of_turn(store, row)
    await out_of_turn(store, other)
    clock.advance(370)
    await tick(store)
    last = sorted([await out_of_turn(store, row), await out_of_turn(store, row)], reverse=True)
    occurrences = [occurrence_id(row.id, row.anchor + n * MINUTE) for n in range(10, 0, -1)]
    at_one_moment = sorted([*last, occurrences[0]], reverse=True)
    expected = [*at_one_moment, *occurrences[1:7], between, *occurrences[7:]]
    for limit in (1, 2, 3, 4, 50):
        assert await in_pages(store, row, limit) == expected
        marks = await store.schedules.last_fires([other.id, row.id], limit=limit)
        assert [mark.id for mark in marks[row.id]] == expected[:limit]
        assert len(marks[other.id]) == min(limit, 11)
    rows = await store.schedules.fires(row.id)
    assert marks[row.id] == [(job.id, job.status, job.moment) for job in rows]
    earlier = await store.schedules.fires(row.id, limit=2, before=clock.now)
    assert [job.id for job in earlier] == occurrences[1:3]
    assert (await read(store)).next_run_at == row.anchor + 11 * MINUTE

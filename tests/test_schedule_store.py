"""Schedules in the store: every occurrence becomes one job, whatever happens around it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pulsed.backoff import RetryPolicy
from pulsed.engine import scheduler
from pulsed.engine.scheduler import decide, template
from pulsed.errors import InvalidOption, ScheduleChanged, StorageError, TransientStorageError
from pulsed.job import Status, Succeeded, new_job_id
from pulsed.schedule import CatchUp, Overlap, ScheduleState, occurrence_id
from tests.support.faults import Fault, When
from tests.support.jobs import claim, claim_one, settle
from tests.support.schedules import (
    APP,
    HOUR,
    MINUTE,
    SECOND,
    a_spec,
    after_statements,
    all_jobs,
    decided,
    jobs_of,
    put,
    read,
    tick,
)

ACTIVE, PAUSED = ScheduleState.ACTIVE, ScheduleState.PAUSED
DONE, ERROR = ScheduleState.DONE, ScheduleState.ERROR


def occurrences(jobs: list[Any]) -> list[datetime]:
    return [job.occurrence for job in jobs]


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
    theirs = await store.put_schedule("other", "s", a_spec())
    assert theirs.effect == "created"
    assert theirs.row.id != mine.row.id
    assert [row.app for row in await store.list_schedules()] == [APP, "other"]
    assert await store.list_schedules("other") == [theirs.row]
    assert await store.get_schedule("nobody", "s") is None


async def test_what_would_never_run_is_refused_and_changes_nothing(store, clock):
    with pytest.raises(InvalidOption, match="never run"):
        await put(store, end=clock.after(30))
    assert await store.list_schedules() == []
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


# -- firing ---------------------------------------------------------------------------------------


async def test_nothing_is_fired_before_its_time(store, clock):
    await put(store)
    clock.advance(59.999_999)
    assert await tick(store) == []
    clock.advance(0.000_001)
    assert len(await tick(store)) == 1
    assert await tick(store) == []


async def test_a_fire_is_a_job_with_the_lineage_of_its_schedule(store, clock):
    row, _ = await put(
        store, queue="q", priority=4, max_attempts=9, timeout=5.0, headers={"h": "1"}, tags=("t",)
    )
    clock.advance(75)
    await tick(store)
    (job,) = await jobs_of(store)
    assert row.next_run_at is not None
    assert job.id == occurrence_id(row.id, row.next_run_at)
    assert (job.schedule_id, job.occurrence) == (row.id, row.next_run_at)
    assert (job.submitted_at, job.status) == (clock.now, Status.PENDING)
    assert (job.queue, job.priority, job.max_attempts, job.timeout) == ("q", 4, 9, 5.0)
    assert (job.headers, job.tags) == ({"h": "1"}, ("t",))
    after = await read(store)
    assert (after.last_occurrence, after.last_fired_at) == (row.next_run_at, clock.now)
    assert (after.next_run_at, after.revision) == (row.next_run_at + MINUTE, row.revision)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
async def test_a_cron_schedule_is_fired_at_its_instants(store, clock, zone):
    await put(store, cron="*/30 * * * *", zone=zone, catch_up=CatchUp.ALL)
    clock.advance(3 * 3600)
    await tick(store)
    expected = [datetime(2030, 1, 1, tzinfo=UTC) + n * 30 * MINUTE for n in range(1, 7)]
    assert occurrences(await jobs_of(store)) == expected


async def test_an_instant_in_the_past_is_due_at_once_and_then_it_is_done(store, clock):
    past = clock.after(-86_400 * 365)
    await put(store, at=past)
    (job,) = await tick(store)
    assert job.occurrence == past
    clock.advance(1)
    assert await tick(store) == []
    row = await read(store)
    assert (row.state, row.next_run_at, row.last_occurrence) == (DONE, None, past)
    (stored,) = await jobs_of(store)
    assert stored.occurrence == past
    (run,) = await claim(store)  # eligible now, not a year ago
    assert run.job_id == stored.id


@pytest.mark.parametrize(
    "catch_up, limit, fired, missed",
    [
        (CatchUp.ONE, None, [60], 59),
        (CatchUp.ALL, None, list(range(1, 61)), 0),
        (CatchUp.ALL, 5, list(range(56, 61)), 55),
        (CatchUp.SKIP, None, [60], 59),  # the last one is on time
    ],
)
async def test_an_outage_of_an_hour(store, clock, catch_up, limit, fired, missed):
    row, _ = await put(store, catch_up=catch_up, limit=limit)
    clock.advance(3600 + 7)
    await tick(store)
    expected = [row.anchor + n * MINUTE for n in fired]
    assert occurrences(await jobs_of(store)) == expected
    after = await read(store)
    assert after.missed == missed
    assert after.next_run_at == row.anchor + 61 * MINUTE  # the phase is kept
    clock.advance(60)
    (job,) = await tick(store)
    assert job.occurrence == row.anchor + 61 * MINUTE
    assert (await read(store)).missed == missed


async def test_skip_fires_nothing_that_is_late(store, clock):
    row, _ = await put(store, every=10 * MINUTE, catch_up=CatchUp.SKIP)
    clock.advance(3600 + 120)
    assert await tick(store) == []
    after = await read(store)
    assert after.missed == 6
    assert after.last_fired_at is None
    assert after.next_run_at == row.anchor + 70 * MINUTE


async def test_catching_up_goes_on_in_batches(store, clock, monkeypatch):
    monkeypatch.setattr(scheduler, "MOST_AT_A_TIME", 7)
    row, _ = await put(store, catch_up=CatchUp.ALL)
    clock.advance(3600)
    assert len(await tick(store)) == 60
    expected = [row.anchor + n * MINUTE for n in range(1, 61)]
    assert occurrences(await jobs_of(store)) == expected


async def test_two_schedulers_that_see_different_latest_occurrences_fire_one(store, clock):
    """One looked just before an instant and the other just after; both hold the same cursor."""
    await put(store)
    row = await read(store)
    early = decide(row, clock.after(3_600 - 1))
    late = decide(row, clock.after(3_600 + 1))
    assert early.plan.fire != late.plan.fire
    clock.advance(3_602)
    assert len(await store.fire([late])) == 1
    assert await store.fire([early]) == []
    after = await read(store)
    assert occurrences(await jobs_of(store)) == [row.anchor + HOUR]
    assert (after.last_occurrence, after.missed) == (row.anchor + HOUR, 59)


async def test_the_order_of_two_schedulers_does_not_matter(store, clock):
    await put(store)
    row = await read(store)
    early, late = decide(row, clock.after(3_599)), decide(row, clock.after(3_601))
    clock.advance(3_602)
    assert len(await store.fire([early])) == 1
    assert await store.fire([late]) == []
    (job,) = await tick(store)  # what came after the early one's look is due by itself
    assert job.occurrence == row.anchor + HOUR
    assert len(await jobs_of(store)) == 2
    assert (await read(store)).missed == 58


async def test_many_schedulers_at_once_fire_every_occurrence_once(backend, store, clock):
    for n in range(20):
        await put(store, f"s{n}", catch_up=CatchUp.ALL)
    clock.advance(600)
    rivals = [backend.open() for _ in range(5)]
    made = await asyncio.gather(*map(tick, rivals))
    for rival in rivals:
        await rival.aclose()
    assert sum(map(len, made)) == 200
    stored = await all_jobs(store)
    assert len({(job.schedule_id, job.occurrence) for job in stored}) == len(stored) == 200


@pytest.mark.parametrize("kind", ["interval", "cron"])
async def test_nothing_follows_the_end(store, clock, kind):
    when: Any = {"every": MINUTE} if kind == "interval" else {"cron": "* * * * *"}
    await put(store, **when, end=clock.after(120), catch_up=CatchUp.ALL)
    clock.advance(3600)
    assert len(await tick(store)) == 2
    row = await read(store)
    assert (row.state, row.next_run_at) == (DONE, None)


async def test_a_start_in_the_future_is_the_first_occurrence(store, clock):
    start = clock.after(1000)
    await put(store, start=start)
    clock.advance(999)
    assert await tick(store) == []
    clock.advance(1)
    (job,) = await tick(store)
    assert job.occurrence == start


async def test_jobs_are_eligible_after_their_spread(store, clock):
    for n in range(20):
        await put(store, f"s{n}", jitter=50.0)
    clock.advance(60)
    jobs = {job.id: job for job in await tick(store)}
    due = clock.now
    for stored in await all_jobs(store):
        job = jobs[stored.id]
        assert job.occurrence == due
        assert stored.next_run_at == job.at
        assert due <= stored.next_run_at <= due + 50 * SECOND
    assert len({job.at for job in jobs.values()}) > 10


# -- overlap --------------------------------------------------------------------------------------


async def test_overlap_skip_passes_over_while_a_job_has_not_ended(store, clock):
    await put(store, overlap=Overlap.SKIP)
    clock.advance(60)
    assert len(await tick(store)) == 1
    clock.advance(60)
    assert await tick(store) == []
    run = await claim_one(store)
    clock.advance(60)
    assert await tick(store) == []
    row = await read(store)
    assert (row.missed, row.next_run_at, row.last_occurrence) == (2, clock.after(60), clock.now)
    assert row.last_fired_at == clock.after(-120)
    await settle(store, run, Succeeded())
    clock.advance(60)
    (job,) = await tick(store)
    assert job.occurrence == clock.now


async def test_overlap_skip_and_catch_up_all_make_one_job(store, clock):
    await put(store, overlap=Overlap.SKIP, catch_up=CatchUp.ALL)
    clock.advance(600)
    (job,) = await tick(store)
    assert job.occurrence == clock.now
    assert (await read(store)).missed == 9


async def test_overlap_looks_at_the_jobs_of_its_own_schedule_only(store, clock):
    await put(store, "other")
    await put(store, "careful", overlap=Overlap.SKIP)
    clock.advance(60)
    assert len(await tick(store)) == 2
    await store.cancel([job.id for job in await jobs_of(store, "careful")])
    clock.advance(60)
    assert len(await tick(store)) == 2


# -- pausing, resuming, deleting ------------------------------------------------------------------


async def test_a_paused_schedule_is_not_fired_and_goes_on_with_what_is_to_come(store, clock):
    row, _ = await put(store, catch_up=CatchUp.ALL)
    clock.advance(90)  # due when it is paused
    paused = await store.pause_schedule(APP, "s")
    assert (paused.state, paused.next_run_at) == (PAUSED, row.next_run_at)
    assert await store.pause_schedule(APP, "s") == paused
    clock.advance(600)
    assert await tick(store) == []
    resumed = await store.resume_schedule(APP, "s")
    assert (resumed.state, resumed.missed) == (ACTIVE, 0)
    assert resumed.next_run_at == row.anchor + 12 * MINUTE  # in phase, later than now
    assert await store.resume_schedule(APP, "s") == resumed
    assert await tick(store) == []
    clock.advance(30)
    assert len(await tick(store)) == 1


async def test_an_edit_of_a_paused_schedule_leaves_it_paused(store, clock):
    await put(store)
    await store.pause_schedule(APP, "s")
    row, _ = await put(store, every=5 * MINUTE)
    assert row.state is PAUSED
    clock.advance(3600)
    assert await tick(store) == []


async def test_an_instant_that_passed_during_a_pause_is_due_on_resume(store, clock):
    await put(store, at=clock.after(60))
    await store.pause_schedule(APP, "s")
    clock.advance(3600)
    await store.resume_schedule(APP, "s")
    assert len(await tick(store)) == 1


async def test_resuming_after_the_end_is_the_end(store, clock):
    await put(store, end=clock.after(120))
    await store.pause_schedule(APP, "s")
    clock.advance(600)
    row = await store.resume_schedule(APP, "s")
    assert (row.state, row.next_run_at) == (DONE, None)
    assert await store.resume_schedule(APP, "s") == row
    assert await store.pause_schedule(APP, "s") == row


async def test_acts_on_a_schedule_that_is_not_there(store):
    assert await store.pause_schedule(APP, "s") is None
    assert await store.resume_schedule(APP, "s") is None
    assert await store.delete_schedule(APP, "s") is False


async def test_a_deleted_schedule_leaves_its_jobs_and_a_new_one_is_another(store, clock):
    old, _ = await put(store)
    clock.advance(60)
    await tick(store)
    assert await store.delete_schedule(APP, "s") is True
    assert await store.get_schedule(APP, "s") is None
    assert [job.schedule_id for job in await all_jobs(store)] == [old.id]
    new, effect = await put(store)
    assert (effect, new.id != old.id) == ("created", True)
    assert await jobs_of(store) == []


# -- a clock that goes back -----------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", list(CatchUp))
async def test_the_cursor_never_moves_back_when_the_clock_does(store, clock, catch_up):
    await put(store, catch_up=catch_up)
    clock.advance(3600)
    await tick(store)
    row, jobs = await read(store), await jobs_of(store)
    clock.advance(-1800)
    for _ in range(5):
        assert await tick(store) == []
        clock.advance(300)
    assert await read(store) == row
    clock.advance(400)
    await tick(store)
    fired = occurrences(await jobs_of(store))
    assert len(fired) == len(set(fired)) > len(jobs)
    assert fired == sorted(fired)


@pytest.mark.parametrize("act", ["edit", "resume", "edit to cron"])
async def test_no_act_moves_the_cursor_before_what_was_fired(store, clock, act):
    await put(store)
    clock.advance(3600)
    await tick(store)
    fired = (await read(store)).last_occurrence
    clock.advance(-7200)
    if act == "resume":
        await store.pause_schedule(APP, "s")
        row = await store.resume_schedule(APP, "s")
    elif act == "edit":
        row = (await put(store, every=7 * SECOND)).row
    else:
        row = (await put(store, cron="* * * * *")).row
    assert row.next_run_at > fired


async def test_a_plan_made_before_the_clock_went_back_changes_nothing_after(store, clock):
    await put(store, catch_up=CatchUp.ALL)
    clock.advance(600)
    stale = await decided(store)
    await tick(store)
    before = await read(store)
    clock.advance(-300)
    assert await store.fire([stale]) == []
    assert await read(store) == before


# -- what cannot be fired -------------------------------------------------------------------------

BROKEN = {
    "no json at all": '"nonsense"',
    "another type": '{"topic":5,"payload":"{}","every":60000000}',
    "no timetable": '{"topic":"t","payload":"{}"}',
    "unknown zone": '{"topic":"t","payload":"{}","cron":"* * * * *","zone":"Mars/Base"}',
    "bad cron": '{"topic":"t","payload":"{}","cron":"99 * * * *"}',
    "huge priority": '{"topic":"t","payload":"{}","every":60000000,"priority":1e30}',
    "large priority": json.dumps(
        {"topic": "t", "payload": "{}", "every": 60_000_000, "priority": 2**63}
    ),
    "endless jitter": '{"topic":"t","payload":"{}","every":60000000,"jitter":1e300}',
    "interval of nothing": '{"topic":"t","payload":"{}","every":0}',
}


def break_spec(backend: Any, name: str, text: str) -> None:
    backend.execute(f"UPDATE pulse_schedules SET spec = '{text}' WHERE name = '{name}'")


@pytest.mark.parametrize("why", list(BROKEN))
async def test_a_broken_schedule_is_parked_with_its_reason_and_the_others_go_on(
    store, backend, clock, why
):
    await put(store, "broken")
    await put(store, "good")
    break_spec(backend, "broken", BROKEN[why])
    clock.advance(61)
    (job,) = await tick(store)
    assert job.schedule_id == (await read(store, "good")).id
    row = await read(store, "broken")
    assert row.state is ERROR
    assert row.error
    assert row.next_run_at == clock.after(-1)
    assert await tick(store) == []


async def test_an_edit_heals_and_keeps_the_due_occurrence_if_the_times_are_the_same(store, clock):
    await put(store)
    clock.advance(61)
    await store.park_schedule(await read(store), "because")
    row = await read(store)
    assert (row.state, row.error) == (ERROR, "because")
    healed, _ = await put(store, payload='{"n":1}')
    assert (healed.state, healed.error) == (ACTIVE, None)
    assert len(await tick(store)) == 1


async def test_an_edit_heals_a_spec_that_cannot_be_read(store, backend, clock):
    await put(store)
    break_spec(backend, "s", BROKEN["another type"])
    clock.advance(61)
    await tick(store)
    with pytest.raises(InvalidOption):
        await store.resume_schedule(APP, "s")
    row, effect = await put(store)
    assert (row.state, row.error, effect) == (ACTIVE, None, "changed")
    clock.advance(60)
    assert len(await tick(store)) == 1


async def test_resume_heals(store, clock):
    await put(store)
    clock.advance(61)
    await store.park_schedule(await read(store), "because")
    row = await store.resume_schedule(APP, "s")
    assert (row.state, row.error, row.next_run_at) == (ACTIVE, None, clock.after(59))


async def test_a_schedule_that_changed_meanwhile_is_not_parked(store, clock):
    await put(store)
    clock.advance(61)
    stale = await read(store)
    await put(store, payload='{"n":1}')
    await store.park_schedule(stale, "too late")
    assert (await read(store)).state is ACTIVE


async def test_a_schedule_that_another_has_fired_is_not_parked(store, clock):
    await put(store)
    clock.advance(61)
    stale = await read(store)
    await tick(store)
    before = await read(store)
    await store.park_schedule(stale, "I could not")
    assert await read(store) == before


# -- changing what was seen -----------------------------------------------------------------------


async def test_a_version_is_changed_once(store, clock):
    seen = (await put(store)).row.version
    clock.advance(61)
    await tick(store)
    changed = await store.put_schedule(APP, "s", a_spec(priority=7), seen=seen)  # a fire is none
    assert (changed.effect, changed.row.spec.priority) == ("changed", 7)
    with pytest.raises(ScheduleChanged, match="'s' of app"):
        await store.put_schedule(APP, "s", a_spec(priority=8), seen=seen)
    assert await read(store) == changed.row


@pytest.mark.parametrize("act", ["pause_schedule", "resume_schedule"])
async def test_a_version_ends_with_a_pause_and_with_a_resume(store, act):
    await put(store)
    seen = (await store.pause_schedule(APP, "s")).version
    if act == "pause_schedule":
        seen = (await store.resume_schedule(APP, "s")).version
    row = await getattr(store, act)(APP, "s")
    with pytest.raises(ScheduleChanged):
        await store.put_schedule(APP, "s", a_spec(priority=7), seen=seen)
    assert await read(store) == row


async def test_a_schedule_that_was_deleted_meanwhile_is_not_made_again(store):
    seen = (await put(store)).row.version
    await store.delete_schedule(APP, "s")
    with pytest.raises(ScheduleChanged, match="deleted"):
        await store.put_schedule(APP, "s", a_spec(priority=7), seen=seen)
    assert await store.get_schedule(APP, "s") is None


# -- reading --------------------------------------------------------------------------------------


async def test_what_is_due_comes_with_the_longest_waiting_first(store, clock):
    for name, seconds in (("b", 20), ("a", 30), ("c", 10)):
        await put(store, name, every=seconds * SECOND)
    await put(store, "paused", every=SECOND)
    await store.pause_schedule(APP, "paused")
    due = await store.due_schedules(10)
    assert (due.rows, due.next_run_at, due.now) == ([], clock.after(10), clock.now)
    clock.advance(25)
    due = await store.due_schedules(10)
    assert [row.name for row in due.rows] == ["c", "b"]
    assert [row.name for row in (await store.due_schedules(1)).rows] == ["c"]


async def test_without_schedules_nothing_is_next(store):
    assert (await store.due_schedules(10)).next_run_at is None


async def out_of_turn(store, row) -> UUID:
    job = template(row, new_job_id())
    await store.submit([job])
    return job.id


async def in_pages(store, row, limit: int) -> list[UUID]:
    found: list[UUID] = []
    page = await store.fires(row.id, limit=limit)
    while page:
        assert len(page) <= limit
        found += [job.id for job in page]
        last = page[-1]
        page = await store.fires(row.id, limit=limit, before=last.moment, before_id=last.id)
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
    earlier = await store.fires(row.id, limit=2, before=clock.now)
    assert [job.id for job in earlier] == occurrences[1:3]
    assert (await read(store)).next_run_at == row.anchor + 11 * MINUTE


# -- the same id everywhere -----------------------------------------------------------------------

SCHEDULE = UUID("0192f0c1-2345-7abc-8def-0123456789ab")
GOLDEN = "b31ebb40-5472-5e63-99d3-df2d27bbf769"


async def test_the_id_of_an_occurrence_is_the_same_to_the_byte_on_every_engine(
    store, backend, clock
):
    await put(store, cron="0 * * * *")
    backend.execute(f"UPDATE pulse_schedules SET id = {backend.literal(SCHEDULE)}")
    clock.advance(3600)
    (job,) = await tick(store)
    assert job.occurrence == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert str(job.id) == GOLDEN
    raw = backend.row(job.id)["id"]
    assert (raw if isinstance(raw, bytes) else raw.bytes) == UUID(GOLDEN).bytes


# -- a crash between any two statements -----------------------------------------------------------


class CrashError(TransientStorageError):
    """The process ends here."""


def crash() -> None:
    raise CrashError("the process died")


@pytest.mark.embedded("stops transactions half way")
@pytest.mark.parametrize("overlap", list(Overlap))
async def test_a_crash_between_any_two_statements_of_a_fire(backend, store, clock, overlap):
    """Whatever statement the process does not reach, the next one fires each occurrence once."""
    await put(store, catch_up=CatchUp.ALL, overlap=overlap)
    statements = 3 if overlap is Overlap.SKIP else 2
    for number in range(statements + 1):
        clock.advance(180)
        before, there = await read(store), await all_jobs(store)
        dying = backend.open(retry=RetryPolicy.disabled())
        after_statements(dying, "fire", number, crash)
        with pytest.raises(CrashError):
            await tick(dying)
        await dying.aclose()
        assert await read(store) == before
        assert await all_jobs(store) == there
        made = await tick(store)
        assert len(made) == (1 if overlap is Overlap.SKIP else 3)
        await store.cancel([job.id for job in made])
    fired = occurrences(await jobs_of(store))
    assert len(set(fired)) == len(fired) == (statements + 1) * (1 if statements == 3 else 3)


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_connection_lost_between_statements_is_retried(store, clock, number):
    await put(store, catch_up=CatchUp.ALL)
    clock.advance(180)
    after_statements(store, "fire", number, crash)
    assert len(await tick(store)) == 3
    assert len(await jobs_of(store)) == 3


# -- an answer that got lost ----------------------------------------------------------------------


@pytest.fixture(params=["before", "after"])
def when(request) -> When:
    value: When = request.param
    return value


@pytest.fixture(params=[1, 2], ids=["once", "twice"])
def times(request) -> int:
    count: int = request.param
    return count


async def test_an_ambiguous_put_of_a_new_schedule(store, when, times):
    fault = Fault(store, "put_schedule", when, times)
    row, effect = await put(store)
    assert (fault.hits, effect, row.revision) == (times, "created", 0)
    assert await store.list_schedules() == [row]


async def test_an_ambiguous_put_of_a_changed_schedule(store, when, times):
    await put(store)
    fault = Fault(store, "put_schedule", when, times)
    row, effect = await put(store, every=5 * MINUTE)
    assert (fault.hits, effect, row.revision) == (times, "changed", 1)
    assert await read(store) == row


async def test_an_ambiguous_change_of_a_version(store, when, times):
    seen = (await put(store)).row.version
    fault = Fault(store, "put_schedule", when, times)
    row, effect = await store.put_schedule(APP, "s", a_spec(priority=7), seen=seen)
    assert (fault.hits, effect, row.revision) == (times, "changed", 1)


async def test_an_ambiguous_put_of_an_unchanged_schedule(store, when, times):
    first, _ = await put(store)
    Fault(store, "put_schedule", when, times)
    assert await put(store) == (first, "unchanged")


async def test_an_ambiguous_pause_and_resume(store, when, times):
    await put(store)
    Fault(store, "pause_schedule", when, times)
    paused = await store.pause_schedule(APP, "s")
    assert (paused.state, paused.revision) == (PAUSED, 1)
    Fault(store, "resume_schedule", when, times)
    resumed = await store.resume_schedule(APP, "s")
    assert (resumed.state, resumed.revision) == (ACTIVE, 2)


async def test_an_ambiguous_delete(store, when, times):
    await put(store)
    Fault(store, "delete_schedule", when, times)
    assert await store.delete_schedule(APP, "s") is True
    assert await store.list_schedules() == []
    assert await store.delete_schedule(APP, "s") is False


async def test_an_ambiguous_fire(store, clock, when, times):
    await put(store, catch_up=CatchUp.ALL)
    clock.advance(180)
    fault = Fault(store, "fire", when, times)
    await tick(store)
    assert fault.hits == times
    assert len(await jobs_of(store)) == 3
    row = await read(store)
    assert (row.next_run_at, row.missed) == (clock.after(60), 0)


async def test_an_ambiguous_park(store, when, times):
    await put(store)
    Fault(store, "park_schedule", when, times)
    await store.park_schedule(await read(store), "because")
    row = await read(store)
    assert (row.state, row.error, row.revision) == (ERROR, "because", 1)


# -- what the table itself refuses ----------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "next_run_at = last_occurrence",
        "next_run_at = NULL",
        "state = 'ASLEEP'",
    ],
)
async def test_the_table_refuses_a_row_that_makes_no_sense(store, backend, clock, change):
    await put(store)
    clock.advance(60)
    await tick(store)
    with pytest.raises(Exception, match=r"(?i)constraint"):
        backend.execute(f"UPDATE pulse_schedules SET {change}")


async def test_the_table_refuses_two_jobs_of_one_occurrence(store, backend, clock):
    await put(store)
    clock.advance(60)
    await tick(store)
    await put(store, "other")
    clock.advance(60)
    await tick(store)
    with pytest.raises(Exception, match=r"(?i)unique"):
        backend.execute(
            "UPDATE pulse_jobs SET (schedule_id, occurrence) = "
            "(SELECT schedule_id, occurrence FROM pulse_jobs ORDER BY occurrence LIMIT 1)"
        )


@pytest.mark.embedded("a caller's transaction is not the server's")
async def test_a_fire_inside_a_callers_transaction_is_refused(store, backend, clock):
    await put(store)
    with backend.connect() as connection, pytest.raises(StorageError, match="only submit"):
        await store.joined(connection).fire([await decided(store)])

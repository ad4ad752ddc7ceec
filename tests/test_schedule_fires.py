"""Every occurrence becomes one job, whichever worker fires it and whatever the clock does."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from pulsed.batches import TRANSACTION
from pulsed.engine.doctor.finding import Severity
from pulsed.engine.doctor.schedules import check_schedules
from pulsed.engine.state_reads import StateReads
from pulsed.engine.upkeep import scheduler
from pulsed.engine.upkeep.scheduler import decide
from pulsed.model.job import Status
from pulsed.model.outcome import Succeeded
from pulsed.model.schedule import CatchUp, Overlap, occurrence_id
from pulsed.store.schedules import Fire
from tests.support.jobs import claim, claim_one, settle
from tests.support.schedules import (
    APP,
    DONE,
    HOUR,
    MINUTE,
    SECOND,
    all_jobs,
    decided,
    jobs_of,
    occurrences,
    put,
    read,
    tick,
)

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
    """One polled just before an instant and the other just after; both hold the same cursor."""
    await put(store)
    row = await read(store)
    early = decide(row, clock.after(3_600 - 1))
    late = decide(row, clock.after(3_600 + 1))
    assert early.plan.fire != late.plan.fire
    clock.advance(3_602)
    assert len(await store.schedules.fire([late])) == 1
    assert await store.schedules.fire([early]) == []
    after = await read(store)
    assert occurrences(await jobs_of(store)) == [row.anchor + HOUR]
    assert (after.last_occurrence, after.missed) == (row.anchor + HOUR, 59)


async def test_the_order_of_two_schedulers_does_not_matter(store, clock):
    await put(store)
    row = await read(store)
    early, late = decide(row, clock.after(3_599)), decide(row, clock.after(3_601))
    clock.advance(3_602)
    assert len(await store.schedules.fire([early])) == 1
    assert await store.schedules.fire([late]) == []
    (job,) = await tick(store)  # what came after the early one's poll is due by itself
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
        await store.schedules.pause(APP, "s")
        row = await store.schedules.resume(APP, "s")
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
    assert await store.schedules.fire([stale]) == []
    assert await read(store) == before


# -- the same id everywhere -----------------------------------------------------------------------


SCHEDULE = UUID("0192f0c1-2345-7abc-8def-0123456789ab")
GOLDEN = "01b8dafc-a280-831e-bb40-5472be6399d3"


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


async def test_catching_up_writes_many_small_transactions(store, clock, monkeypatch):
    """Everything else in the process, heartbeats first, has its turn between two of them."""
    monkeypatch.setattr(scheduler, "MOST_AT_A_TIME", 50)
    for number in range(12):
        await put(store, f"s{number}", every=MINUTE, catch_up=CatchUp.ALL)
    clock.advance(120 * 60)
    written, fire = [], store.schedules.fire

    async def watched(fires: list[Fire]) -> Any:
        written.append([job for each in fires for job in each.jobs])
        return await fire(fires)

    store.schedules.fire = watched
    made = await tick(store)
    assert len(made) == 12 * 120
    assert max(map(len, written)) <= TRANSACTION.items
    for number in range(12):
        assert len(await jobs_of(store, f"s{number}")) == 120


async def test_large_jobs_of_schedules_are_written_a_few_at_a_time(store, clock):
    payload = json.dumps({"text": "x" * 1_000_000})
    await put(store, "large", every=MINUTE, catch_up=CatchUp.ALL, payload=payload)
    await put(store, "also", every=MINUTE, catch_up=CatchUp.ALL, payload=payload)
    clock.advance(6 * 60)
    written, fire = [], store.schedules.fire

    async def watched(fires: list[Fire]) -> Any:
        written.append(sum(len(job.payload) for each in fires for job in each.jobs))
        return await fire(fires)

    store.schedules.fire = watched
    assert len(await tick(store)) == 12
    assert max(written) <= TRANSACTION.bytes


async def test_while_the_clock_is_set_back_nothing_is_fired_twice_and_doctor_says_why(store, clock):
    await put(store)
    clock.advance(60)
    assert len(await tick(store)) == 1
    assert {finding.level for finding in await check_schedules(store, StateReads(store))} == {
        Severity.OK
    }
    clock.advance(-3600)
    assert await tick(store) == []
    (finding,) = await check_schedules(store, StateReads(store))
    assert (finding.level, finding.check) == (Severity.WARN, "schedules and clock")
    assert "60 min in the future" in finding.detail
    clock.advance(3660)
    assert len(await tick(store)) == 1
    assert {finding.level for finding in await check_schedules(store, StateReads(store))} == {
        Severity.OK
    }

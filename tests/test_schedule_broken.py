"""A schedule that cannot be fired is put aside with its reason, and goes on once it is mended."""

from __future__ import annotations

import json
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pulsed.engine.doctor import schedules
from pulsed.engine.doctor.finding import Severity
from pulsed.engine.doctor.schedules import check_schedules
from pulsed.engine.state_reads import StateReads
from pulsed.engine.upkeep.scheduler import Scheduler
from pulsed.errors import InvalidOption, UnknownZone
from pulsed.model import timetable
from tests.support.schedules import ACTIVE, APP, ERROR, put, read, tick

BROKEN = {
    "no json at all": '"nonsense"',
    "another type": '{"topic":5,"payload":"{}","every":60000000}',
    "no timetable": '{"topic":"t","payload":"{}"}',
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
    await store.schedules.set_error(await read(store), "because")
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
        await store.schedules.resume(APP, "s")
    row, effect = await put(store)
    assert (row.state, row.error, effect) == (ACTIVE, None, "changed")
    clock.advance(60)
    assert len(await tick(store)) == 1


async def test_resume_heals(store, clock):
    await put(store)
    clock.advance(61)
    await store.schedules.set_error(await read(store), "because")
    row = await store.schedules.resume(APP, "s")
    assert (row.state, row.error, row.next_run_at) == (ACTIVE, None, clock.after(59))


async def test_a_schedule_that_changed_meanwhile_is_not_parked(store, clock):
    await put(store)
    clock.advance(61)
    stale = await read(store)
    await put(store, payload='{"n":1}')
    await store.schedules.set_error(stale, "too late")
    assert (await read(store)).state is ACTIVE


async def test_a_schedule_that_another_has_fired_is_not_parked(store, clock):
    await put(store)
    clock.advance(61)
    stale = await read(store)
    await tick(store)
    before = await read(store)
    await store.schedules.set_error(stale, "I could not")
    assert await read(store) == before


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


# -- a machine that does not know a time zone -----------------------------------------------------


def with_old_tzdata(monkeypatch: pytest.MonkeyPatch, *unknown: str) -> None:
    """Let this machine know all zones but these."""

    def zone_of(name: str) -> ZoneInfo:
        if name in unknown:
            raise UnknownZone(f"There is no time zone {name!r} on this machine.")
        return ZoneInfo(name)

    for module in (timetable, schedules):
        monkeypatch.setattr(module, "zone_of", zone_of)


async def test_a_machine_that_does_not_know_a_zone_leaves_the_schedule_to_others(
    store, clock, monkeypatch, caplog
):
    await put(store, "kyiv", cron="* * * * *", zone="Europe/Kyiv")
    await put(store, "good")
    clock.advance(61)
    scheduler = Scheduler(store)
    with monkeypatch.context() as old_machine:
        with_old_tzdata(old_machine, "Europe/Kyiv")
        (job,) = await scheduler.tick()
        assert job.schedule_id == (await read(store, "good")).id
        assert await scheduler.tick() == []
        row = await read(store, "kyiv")
        assert (row.state, row.error) == (ACTIVE, None)
        assert caplog.text.count("schedule kyiv of default is left to other machines") == 1
    (job,) = await tick(store)  # on a machine with newer data
    assert job.schedule_id == row.id


async def test_schedules_left_to_others_hold_up_nothing(store, clock, monkeypatch):
    """They affect neither the batch that is read nor the time until the next poll."""
    monkeypatch.setattr("pulsed.engine.upkeep.scheduler.BATCH", 2)
    for number in range(5):
        await put(store, f"kyiv{number}", cron="* * * * *", zone="Europe/Kyiv")
    clock.advance(1)
    for number in range(3):
        await put(store, f"good{number}")
    clock.advance(61)
    with_old_tzdata(monkeypatch, "Europe/Kyiv")
    scheduler = Scheduler(store)
    assert len(await scheduler.tick()) == 3
    assert scheduler._until_next == 59.0


async def test_a_doctor_names_the_zones_that_its_machine_does_not_know(store, clock, monkeypatch):
    for name, zone in {"kyiv": "Europe/Kyiv", "oslo": "Europe/Oslo"}.items():
        await put(store, name, cron="* * * * *", zone=zone)
    assert [each.level for each in await check_schedules(store, StateReads(store))] == [Severity.OK]
    with_old_tzdata(monkeypatch, "Europe/Kyiv")
    (lacking,) = await check_schedules(store, StateReads(store))
    assert (lacking.check, lacking.level) == ("time zones", Severity.WARN)
    assert "'Europe/Kyiv', the zone of 'kyiv' of 'default'" in lacking.detail
    clock.advance(600)
    assert [each.check for each in await check_schedules(store, StateReads(store))] == [
        "overdue schedules",
        "time zones",
    ]

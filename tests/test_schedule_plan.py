"""What a due schedule does: which occurrences become jobs, what is passed over, what comes next."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import UUID

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsed.engine.upkeep.scheduler import decide, job_of
from pulsed.model.ids import new_job_id
from pulsed.model.schedule import (
    NAMESPACE,
    ON_TIME,
    CatchUp,
    Plan,
    ScheduleRow,
    ScheduleSpec,
    ScheduleState,
    occurrence_id,
    plan,
)
from pulsed.model.timetable import (
    EPOCH,
    Cron,
    Every,
    Once,
    Timetable,
    latest_until,
    next_after,
    upcoming,
)
from pulsed.store.verbs.schedules import encode_spec

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
MINUTELY = Every(MINUTE)
CRON = Cron("*/5 * * * *", "Europe/Berlin")


def from_noon(*minutes: int) -> list[datetime]:
    return [NOON + n * MINUTE for n in minutes]


# -- an hour's outage -----------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 1, 59])
@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_what_is_due_on_time_is_fired_whatever_the_policy(catch_up, late):
    found = plan(MINUTELY, NOON, NOON + late * SECOND, anchor=NOON, catch_up=catch_up)
    assert found == Plan([NOON], 0, NOON + MINUTE)


def test_one_makes_up_for_an_outage_with_the_latest_occurrence():
    now = NOON + HOUR + 5 * SECOND
    assert plan(MINUTELY, NOON, now, anchor=NOON) == Plan(from_noon(60), 60, NOON + 61 * MINUTE)


def test_skip_passes_over_all_that_is_later_than_a_minute():
    hourly = Every(HOUR)
    now = NOON + 3 * HOUR + ON_TIME
    on_time = plan(hourly, NOON, now, anchor=NOON, catch_up=CatchUp.SKIP)
    assert on_time == Plan([NOON + 3 * HOUR], 3, NOON + 4 * HOUR)
    late = plan(hourly, NOON, now + SECOND, anchor=NOON, catch_up=CatchUp.SKIP)
    assert late == Plan([], 4, NOON + 4 * HOUR)


def test_all_fires_every_occurrence_of_an_outage():
    now = NOON + HOUR + 5 * SECOND
    found = plan(MINUTELY, NOON, now, anchor=NOON, catch_up=CatchUp.ALL)
    assert found == Plan(from_noon(*range(61)), 0, NOON + 61 * MINUTE)


def test_all_with_a_limit_fires_the_latest_ones():
    now = NOON + HOUR + 5 * SECOND
    found = plan(MINUTELY, NOON, now, anchor=NOON, catch_up=CatchUp.ALL, limit=3)
    assert found == Plan(from_noon(58, 59, 60), 58, NOON + 61 * MINUTE)


def test_all_goes_on_where_it_stopped_until_it_has_caught_up():
    now, cursor, fired = NOON + HOUR, NOON, []
    while cursor <= now:
        found = plan(MINUTELY, cursor, now, anchor=NOON, catch_up=CatchUp.ALL, most=7)
        assert len(found.fire) <= 7
        assert found.missed == 0
        assert found.next is not None
        fired += found.fire
        cursor = found.next
    assert fired == from_noon(*range(61))


@pytest.mark.parametrize(
    "timetable, days",
    [(Every(SECOND), 1), (Cron("* * * * *"), 30), (Cron("*/2 * * * *", "Europe/Berlin"), 30)],
)
def test_a_limit_holds_however_long_the_outage_was(timetable, days):
    first = next_after(timetable, NOON, anchor=NOON)
    assert first is not None
    now = NOON + timedelta(days=days)
    found = plan(timetable, first, now, anchor=NOON, catch_up=CatchUp.ALL, limit=5)
    latest = latest_until(timetable, now, anchor=NOON)
    assert len(found.fire) == 5
    assert found.fire[-1] == latest
    everything = list(upcoming(timetable, NOON, anchor=NOON, end=now))
    assert found.missed == len(everything) - 5
    assert found.next is not None
    assert found.next > now


def test_a_limit_and_a_batch_together_fire_no_more_than_the_limit():
    now, cursor, fired, missed = NOON + HOUR, NOON, [], 0
    while cursor <= now:
        found = plan(MINUTELY, cursor, now, anchor=NOON, catch_up=CatchUp.ALL, limit=10, most=4)
        assert found.next is not None
        fired += found.fire
        missed += found.missed
        cursor = found.next
    assert fired == from_noon(*range(51, 61))
    assert missed == 51


def test_what_is_missed_is_counted_however_much_it_is():
    found = plan(Cron("* * * * *"), NOON, NOON + timedelta(days=30), anchor=NOON)
    assert found.missed == 30 * 24 * 60
    exact = plan(Every(SECOND), NOON, NOON + timedelta(days=30), anchor=NOON)
    assert exact.missed == 30 * 86_400


def test_a_year_of_missed_minutes_is_counted_without_going_through_them(monkeypatch):
    """Going through them would hold up everything else in the process for as long."""
    seen = 0
    following = CronSim.__next__

    def counted(self: CronSim) -> datetime:
        nonlocal seen
        seen += 1
        return following(self)

    monkeypatch.setattr(CronSim, "__next__", counted)
    minutely, now = Cron("* * * * *", "Europe/Berlin"), NOON + timedelta(days=365)
    assert plan(minutely, NOON, now, anchor=NOON).missed == 365 * 24 * 60
    latest = plan(minutely, NOON, now, anchor=NOON, catch_up=CatchUp.ALL, limit=10_000, most=10)
    assert latest.fire[0] == now - 9_999 * MINUTE
    assert latest.missed == 365 * 24 * 60 - 9_999
    assert seen < 20_000  # of a million; those of the days on which the clocks change


# -- ends, instants, clocks -----------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", [CatchUp.ONE, CatchUp.ALL])
def test_nothing_follows_the_end(catch_up):
    end = NOON + 2 * MINUTE
    found = plan(MINUTELY, NOON, NOON + HOUR, anchor=NOON, end=end, catch_up=catch_up)
    assert found.fire[-1] == end
    assert found.next is None
    assert len(found.fire) + found.missed == 3
    on_time = plan(MINUTELY, NOON + MINUTE, NOON + MINUTE, anchor=NOON, end=end, catch_up=catch_up)
    assert on_time == Plan([NOON + MINUTE], 0, end)


def test_skip_after_the_end_passes_over_the_rest():
    end = NOON + 2 * MINUTE
    found = plan(MINUTELY, NOON, NOON + HOUR, anchor=NOON, end=end, catch_up=CatchUp.SKIP)
    assert found == Plan([], 3, None)


@pytest.mark.parametrize("catch_up", [CatchUp.ONE, CatchUp.ALL])
@pytest.mark.parametrize("limit", [None, 1])
def test_an_instant_is_fired_once_however_late(catch_up, limit):
    found = plan(Once(NOON), NOON, NOON + 50 * HOUR, anchor=EPOCH, catch_up=catch_up, limit=limit)
    assert found == Plan([NOON], 0, None)


@pytest.mark.parametrize("timetable", [MINUTELY, CRON])
@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_clock_that_went_back_does_not_move_the_cursor_back(timetable, catch_up):
    found = plan(timetable, NOON, NOON - HOUR, anchor=NOON - HOUR, catch_up=catch_up)
    assert found.fire == [NOON]
    assert found.next == next_after(timetable, NOON, anchor=NOON - HOUR)


def test_an_interval_does_not_drift():
    """Polled late, every time by another amount, it keeps its phase."""
    cursor, now = NOON + MINUTE, NOON
    for late in (0, 1, 59, 61, 3_599, 3_600, 86_399):
        now = cursor + late * SECOND
        found = plan(MINUTELY, cursor, now, anchor=NOON)
        assert found.next is not None
        assert now < found.next <= now + MINUTE
        assert (found.next - NOON) % MINUTE == timedelta(0)
        cursor = found.next


# -- a plan is what upcoming says, split up --------------------------------------------------------

TIMETABLES = st.sampled_from(
    [
        MINUTELY,
        Every(timedelta(seconds=97.5)),
        CRON,
        Cron("30 2 * * *", "Europe/Berlin"),
        Cron("0 * * * *", "Australia/Lord_Howe"),
        Cron("*/15 1-3 * * *", "America/New_York"),
    ]
)
STARTS = st.sampled_from(
    [
        NOON,
        datetime(2026, 3, 28, 20, tzinfo=UTC),
        datetime(2026, 10, 24, 20, tzinfo=UTC),
        datetime(2026, 10, 31, 20, tzinfo=UTC),
    ]
)


@settings(max_examples=150)
@given(
    TIMETABLES,
    STARTS,
    st.integers(0, 30 * 3_600),
    st.sampled_from(list(CatchUp)),
    st.one_of(st.none(), st.integers(1, 200)),
    st.one_of(st.none(), st.integers(0, 30 * 3_600)),
)
def test_a_plan_is_the_occurrences_split_up(timetable, start, late, catch_up, limit, lasting):
    cursor = next_after(timetable, start, anchor=start)
    assert cursor is not None
    now = cursor + late * SECOND
    end = None if lasting is None else cursor + lasting * SECOND
    found = plan(
        timetable, cursor, now, anchor=start, end=end, catch_up=catch_up, limit=limit, most=10**6
    )
    due = [cursor, *upcoming(timetable, cursor, anchor=start, end=min(now, end or now))]
    following = next(upcoming(timetable, max(due[-1], now), anchor=start, end=end), None)
    assert len(found.fire) + found.missed == len(due)
    assert found.next == following
    if catch_up is CatchUp.ALL:
        assert found.fire == due[-(limit or len(due)) :]
    elif catch_up is CatchUp.SKIP and now - due[-1] > ON_TIME:
        assert found.fire == []
    else:
        assert found.fire == due[-1:]


# -- ids and jobs ---------------------------------------------------------------------------------

SCHEDULE = UUID("0192f0c1-2345-7abc-8def-0123456789ab")
GOLDEN = {
    EPOCH: "00000000-0000-8a79-bcb3-6d7b414729a6",
    datetime(2026, 3, 29, 1, tzinfo=UTC): "019d371a-da80-84c7-8ecc-90ae3632bdfa",
    datetime(2026, 3, 29, 1, 0, 0, 1, tzinfo=UTC): "019d371a-da80-8c19-ac0d-0413e67005e7",
    datetime(2030, 1, 1, tzinfo=UTC): "01b8dac5-b400-813d-8685-820a9a1c8f25",
}


def by_hand(micros: int) -> UUID:
    """Milliseconds in 48 bits, then a hash, with the marks of a version 8 UUID in it."""
    name = f"{SCHEDULE}|{micros}"
    digest = hashlib.sha1(NAMESPACE.bytes + name.encode(), usedforsecurity=False).digest()
    value = int.from_bytes((micros // 1000).to_bytes(6, "big") + digest[:10], "big")
    value &= ~(0xF << 76) & ~(0x3 << 62)
    return UUID(int=value | 8 << 76 | 2 << 62)


@pytest.mark.parametrize("occurrence", list(GOLDEN), ids=str)
def test_the_id_of_an_occurrence_never_changes(occurrence):
    assert str(NAMESPACE) == "7d8c1d5e-6a0f-5b6e-9a44-3c1f0b7e52d1"
    assert str(occurrence_id(SCHEDULE, occurrence)) == GOLDEN[occurrence]
    delta = occurrence - EPOCH
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    assert occurrence_id(SCHEDULE, occurrence) == by_hand(micros)


def test_the_id_of_an_occurrence_sorts_with_the_jobs_of_its_time():
    enqueued = new_job_id()
    then = datetime.fromtimestamp((enqueued.int >> 80) / 1000, UTC)
    moment = timedelta(milliseconds=2)
    assert occurrence_id(SCHEDULE, then - moment) < enqueued
    assert occurrence_id(SCHEDULE, then + moment) > enqueued


def test_the_id_of_an_instant_does_not_depend_on_the_zone_it_is_written_in():
    elsewhere = NOON.astimezone(UTC).replace(fold=1)
    assert occurrence_id(SCHEDULE, elsewhere) == occurrence_id(SCHEDULE, NOON)


def a_row(timetable: Timetable = MINUTELY, **spec: object) -> ScheduleRow:
    when: dict[str, object] = {}
    match timetable:
        case Once(at):
            when = {"at": at}
        case Every(interval):
            when = {"every": interval // timedelta(microseconds=1)}
        case Cron(expression, zone):
            when = {"cron": expression, "zone": zone}
    made = ScheduleSpec(**{"topic": "t", "payload": "{}"} | when | spec)  # type: ignore[arg-type]
    return ScheduleRow(
        id=SCHEDULE,
        app="default",
        name="s",
        spec_text=encode_spec(made),
        state=ScheduleState.ACTIVE,
        error=None,
        anchor=NOON,
        next_run_at=NOON,
        last_occurrence=None,
        last_fired_at=None,
        missed=0,
        revision=0,
        created_at=NOON,
        updated_at=NOON,
        declared=False,
    )


@pytest.mark.parametrize("timetable", [Once(NOON), MINUTELY, CRON])
def test_a_timetable_is_stored_and_read_back(timetable):
    assert a_row(timetable).spec.timetable == timetable


def test_equal_specs_have_equal_texts():
    one = ScheduleSpec(topic="t", payload="{}", every=5, headers={"a": "1", "b": "2"})
    other = ScheduleSpec(topic="t", payload="{}", every=5, headers={"b": "2", "a": "1"})
    assert encode_spec(one) == encode_spec(other)


def test_jobs_of_an_instant_are_spread_over_the_jitter_always_in_the_same_way():
    row = a_row(jitter=30.0)
    occurrences = list(islice(upcoming(MINUTELY, NOON, anchor=NOON), 200))
    jobs = [job_of(row, row.spec, occurrence) for occurrence in occurrences]
    spreads = []
    for job, occurrence in zip(jobs, occurrences, strict=True):
        assert job.at is not None
        assert job.occurrence == occurrence
        spreads.append((job.at - occurrence).total_seconds())
    assert all(0 <= spread < 30 for spread in spreads)
    assert max(spreads) - min(spreads) > 25
    assert jobs == [job_of(row, row.spec, occurrence) for occurrence in occurrences]


def test_a_job_carries_what_its_schedule_says():
    row = a_row(queue="q", priority=5, max_attempts=7, timeout=3.0, lease=9.0, tags=("x",))
    (job,) = decide(row, NOON).jobs
    assert (job.schedule_id, job.occurrence, job.at) == (SCHEDULE, NOON, NOON)
    assert (job.queue, job.priority, job.max_attempts, job.timeout, job.lease, job.tags) == (
        ("q", 5, 7, 3.0, 9.0, ("x",))
    )

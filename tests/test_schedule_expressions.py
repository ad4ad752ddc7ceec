"""Which cron expressions, zones and intervals are accepted, and how they are described."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsed.errors import InvalidOption
from pulsed.model.timetable import (
    EPOCH,
    Cron,
    Every,
    Once,
    cron_timetable,
    describe,
    every_timetable,
    next_after,
    normalized_cron,
)
from tests.support.cron_oracle import DAY, NOW, computed, utc


@pytest.mark.parametrize(
    "expression, said",
    [
        ("61 * * * *", "minute field '61'"),
        ("* 24 * * *", "hour field '24'"),
        ("* * 0 * *", "day-of-month field '0'"),
        ("* * * 13 *", "month field '13'"),
        ("* * * * 8", "day-of-week field '8'"),
        ("* * * FOO *", "month field 'FOO'"),
        ("*/0 * * * *", "minute field '*/0'"),
        ("5-1 * * * *", "minute field '5-1'"),
        ("* 1,,2 * * *", "hour field '1,,2'"),
        ("* * * *", "has 4 fields"),
        ("* * * * * *", "has 6 fields"),
        ("", "has 0 fields"),
        ("@fortnightly", "not a cron nickname"),
        ("0 0 30 2 *", "0 0 30 2 *"),
        ("0 0 31 4,6,9,11 *", "0 0 31 4,6,9,11 *"),
        ("0 0 */31 2 1#5", "no occurrence at all"),
    ],
)
def test_a_cron_expression_is_refused_with_the_field_that_is_wrong(expression, said):
    with pytest.raises(InvalidOption, match=said.replace("*", r"\*").replace("#", "#")):
        cron_timetable(expression)


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"]])
def test_what_is_no_text_is_no_cron_expression(value):
    with pytest.raises(InvalidOption, match="cron must be a text"):
        cron_timetable(value)


@settings(max_examples=200)
@given(
    st.lists(
        st.text(alphabet="0123456789*/,-#LW?MONJAN", min_size=1, max_size=6),
        min_size=5,
        max_size=5,
    ).map(" ".join)
)
@example("* * * * 1#2/3")
@example("* * L/2 * *")
@example("* * L,LW * *")
@example("0 0 LW * 5L")
@example("0 0 * * MON#1,FRI#2")
def test_an_expression_is_refused_properly_or_works(expression):
    try:
        timetable = cron_timetable(expression, "Europe/Berlin")
    except InvalidOption:
        return
    assert describe(timetable)
    following = next_after(timetable, NOW, anchor=EPOCH)
    assert following is not None
    assert following > NOW


@pytest.mark.parametrize(
    "zone", ["Europe/Berlim", "", "../Berlin", "Europe", "/etc/passwd", "CET+1", 3, "a\0b"]
)
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(InvalidOption, match="no time zone"):
        cron_timetable("0 9 * * *", zone)


@pytest.mark.parametrize(
    "seconds", [0, -1, 0.05, float("nan"), float("inf"), True, "60", None, timedelta(0), 1e12]
)
def test_an_interval_is_a_number_of_seconds(seconds):
    with pytest.raises(InvalidOption, match="every"):
        every_timetable(seconds)


def test_names_and_nicknames_are_understood():
    assert normalized_cron(" @Hourly ") == "0 * * * *"
    assert normalized_cron("0  9 * *   MON-FRI") == "0 9 * * MON-FRI"
    weekdays = computed(cron_timetable("0 9 * jan mon-fri"), utc(2027, 1, 1), utc(2027, 1, 11))
    assert [each.day for each in weekdays] == [1, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "timetable, said",
    [
        (Once(utc(2026, 5, 1, 9)), "Once at 2026-05-01 09:00:00 UTC"),
        (Every(timedelta(seconds=0.5)), "Every 0.5 seconds"),
        (Every(timedelta(minutes=5)), "Every 5 minutes"),
        (Every(timedelta(hours=2)), "Every 2 hours"),
        (Every(timedelta(days=2)), "Every 2 days"),
        (Every(timedelta(days=1)), "Every day"),
        (Every(timedelta(seconds=1_234_567)), "Every 14 days 6 hours 56 minutes 7 seconds"),
        (Every(timedelta(seconds=3_600.000001)), "Every 1 hour 0.000001 seconds"),
        (Cron("46-46/3 9 * * *", "UTC"), "At 09:46 every day (UTC)"),
        (Cron("46/3 9 * * *", "UTC"), "Every third minute from 46 through 59 past hour 9 (UTC)"),
        (Cron("0 9 * * *", "Europe/Berlin"), "At 09:00 every day (Europe/Berlin)"),
    ],
)
def test_a_timetable_in_plain_words(timetable, said):
    assert describe(timetable) == said


@pytest.mark.parametrize(
    "expression, hours_and_minutes",
    [
        ("46-46/3 9 * * *", [(9, 46)]),
        ("05-5/3 9 * * *", [(9, 5)]),
        ("46/3 9 * * *", [(9, 46), (9, 49), (9, 52), (9, 55), (9, 58)]),
        ("1,46-46/3 9 * * *", [(9, 1), (9, 46)]),
        ("0 9-9/2 * jan-JAN/2 fri-FRI/2", [(9, 0)]),
    ],
)
def test_a_range_of_one_value_is_that_value_whatever_the_step(expression, hours_and_minutes):
    friday = utc(2027, 1, 1)
    found = computed(cron_timetable(expression), friday, friday + DAY)
    assert [(each.hour, each.minute) for each in found] == hours_and_minutes


@pytest.mark.parametrize(
    "text, zone, expected",
    [
        ("@every 5m", None, Every(timedelta(minutes=5))),
        ("@every 1h30m", None, Every(timedelta(minutes=90))),
        (" @Every  1.5h ", None, Every(timedelta(minutes=90))),
        ("@every 500ms", None, Every(timedelta(milliseconds=500))),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", None, Cron("0 9 * * *", "Europe/Berlin")),
        ("TZ=Europe/Berlin 0 9 * * *", None, Cron("0 9 * * *", "Europe/Berlin")),
        ("CRON_TZ=Europe/Berlin @daily", None, Cron("0 0 * * *", "Europe/Berlin")),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", "Europe/Berlin", Cron("0 9 * * *", "Europe/Berlin")),
    ],
)
def test_what_other_crons_write_is_understood(text, zone, expected):
    assert cron_timetable(text, zone) == expected


@pytest.mark.parametrize(
    "text, zone, said",
    [
        ("@every", None, "not an interval"),
        ("@every 5", None, "not an interval"),
        ("@every 5x", None, "not an interval"),
        ("@every -5m", None, "not an interval"),
        ("@every 5m 3", None, "not an interval"),
        ("@every 1ms", None, "every must be between"),
        ("@every 5m", "Europe/Berlin", "the same in every time zone"),
        ("CRON_TZ=UTC @every 5m", None, "the same in every time zone"),
        ("CRON_TZ=Europe/Berlim 0 9 * * *", None, "no time zone 'Europe/Berlim'"),
        ("CRON_TZ= 0 9 * * *", None, "no time zone ''"),
        ("CRON_TZ=Europe/Berlin", None, "has 0 fields"),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", "UTC", "a zone other than tz='UTC'"),
    ],
)
def test_what_other_crons_write_is_refused_where_it_makes_no_sense(text, zone, said):
    with pytest.raises(InvalidOption, match=said):
        cron_timetable(text, zone)

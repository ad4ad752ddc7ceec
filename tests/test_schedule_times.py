"""When schedules are due, compared with an oracle that walks through UTC minute by minute.

The oracle knows nothing of folds, of cronsim, or of how far apart occurrences are. It reads the
wall clock at every minute: a wall time seen before comes for the second time, and wall times that
were jumped over are made up for at the first minute after the gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsed.model.cron_count import count_between
from pulsed.model.schedule import first_occurrence
from pulsed.model.timetable import (
    EPOCH,
    Cron,
    Every,
    Once,
    cron_timetable,
    latest_until,
    next_after,
    normalized_cron,
    upcoming,
)
from tests.support.cron_oracle import DAY, MINUTE, NOW, Window, computed, looks, oracle, utc

# -- the oracle -----------------------------------------------------------------------------------


# -- windows that begin and end in quiet times, and contain what is special -----------------------


WINDOWS = [
    Window("Europe/Berlin", utc(2026, 3, 27, 12), 4, "spring"),
    Window("Europe/Berlin", utc(2026, 10, 23, 12), 4, "autumn"),
    Window("America/New_York", utc(2026, 3, 6, 12), 4, "spring"),
    Window("America/New_York", utc(2026, 10, 30, 12), 4, "autumn"),
    # The clocks changed at midnight: the day began at one, and ended twice.
    Window("America/Sao_Paulo", utc(2017, 10, 13, 12), 4, "spring"),
    Window("America/Sao_Paulo", utc(2018, 2, 16, 12), 4, "autumn"),
    Window("America/Sao_Paulo", utc(2018, 11, 2, 12), 4, "spring-2018"),
    # Half an hour.
    Window("Australia/Lord_Howe", utc(2026, 10, 2, 12), 4, "spring"),
    Window("Australia/Lord_Howe", utc(2026, 4, 3, 12), 4, "autumn"),
    # An offset that is no whole number of hours, and never changes.
    Window("Asia/Kathmandu", utc(2026, 3, 27, 12), 4, "spring"),
    Window("UTC", utc(2026, 3, 27, 12), 4, "spring"),
    # A whole day was left out.
    Window("Pacific/Apia", utc(2011, 12, 28, 12), 5, "skipped-day"),
    # The summer hour of Ireland is the standard one; Morocco goes back for Ramadan.
    Window("Europe/Dublin", utc(2026, 10, 23, 12), 4, "autumn"),
    Window("Africa/Casablanca", utc(2026, 2, 13, 12), 4, "ramadan"),
    *(
        Window(zone, start, 4, what)
        for zone in ("Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")
        for start, what in (
            (utc(2027, 12, 29, 12), "new-year"),
            (utc(2028, 2, 27, 12), "leap-day"),
            (utc(2027, 2, 26, 12), "no-leap-day"),
        )
    ),
]

EXPRESSIONS = [
    # fixed times, before, in and after the changes of all these zones
    "0 0 * * *",
    "30 0 * * *",
    "30 1 * * *",
    "45 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "0 3 * * *",
    "30 23 * * *",
    "0,15,30,45 1-3 * * *",
    "0 0-23 * * *",
    "0-59 0-3 * * *",
    "0-59/20 22,23,0,1 * * *",
    # elapsed time
    "* * * * *",
    "*/7 * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "15 * * * *",
    "30 */2 * * *",
    "*/10 0 * * *",
    "*/10 1 * * *",
    "*/10 2 * * *",
    "*/10 3 * * *",
    "*/30 23 * * *",
    # days
    "0 9 29 2 *",
    "0 0 1 1 *",
    "59 23 31 12 *",
    "0 12 28-31 * *",
    "30 2 * * 0",
    "30 2 * * 7",
    "*/20 2 * 3,10 0",
    "0 6 29 * 1",
    "0 6 29 * */1",
    "0 6 */2 * 1-5",
    "0 6 */2 * 1",
    "15 2 13,28 * 0,3",
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_occurrences_are_those_of_the_contract(window):
    for expression in EXPRESSIONS:
        timetable = cron_timetable(expression, window.zone)
        expected = oracle(expression, window.zone, window.start, window.end)
        found = computed(timetable, window.start - MINUTE, window.end)
        assert found == expected, expression


def changes(window: Window) -> list[datetime]:
    """The instants of a window at which the clocks change."""
    return [
        look.instant for look in looks(window.zone, window.start, window.end) if len(look.new) != 1
    ]


def offsets(window: Window) -> set[timedelta | None]:
    """The offsets of a window from UTC, hour by hour: quick, because every collection asks."""
    hours = (window.start + hour * timedelta(hours=1) for hour in range(24 * window.days + 1))
    return {hour.astimezone(ZoneInfo(window.zone)).utcoffset() for hour in hours}


CHANGING = [window for window in WINDOWS if len(offsets(window)) > 1]


@pytest.mark.parametrize("window", CHANGING, ids=str)
def test_it_does_not_matter_where_in_a_change_of_clocks_one_begins_to_look(window):
    """In the first pass of an overlap, in the second, just before and just after a gap."""
    change = changes(window)[0]
    end = change + 5 * timedelta(hours=1)
    starts = [change + minutes * MINUTE for minutes in (-61, -60, -31, -17, 0, 13, 29, 45, 59, 60)]
    starts += [change - timedelta(microseconds=1), change + timedelta(microseconds=1)]
    for expression in EXPRESSIONS:
        timetable = Cron(expression, window.zone)
        expected = oracle(expression, window.zone, window.start, end)
        for after in starts:
            found = computed(timetable, after, end)
            assert found == [each for each in expected if each > after], (expression, after)


def test_a_summer_with_its_leap_day_has_the_occurrences_of_the_contract():
    zone, start, end = "Australia/Lord_Howe", utc(2027, 9, 25), utc(2028, 4, 10)
    for expression in ("30 2 * * *", "0 0 * * *", "*/30 * * * *", "10 1,2 13 * 5"):
        expected = oracle(expression, zone, start, end)
        assert computed(cron_timetable(expression, zone), start - MINUTE, end) == expected


# -- the same, in plain words ---------------------------------------------------------------------


def occurrences(expression: str, zone: str, start: datetime, days: int) -> list[str]:
    found = computed(cron_timetable(expression, zone), start, start + days * DAY)
    return [f"{each.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for each in found]


@pytest.mark.parametrize(
    "expression, zone, start, expected",
    [
        # 29 March 2026: 02:00 to 03:00 does not exist in Berlin.
        ("30 2 * * *", "Europe/Berlin", utc(2026, 3, 28, 12), ["29 03:00 +0200"]),
        ("0,30 2 * * *", "Europe/Berlin", utc(2026, 3, 28, 12), ["29 03:00 +0200"]),
        (
            "30 2,3 * * *",
            "Europe/Berlin",
            utc(2026, 3, 28, 12),
            ["29 03:00 +0200", "29 03:30 +0200"],
        ),
        # 25 October 2026: 02:00 to 03:00 comes twice.
        ("30 2 * * *", "Europe/Berlin", utc(2026, 10, 24, 12), ["25 02:30 +0200"]),
        (
            "30 1-3/1 * * *",
            "Europe/Berlin",
            utc(2026, 10, 24, 12),
            ["25 01:30 +0200", "25 02:30 +0200", "25 03:30 +0100"],
        ),
        (
            "30 */1 25 10 *",
            "Europe/Berlin",
            utc(2026, 10, 24, 23),
            ["25 01:30 +0200", "25 02:30 +0200", "25 02:30 +0100", "25 03:30 +0100"],
        ),
        # Half an hour of Lord Howe: 01:30 to 02:00 comes twice, 02:00 to 02:30 is left out.
        ("45 1 * * *", "Australia/Lord_Howe", utc(2026, 4, 4, 0), ["05 01:45 +1100"]),
        ("15 2 * * *", "Australia/Lord_Howe", utc(2026, 10, 3, 0), ["04 02:30 +1100"]),
        # Midnight did not exist in São Paulo.
        ("0 0 * * *", "America/Sao_Paulo", utc(2017, 10, 14, 12), ["15 01:00 -0200"]),
        ("30 23 * * *", "America/Sao_Paulo", utc(2018, 2, 17, 12), ["17 23:30 -0200"]),
    ],
)
def test_what_a_change_of_clocks_does(expression, zone, start, expected):
    assert occurrences(expression, zone, start, 1)[: len(expected)] == expected
    if not expression.startswith("30 */1"):
        assert len(occurrences(expression, zone, start, 1)) == len(expected)


def test_a_leap_day_comes_every_fourth_year():
    sunday = cron_timetable("0 0 29 2 */7")
    assert latest_until(sunday, utc(2031, 1, 1), anchor=EPOCH) == utc(2004, 2, 29)
    assert next_after(sunday, utc(2031, 1, 1), anchor=EPOCH) == utc(2032, 2, 29)
    found = islice(upcoming(cron_timetable("0 9 29 2 *"), utc(2026, 1, 1), anchor=EPOCH), 3)
    assert list(found) == [utc(2028, 2, 29, 9), utc(2032, 2, 29, 9), utc(2036, 2, 29, 9)]


# -- random expressions, zones and instants -------------------------------------------------------


def a_field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    wide = st.tuples(st.integers(least, most - 1), st.just(most)).map("{0[0]}-{0[1]}".format)
    step = st.integers(1, 30)
    part = st.one_of(
        number.map(str),
        span,
        st.builds("{}/{}".format, st.one_of(span, wide), step),
        st.builds("*/{}".format, step),
    )
    return st.one_of(
        st.just("*"),
        number.map(str),
        st.lists(part, min_size=1, max_size=3).map(",".join),
    )


EXPRESSION = st.tuples(
    a_field(0, 59),
    a_field(0, 23),
    st.one_of(st.just("*"), a_field(1, 31)),
    st.just("*"),
    st.one_of(st.just("*"), a_field(0, 7)),
).map(" ".join)
WINDOW = st.sampled_from(WINDOWS)
OFFSET = st.integers(0, 4 * 24 * 3600 * 1000)


@settings(max_examples=120)
@given(EXPRESSION, WINDOW, OFFSET)
@example("*/10 2 * * *", WINDOWS[8], 0)
def test_whatever_the_expression_the_zone_and_the_instant(expression, window, milliseconds):
    """From any instant on, also one in the middle of a gap's edge or an overlap."""
    after = window.start + timedelta(milliseconds=milliseconds)
    expected = oracle(expression, window.zone, window.start, window.end)
    timetable = Cron(normalized_cron(expression), window.zone)
    assert computed(timetable, after, window.end) == [each for each in expected if each > after]
    until = [each for each in expected if each <= after]
    latest = latest_until(timetable, after, anchor=EPOCH)
    if until:
        assert latest == until[-1]
    else:
        assert latest is None or latest < window.start


@settings(max_examples=120)
@given(EXPRESSION, WINDOW, OFFSET, OFFSET)
@example("30 2 * * *", WINDOWS[0], 0, 4 * 24 * 3600 * 1000)
@example("0 0 * * *", WINDOWS[11], 0, 4 * 24 * 3600 * 1000)
def test_occurrences_are_counted_as_they_come(expression, window, one, other):
    start, end = (window.start + timedelta(milliseconds=each) for each in sorted((one, other)))
    timetable = Cron(normalized_cron(expression), window.zone)
    expected = oracle(expression, window.zone, window.start, window.end)
    assert count_between(timetable, start, end) == sum(start <= each < end for each in expected)


@settings(max_examples=120)
@given(EXPRESSION, WINDOW, OFFSET)
def test_next_and_latest_lie_on_both_sides_of_an_instant(expression, window, milliseconds):
    timetable = Cron(normalized_cron(expression), window.zone)
    instant = window.start + timedelta(milliseconds=milliseconds)
    following = next_after(timetable, instant, anchor=EPOCH)
    latest = latest_until(timetable, instant, anchor=EPOCH)
    assert following is not None
    assert following > instant
    assert following == next(upcoming(timetable, instant, anchor=EPOCH))
    assert latest is not None
    assert latest <= instant
    assert next_after(timetable, latest, anchor=EPOCH) == following
    assert latest_until(timetable, following, anchor=EPOCH) == following


# -- intervals ------------------------------------------------------------------------------------


INSTANT = st.integers(50 * 365 * 86_400 * 10**6, 70 * 365 * 86_400 * 10**6).map(
    lambda micros: EPOCH + timedelta(microseconds=micros)
)


@given(
    st.integers(100_000, 10**12),
    INSTANT,
    INSTANT,
)
def test_an_interval_counts_from_its_anchor_for_ever(micros, anchor, instant):
    timetable = Every(timedelta(microseconds=micros))
    following = next_after(timetable, instant, anchor=anchor)
    assert following is not None
    assert following > instant
    assert following >= anchor
    assert (following - anchor) % timetable.interval == timedelta(0)
    assert following - max(instant, anchor) <= timetable.interval
    latest = latest_until(timetable, instant, anchor=anchor)
    assert latest == (following - timetable.interval if instant >= anchor else None)
    three = list(islice(upcoming(timetable, instant, anchor=anchor), 3))
    assert three == [following + step * timetable.interval for step in range(3)]


def test_an_instant_comes_once():
    at = utc(2026, 5, 1)
    once = Once(at)
    assert next_after(once, at - MINUTE, anchor=EPOCH) == at
    assert next_after(once, at, anchor=EPOCH) is None
    assert latest_until(once, at, anchor=EPOCH) == at
    assert latest_until(once, at - MINUTE, anchor=EPOCH) is None
    assert computed(once, EPOCH, at) == [at]


def test_upcoming_ends_with_the_end():
    found = upcoming(Every(MINUTE), EPOCH, anchor=EPOCH, end=EPOCH + 2 * MINUTE)
    assert list(found) == [EPOCH + MINUTE, EPOCH + 2 * MINUTE]


# -- where a cursor begins ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timetable, start, end, expected",
    [
        (Every(MINUTE), None, None, NOW + MINUTE),
        (Every(MINUTE), utc(2026, 5, 1), None, utc(2026, 5, 1, 12, 1)),
        (Every(MINUTE), utc(2026, 6, 1), None, utc(2026, 6, 1)),
        (Every(MINUTE), NOW, None, NOW + MINUTE),
        (Cron("0 * * * *"), None, None, utc(2026, 5, 1, 13)),
        (Cron("0 * * * *"), utc(2026, 6, 1), None, utc(2026, 6, 1)),
        (Cron("0 * * * *"), utc(2026, 6, 1, 0, 0, 1), None, utc(2026, 6, 1, 1)),
        (Cron("0 * * * *"), utc(2020, 1, 1), None, utc(2026, 5, 1, 13)),
        (Cron("0 * * * *"), None, utc(2026, 5, 1, 13), utc(2026, 5, 1, 13)),
        (Cron("0 * * * *"), None, utc(2026, 5, 1, 12, 59), None),
        (Every(MINUTE), utc(2026, 6, 1), utc(2026, 6, 1), utc(2026, 6, 1)),
        (Once(utc(2020, 1, 1)), None, None, utc(2020, 1, 1)),
        (Once(utc(2027, 1, 1)), None, None, utc(2027, 1, 1)),
    ],
)
def test_where_the_cursor_of_a_new_schedule_begins(timetable, start, end, expected):
    anchor = start or NOW
    assert first_occurrence(timetable, now=NOW, anchor=anchor, start=start, end=end) == expected


# -- what is refused ------------------------------------------------------------------------------


def distances(found: Iterable[datetime]) -> set[timedelta]:
    listed = list(found)
    return {later - earlier for earlier, later in pairwise(listed)}


def test_a_job_of_every_minute_runs_every_minute_whatever_the_clocks_do():
    for window in WINDOWS:
        found = upcoming(Cron("* * * * *", window.zone), window.start, anchor=EPOCH)
        assert distances(islice(found, 2 * 24 * 60)) == {MINUTE}

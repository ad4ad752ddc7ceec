"""Numbers and durations as people read them."""

import pytest

from pulsed.wording import counted, format_bytes, format_duration

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


@pytest.mark.parametrize(
    "seconds, written",
    [
        (-1, "0 s"),
        (0, "0 s"),
        (0.000_04, "0.0 ms"),
        (0.002_5, "2.5 ms"),
        (0.012, "12 ms"),
        (0.999, "999 ms"),
        (0.999_9, "1.0 s"),
        (3.24, "3.2 s"),
        (9.99, "10 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (30 * MINUTE, "30 min"),
        (99.6 * MINUTE, "2 h"),
        (24 * HOUR, "24 h"),
        (48 * HOUR, "2 d"),
        (10_000 * DAY, "10,000 d"),
    ],
)
def test_a_duration_is_as_exact_as_its_length_deserves(seconds, written):
    assert format_duration(seconds) == written


def test_counts():
    assert [counted(number, "job") for number in (0, 1, 1_204)] == ["0 jobs", "1 job", "1,204 jobs"]
    assert counted(2, "child", "children") == "2 children"


@pytest.mark.parametrize(
    "number, written",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (9_960, "10 kB"),
        (4_200_000, "4.2 MB"),
        (999_600_000, "1.0 GB"),
        (5 * 10**15, "5,000.0 TB"),
    ],
)
def test_bytes_have_one_unit(number, written):
    assert format_bytes(number) == written

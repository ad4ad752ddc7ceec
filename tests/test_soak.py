"""A soak of some seconds, and tests of what calls a measure flat."""

import math
from pathlib import Path

import pytest

from tests.chaos.report import Report
from tests.soak import __main__ as soak
from tests.soak import flatness
from tests.soak.run import Plan, Soak, Soaked


@pytest.mark.usefixtures("admin")  # no job of a test before it is left
def test_a_short_soak_measures_everything_and_loses_nothing(postgres_url: str, tmp_path: Path):
    soaked = Soak(postgres_url, tmp_path, Plan(3.0, rate=20, workers=2)).run(lambda _: None)
    assert soaked.counts["jobs enqueued"] == soaked.counts["jobs that ran"] > 0
    assert soaked.counts["journeys that ran"] == soaked.counts["workflows enqueued"] > 0
    assert soaked.counts["workers replaced"] > 0
    assert soaked.counts["old snapshots held"] > 0
    assert soaked.left == 0, soaked.examples
    measured = {name for name, values in soaked.series.items() if not all(map(math.isnan, values))}
    assert measured >= (flatness.LIMITS.keys() - {"log, MB"}) | {flatness.THROUGHPUT}


RISING = [float(n) for n in range(1, 101)]
FLAT = [10.0, 11.0, 9.0] * 20


@pytest.mark.parametrize(
    "series, is_flat",
    [
        ({"worker, MB": FLAT}, True),
        ({"worker, MB": RISING}, False),
        ({"worker, MB": RISING[::-1]}, True),
        ({"jobs/s": FLAT}, True),
        ({"jobs/s": RISING[::-1]}, False),
        ({"p50 start, ms": [0.1] * 30 + [4.0] * 30}, True),
        ({"p50 start, ms": [0.1] * 30 + [40.0] * 30}, False),
        ({"WAL per job, bytes": [900.0] * 10 + [100.0] * 90}, True),
    ],
)
def test_what_grows_is_not_flat(series: dict[str, list[float]], is_flat: bool):
    (check,) = flatness.check(series)
    assert check.holds is is_flat


def test_a_measure_without_values_says_nothing():
    assert flatness.check({"worker, MB": [math.nan] * 9}) == []


def test_jobs_that_did_not_run_are_noticed():
    soaked = Soaked({}, left=1)
    soaked.counts.update({"jobs enqueued": 3, "jobs that ran": 2})
    report = Report("soak", "", "", "", "", 0, {}, soak.checks(soaked))
    assert [check.violations for check in report.checks] == [1, 1]
    assert not report.ok

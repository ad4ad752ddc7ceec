"""A small benchmark in every run of the suite: ratios to the raw driver, with room for a busy
machine, but not for a regression by a factor of three. And the page is made from what was saved."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import report, saved
from benchmarks.databases import Database, PostgresDatabase, SqliteDatabase, enqueue
from benchmarks.processes import drain, in_processes
from benchmarks.results import Measurement, Results, percentile, ratio, readable
from benchmarks.targets import TARGETS
from benchmarks.workloads.drain import DRIVERS, raw
from benchmarks.workloads.enqueue import Act, enqueue_singly, raw_singly
from pulsed import Pulse

JOBS = 4_000
SINGLES = 150
CROWD = 40_000

LEAST_OF_RAW = {"postgres": 0.2, "sqlite": 0.06}
LEAST_OF_RAW_SINGLES = 0.2
LEAST_BESIDE_A_CROWD = 0.5


@pytest.fixture(params=["postgres", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    found: PostgresDatabase | SqliteDatabase
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        _make_tables(url)
        found = PostgresDatabase(url)
    else:
        _make_tables(f"sqlite:///{tmp_path / 'jobs.db'}")
        found = SqliteDatabase(tmp_path / "jobs.db")
    found.empty()
    yield found
    found.empty()
    found.close()


def _make_tables(url: str) -> None:
    with Pulse(url) as app:
        app.jobs.counts()


def our_rate(database: Database) -> float:
    drained = drain(database, enqueue(database, JOBS), limit=20)
    assert drained.jobs == JOBS
    return drained.rate


def raw_rate(database: Database) -> float:
    driver = DRIVERS[database.engine][0]
    return raw(driver, 1, 100, database, enqueue(database, JOBS)).rate


def test_a_worker_drains_at_a_fair_share_of_the_raw_driver_and_keeps_it_beside_a_crowd(database):
    best = raw_rate(database)
    clean = max(our_rate(database) for _ in range(2))

    assert clean >= LEAST_OF_RAW[database.engine] * best

    database.fill("future", CROWD)
    database.settle_down()
    crowded = max(our_rate(database) for _ in range(2))

    assert crowded >= LEAST_BESIDE_A_CROWD * clean


def test_enqueueing_one_by_one_keeps_a_fair_share_of_the_raw_driver(database):
    theirs: Act = raw_singly(database, SINGLES)
    ours: Act = (enqueue_singly, (database.url, SINGLES))

    seconds = {
        name: min(in_processes(act, arguments)[0] for _ in range(2))
        for name, (act, arguments) in {"theirs": theirs, "ours": ours}.items()
    }

    assert seconds["theirs"] >= LEAST_OF_RAW_SINGLES * seconds["ours"]


# -- the page -----------------------------------------------------------------------------------


def test_the_page_is_made_from_what_was_saved():
    kept = saved.read()

    assert kept is not None
    assert report.PAGE.read_text("utf-8") == report.text(kept)


def test_what_was_saved_answers_every_target():
    kept = saved.read()

    assert kept is not None
    assert [t for t in TARGETS if t.figure(kept.results) is None] == []


def test_figures_taken_in_turns_are_compared_in_pairs():
    ours = Measurement("drain", "sqlite", "pulsed", "jobs/s", [10.0, 5.0, 1.0], "a run")
    theirs = Measurement("drain", "sqlite", "raw", "jobs/s", [20.0, 10.0, 4.0], "a run")

    assert ratio(ours, theirs) == 0.5


def test_figures_of_different_runs_are_not_compared():
    ours = Measurement("drain", "sqlite", "pulsed", "jobs/s", [10.0], "a run")
    theirs = Measurement("drain", "sqlite", "raw", "jobs/s", [20.0], "another run")

    assert ratio(ours, theirs) is None


def test_a_workload_measured_again_replaces_what_was_saved():
    old = Measurement("drain", "sqlite", "pulsed", "jobs/s", [10.0], "a run")
    other = Measurement("drain", "postgres", "pulsed", "jobs/s", [30.0], "a run")
    results = Results("another run", [old, other])

    results.drop("drain", "sqlite")
    results.add("drain", "sqlite", "pulsed", "jobs/s", 20.0)

    samples = {m.engine: (m.run, m.samples) for m in results}
    assert samples == {"postgres": ("a run", [30.0]), "sqlite": ("another run", [20.0])}


def test_percentiles_are_samples():
    samples = [float(number) for number in range(100, 0, -1)]

    assert [percentile(samples, percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]


@pytest.mark.parametrize(
    "value, text", [(12345.6, "12,300"), (999.0, "999"), (1.2345, "1.23"), (0.0, "0")]
)
def test_figures_are_written_with_three_digits(value, text):
    assert readable(value) == text

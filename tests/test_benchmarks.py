"""Every act of the benchmarks runs once, small, and is right; how fast it is does not matter here.
And the page is made from what was saved."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from benchmarks import bare_postgres, bare_sqlite
from benchmarks.databases import (
    Database,
    Drained,
    PostgresDatabase,
    SqliteDatabase,
    enqueue,
)
from benchmarks.event_loop import run
from benchmarks.meters import IDLE, LOG, SERVER, WORKER, Meter, Reading
from benchmarks.processes import ServerProcess, drain, in_processes
from benchmarks.results import Measurement, Results
from benchmarks.targets import TARGETS
from benchmarks.workloads.enqueue import aenqueue_at_once, bare_many, bare_singly, enqueue_singly
from benchmarks.workloads.workflows import children, one_workflow, plain_jobs
from pulsed import Pulse

JOBS = 300
ALL_IDS = "SELECT id FROM pulse_jobs"


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


# -- what is measured ---------------------------------------------------------------------------


def test_a_drain_counts_every_job_and_knows_from_when_until_when(database):
    before = time.time()

    drained = drain(database, enqueue(database, JOBS), limit=60)

    assert drained.jobs == JOBS
    assert before < drained.began < drained.ended < time.time()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_worker_behind_a_server_drains_as_well(database):
    with ServerProcess(database) as serving:
        drained = drain(database, enqueue(database, JOBS), url=serving.url, limit=60)

    assert drained.jobs == JOBS


def test_the_bare_driver_drains_every_job_and_leaves_nothing_behind(database):
    before = time.time()

    if isinstance(database, SqliteDatabase):
        jobs, began, ended = bare_sqlite.drain(str(database.path), JOBS, 100)
        tables = "SELECT name FROM sqlite_master WHERE name LIKE 'bare%'"
    else:
        jobs, began, ended = bare_postgres.drain(database.url, JOBS, 100)
        tables = "SELECT relname FROM pg_class WHERE relname LIKE 'bare%'"

    assert jobs == JOBS
    assert before <= began < ended <= time.time()
    assert database.rows(tables) == []


@pytest.mark.parametrize("batch", [7, 1_000])
def test_the_bare_driver_completes_each_claimed_job(database, batch):
    done = "SELECT count(*) FROM bare_jobs WHERE state = 2"
    if isinstance(database, SqliteDatabase):
        with bare_sqlite.table(str(database.path), 20) as connection:
            bare_sqlite.claim_and_complete(connection, batch)
            assert database.rows(done) == [(20,)]
    else:
        for loop in (bare_postgres.claim_and_complete, bare_postgres.claim_then_complete):
            with bare_postgres.table(database.url, 20):
                run(loop(database.url, batch))
                assert database.rows(done) == [(20,)]


def test_each_way_to_enqueue_is_timed_and_stores_every_job(database):
    assert aenqueue_at_once(database.url, 20, 5) > 0
    assert enqueue_singly(database.url, 20) > 0

    assert len(database.rows(ALL_IDS)) == 2 * 21  # each connects with one more
    for act, arguments in (bare_singly(database, 20), bare_many(database, 20)):
        assert in_processes(act, arguments)[0] > 0


def test_workflows_and_fan_outs_are_timed(database):
    assert one_workflow(database, 5) > 0
    assert children(database, 5) > 0
    assert plain_jobs(database, 5) > 0


# -- what it costs ------------------------------------------------------------------------------


def test_the_cost_of_a_drain_is_that_between_its_first_and_last_moment(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    meter = Meter(server=1, log=lambda: 0.0)
    meter._readings = [
        Reading(at, worker=at, server=2 * at, idle=at / 2, log=1_000 * at)
        for at in (0.0, 1.0, 2.0, 3.0)
    ]

    cost = meter.cost(Drained(100, began=0.5, ended=2.5))

    assert cost == {WORKER: 20_000, SERVER: 40_000, IDLE: 25, LOG: 20}
    assert meter.cost(Drained(100, began=0.5, ended=4.0)) == {}  # nothing is known of its end
    assert meter.cost(Drained(100, began=0.5, ended=0.6)) == {}  # too short


BURN = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_the_processor_time_of_a_server_is_not_that_of_a_worker():
    def burning() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", BURN]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    with burning() as server, burning() as worker, burning() as other:
        with Meter(server.pid) as meter:
            for process in (server, worker, other):
                assert process.stdout is not None
                process.stdout.readline()  # it has burnt what it burns
        last = meter._readings[-1]
        for process in (server, worker, other):
            process.communicate(b"\n")

    assert 0.28 <= last.server < 0.56 <= last.worker


# -- memory -------------------------------------------------------------------------------------


def test_a_batch_knows_where_its_tenths_end(database):
    batch = enqueue(database, 100)

    ids = sorted(UUID(bytes=i) if isinstance(i, bytes) else i for (i,) in database.rows(ALL_IDS))

    assert list(batch.tenths) == ids[9::10]
    assert (batch.first, batch.last) == (ids[0], ids[-1])


def test_memory_that_grows_after_the_first_fifth_misses_its_target():
    def verdict(*resident: float) -> bool:
        tenths = [
            Measurement("memory", "sqlite", f"pulsed, after {n}0 jobs", "MB resident", [mb])
            for n, mb in enumerate(resident, 1)
        ]
        value = growth.figure(Results("", tenths))
        assert value is not None
        return growth.met(value)

    (growth,) = (t for t in TARGETS if (t.what, t.engine) == ("worker memory, growth", "sqlite"))

    assert verdict(10, 40, *[40] * 7, 41)
    assert not verdict(10, 40, *[40] * 7, 50)

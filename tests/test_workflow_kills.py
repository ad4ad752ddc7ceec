"""A workflow whose process is killed by SIGKILL at a labelled point is taken over by another."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pulsed import Pulse
from pulsed.model.job import JobFilter, Status
from pulsed.store.sql_store.store import SqlStore
from tests.support import crashing_app
from tests.support.backends import Backend
from tests.support.crashing_app import TICK, Journal
from tests.support.crashing_workflow import POINTS, pack, router, shipment
from tests.support.programs import ROOT
from tests.support.workers import expire_leases, finished, result, submit, until, working

pytestmark = pytest.mark.embedded("kills inside of transactions")


Pulse("sqlite:///nowhere.db").include(router)  # a call cannot be bound without an app


def killed_at(point: str, backend: Backend, journal: Journal) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.support.crashing_workflow"]
    return subprocess.Popen([*command, backend.app_url, str(journal.path), point], cwd=ROOT)


INSIDE = {"tx", "committed", "suspending", "children"}
"""Where it matters which database it is."""


@pytest.mark.parametrize("point", list(POINTS))
async def test_a_workflow_survives_the_death_of_its_process(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
):
    if backend.engine == "postgres" and point not in INSIDE:
        pytest.skip("between two transactions; the same on SQLite")
    live: SqlStore = backend.open(own_clock=False)
    await live.now()
    backend.execute("DROP TABLE IF EXISTS effects")
    backend.execute("CREATE TABLE effects (n INTEGER)")
    job_id = await submit(live, "shipment")
    journal = Journal(tmp_path / "journal")
    process = killed_at(point, backend, journal)
    try:
        await until(lambda: process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert journal.lines()[-1] == f"dying {point}"

    await expire_leases(backend, live)
    monkeypatch.setattr(crashing_app, "journal", journal)
    async with working(live, shipment.handler, pack.handler, tick=TICK):
        assert result(await finished(live, job_id)) == [1, 2, 0, 1, 2]
    lines = Counter(journal.lines())
    assert backend.execute("SELECT count(*) FROM effects") == [(1,)]
    assert lines["charge"] == (2 if point == "effect" else 1)
    assert lines["book"] == (2 if point == "tx" else 1)
    assert [lines[f"pack {n}"] for n in range(3)] == [1, 1, 1]
    counts = await live.counts(JobFilter(parent=job_id))
    assert counts[Status.SUCCEEDED] == sum(counts.values()) == 3
    backend.execute("DROP TABLE effects")
    await live.aclose()

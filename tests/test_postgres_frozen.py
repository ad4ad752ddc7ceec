"""A PostgreSQL server that stands still under living workers, in processes of their own."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsed.model.ids import new_job_id
from pulsed.model.job import NewJob, Status
from tests.support import crashing_app
from tests.support.crashing_app import Journal
from tests.support.processes import open_store
from tests.support.programs import ROOT
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.waiting import until
from tests.support.workers import all_finished

WORKERS, SLOTS = 6, 2
FROZEN = crashing_app.PATIENT_LEASE + 0.4


@contextmanager
def workers(url: str, journal: Journal) -> Iterator[None]:
    command = [sys.executable, "-m", crashing_app.__name__, url, str(journal.path)]
    started = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) for _ in range(WORKERS)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_a_server_frozen_for_longer_than_the_leases_costs_nobody_a_job(
    postgres_server: ScratchPostgres, tmp_path: Path
):
    """Whichever watchdog wakes first, and when it is frozen again within the grace."""
    journal = Journal(tmp_path / "journal")
    store = open_store(postgres_server.url)
    jobs = [NewJob(id=new_job_id(), topic="patient", payload="{}") for _ in range(WORKERS * SLOTS)]
    await store.submit(jobs)
    with workers(postgres_server.url, journal):
        await until(lambda: len(journal.lines()) == len(jobs))
        for _ in range(2):
            postgres_server.freeze()
            await asyncio.sleep(FROZEN)  # the leases run out by the clock of the server
            postgres_server.thaw()
            await asyncio.sleep(0.3)  # all wake, and some have sent a heartbeat
        journal.let_go()
        ended = await all_finished(store, [job.id for job in jobs])
    assert {(row.status, row.attempts) for row in ended} == {(Status.SUCCEEDED, 1)}
    assert journal.lines() == ["started 1"] * len(jobs)
    assert [await store.failures(job.id) for job in jobs] == [[]] * len(jobs)
    await store.aclose()

"""A bulk operation whose process is killed by SIGKILL half-way is finished by another one."""

import asyncio
import signal
import subprocess
import sys

import pytest

from pulsed.engine.upkeep import bulk
from pulsed.engine.upkeep.bulk import perform_to_end
from pulsed.model.audit import Operator
from pulsed.model.bulk import RETRY_FRESH, BulkState
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Status
from tests.support.jobs import TOPIC, a_job
from tests.support.programs import ROOT

pytestmark = pytest.mark.embedded("kills inside of transactions")

COUNT, BATCH = 57, 10


@pytest.mark.parametrize("statement", [1, 2, 4, 0], ids=["before", "moved", "acted", "committed"])
async def test_nothing_is_missed_and_nothing_is_done_twice(backend, monkeypatch, statement):
    monkeypatch.setattr(bulk, "REST", 0.0)
    live = backend.open(own_clock=False)
    jobs = [a_job() for _ in range(COUNT)]
    await live.submit(jobs)
    await live.cancel([job.id for job in jobs])
    where = JobFilter(topic=TOPIC, status=(Status.CANCELLED,))
    begun = await live.bulk.start(new_job_id(), RETRY_FRESH, where, by=Operator("ops"))
    command = [sys.executable, "-m", "tests.support.dying_bulk", backend.app_url, str(begun.id)]
    arguments = [*command, str(BATCH), str(statement)]
    died = await asyncio.to_thread(subprocess.run, arguments, cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL
    half = await live.bulk.get(begun.id)
    assert half is not None
    assert half.done == (3 * BATCH if statement == 0 else 2 * BATCH)

    backend.execute("UPDATE pulse_bulk SET held_until = NULL")  # its hold is over
    ended = await perform_to_end(live, begun.id)
    assert ended is not None
    assert (ended.state, ended.done, ended.skipped) == (BulkState.DONE, COUNT, 0)
    found = (await live.get([job.id for job in jobs])).values()
    assert {job.status for job in found} == {Status.PENDING}
    assert {backend.row(job.id)["generation"] for job in found} == {1}  # each replay adds one
    [entry] = await live.audit_log()
    assert entry.affected == COUNT
    await live.aclose()

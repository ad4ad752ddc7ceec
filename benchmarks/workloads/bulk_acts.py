"""Bulk operations on a million jobs: beside a drain, through a kill, and to their end.

The operation gives all future jobs another priority. Its process is killed by SIGKILL after the
drain; another one finishes it. Every job must have the new priority then.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import UUID

from benchmarks.databases import Database, Server, enqueue
from benchmarks.processes import ROOT, drain
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from pulsed import Pulse
from pulsed.errors import PulsedError

ALONE = f"{PULSED}, drain alone"
BESIDE = f"{PULSED}, drain beside a bulk operation"
TO_THE_END = f"{PULSED}, a bulk operation resumed after a kill"

_PROGRAM = """
import sys
from pulsed import Pulse
with Pulse(sys.argv[1]) as app:
    operation = app.jobs.bulk.reprioritise(int(sys.argv[2]), topic="noop", due=False)
    print(operation.id, flush=True)
    operation.wait()
"""


def measure_bulk_acts(server: Server, results: Results, scale: Scale) -> None:
    """Drain alone and beside an operation in turns; kill and resume the operation each time."""
    database = server.database("bulk_acts")
    database.fill("future", scale.beside)
    database.settle_down()
    for priority in range(1, scale.repeat + 1):
        _drain(database, results, ALONE, scale)
        with _operating(database, priority) as bulk_id:
            _drain(database, results, BESIDE, scale)
        _resume(database, results, bulk_id)
        _check(database, priority, scale.beside)
    server.drop("bulk_acts")


def _drain(database: Database, results: Results, subject: str, scale: Scale) -> None:
    first_and_last = enqueue(database, scale.drain)
    rate = drain(database, first_and_last, limit=scale.drain_limit).rate
    results.add("bulk-acts", database.engine, subject, "jobs/s", rate)


@contextlib.contextmanager
def _operating(database: Database, priority: int) -> Iterator[UUID]:
    """Let another process perform an operation, and kill it at the end."""
    command = [sys.executable, "-c", _PROGRAM, database.url, str(priority)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield UUID(process.stdout.readline().strip())
        finally:
            process.kill()


def _resume(database: Database, results: Results, bulk_id: UUID) -> None:
    with Pulse(database.url) as app:
        operation = app.jobs.bulk.get(bulk_id)
        before, began = operation.done, time.perf_counter()
        after = operation.wait().done
        seconds = time.perf_counter() - began
    if after > before:
        rate = (after - before) / seconds
        results.add("bulk-acts", database.engine, TO_THE_END, "jobs/s", rate)


def _check(database: Database, priority: int, count: int) -> None:
    [(changed,)] = database.rows(f"SELECT count(*) FROM pulse_jobs WHERE priority = {priority:d}")
    if changed != count:
        raise PulsedError(f"{count - changed:,} of {count:,} jobs were missed")

"""Recovery: how soon the job of a killed worker runs elsewhere."""

from __future__ import annotations

import time

from benchmarks.databases import Database, Server
from benchmarks.processes import WorkerProcess
from benchmarks.recovery_app import LEASE, declare
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from pulsed import Pulse

APP = "benchmarks.recovery_app:app"

TICK = 1.0
BOUND = f"{PULSED}, lease and tick"


def measure_recovery(server: Server, results: Results, scale: Scale) -> None:
    """Kill a worker with a lease of 2 s and a tick of 1 s, beside one that lives."""
    for number in range(scale.kills):
        # A new database each time: in one that no watchdog has scanned recently, expired leases
        # get a grace first.
        name = f"recovery_{number}"
        seconds = recovery(server.database(name))
        server.drop(name)
        results.add("recovery", server.engine, PULSED, "s after the kill", seconds)
        results.add("recovery", server.engine, BOUND, "s after the kill", LEASE + TICK)


def recovery(database: Database) -> float:
    options = ("--tick", f"{TICK:g}s")
    with WorkerProcess(database.url, *options, app=APP) as doomed, Pulse(database.url) as app:
        job = declare(app).enqueue()
        _wait_for(database, "SELECT 1 FROM pulse_jobs WHERE status = 'RUNNING'", 1)
        with WorkerProcess(database.url, *options, app=APP):
            _wait_for(database, "SELECT 1 FROM pulse_workers", 2)
            killed = time.time_ns()
            doomed.kill()
            return (job.result(timeout=60) - killed) / 1e9


def _wait_for(database: Database, query: str, rows: int) -> None:
    give_up = time.monotonic() + 60
    while len(database.rows(query)) < rows:
        if time.monotonic() > give_up:
            raise TimeoutError(f"still not {rows} rows after a minute: {query}")
        time.sleep(0.02)

"""A steady load through phases: clean, beside an idle transaction, and after it.

A session that stays in a transaction keeps all row versions since from being removed, which is how
queues in a database slow down. The load is that of the public long-horizon benchmark, by the
adapter which that harness starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg

from benchmarks.databases import Database, Server
from benchmarks.processes import ROOT
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale

PHASES = ("clean", "idle in transaction", "recovery")
RATE, WORKERS = 800, 64
STOP_WITHIN = 20.0


def phase(name: str) -> str:
    return f"{PULSED}, {name}"


def measure_phases(server: Server, results: Results, scale: Scale) -> None:
    """Run the adapter through the phases, and take the last two thirds of each."""
    database = server.database("phases")
    database.empty()
    with _adapter(database.url) as adapter:
        for name in PHASES:
            holding = _idle_in_transaction(database.url) if name == PHASES[1] else nullcontext()
            with holding:
                samples = _watch(adapter, scale.phase_seconds)
            for metric, values in samples.items():
                results.add("phases", server.engine, phase(name), metric, *values)
            dead = float(_dead_rows(database))
            results.add("phases", server.engine, phase(name), "dead rows at the end", dead)
    server.drop("phases")


@contextmanager
def _adapter(url: str) -> Iterator[subprocess.Popen[str]]:
    asked = {"PRODUCER_RATE": RATE, "WORKER_COUNT": WORKERS, "SAMPLE_EVERY_S": 1}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.long_horizon"],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": url} | {name: str(each) for name, each in asked.items()},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_WITHIN)


@contextmanager
def _idle_in_transaction(url: str) -> Iterator[None]:
    with psycopg.connect(url) as session:
        session.execute("SELECT pg_current_xact_id()")
        yield


METRICS = {
    "completion_rate": "jobs/s",
    "claim_p50_ms": "start p50 ms",
    "claim_p99_ms": "start p99 ms",
    "queue_depth": "due",
}


def _watch(adapter: subprocess.Popen[str], seconds: float) -> dict[str, list[float]]:
    """Return the samples of a phase by metric, without those of its first third."""
    assert adapter.stdout is not None
    began = time.monotonic()
    samples: dict[str, list[float]] = {}
    while time.monotonic() - began < seconds:
        line = adapter.stdout.readline()
        if not line:
            raise RuntimeError("the adapter has ended in the middle of a phase")
        record: dict[str, Any] = json.loads(line)
        if record.get("metric") in METRICS and time.monotonic() - began > seconds / 3:
            samples.setdefault(METRICS[record["metric"]], []).append(record["value"])
    return samples


def _dead_rows(database: Database) -> int:
    ((dead,),) = database.rows(
        "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'pulse_jobs'"
    )
    return int(dead)

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
from benchmarks.homes import CACHE
from benchmarks.processes import ROOT
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale

PHASES = ("clean", "idle in transaction", "recovery")
RATE, WORKERS = 800, 64
STOP_WITHIN = 20.0
SERIES = CACHE / "long-horizon.jsonl"
"""All samples of the last run, with the names of their phases."""
DEAD = "dead_rows"

Record = dict[str, Any]


def phase(name: str) -> str:
    return f"{PULSED}, {name}"


def measure_phases(server: Server, results: Results, scale: Scale) -> None:
    """Run the adapter through the phases, and take the last two thirds of each."""
    database = server.database("phases")
    database.empty()
    records: list[Record] = []
    with _adapter(database.url) as adapter:
        for name in PHASES:
            holding = _idle_in_transaction(database.url) if name == PHASES[1] else nullcontext()
            with holding:
                seen = _watch(adapter, scale.phase_seconds, database)
            records += [record | {"phase": name} for record in seen]
            _add(results, server.engine, name, _settled(seen))
    _write(records)
    server.drop("phases")


def _add(results: Results, engine: str, name: str, samples: dict[str, list[float]]) -> None:
    dead = samples.pop(DEAD)
    for metric, values in samples.items():
        results.add("phases", engine, phase(name), METRICS[metric], *values)
    results.add("phases", engine, phase(name), "dead rows at the end", dead[-1])


def _settled(records: list[Record]) -> dict[str, list[float]]:
    """Return the samples by metric, without those of the first third of a phase."""
    samples: dict[str, list[float]] = {}
    for record in records[len(records) // 3 :]:
        samples.setdefault(record["metric"], []).append(record["value"])
    return samples


def _write(records: list[Record]) -> None:
    """Keep every sample for the plot, a line each."""
    SERIES.parent.mkdir(parents=True, exist_ok=True)
    SERIES.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


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
LAST = "queue_depth"
"""What the adapter prints last of each set."""


def _watch(adapter: subprocess.Popen[str], seconds: float, database: Database) -> list[Record]:
    """Return the samples of a phase, and beside each set of them the dead rows."""
    assert adapter.stdout is not None
    give_up = time.monotonic() + seconds
    records: list[Record] = []
    while time.monotonic() < give_up:
        line = adapter.stdout.readline()
        if not line:
            raise RuntimeError("the adapter has ended in the middle of a phase")
        record: Record = json.loads(line)
        if record.get("metric") not in METRICS:
            continue
        records.append({key: record[key] for key in ("t", "metric", "value")})
        if record["metric"] == LAST:
            dead = float(_dead_rows(database))
            records.append({"t": record["t"], "metric": DEAD, "value": dead})
    return records


def _dead_rows(database: Database) -> int:
    ((dead,),) = database.rows(
        "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'pulse_jobs'"
    )
    return int(dead)

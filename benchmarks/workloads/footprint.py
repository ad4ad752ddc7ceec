"""Footprint: what a job costs in bytes and rows, and what an idle or busy worker takes."""

from __future__ import annotations

import time
from bisect import bisect_left
from uuid import UUID

from benchmarks.databases import Batch, Database, Server, SqliteDatabase, enqueue
from benchmarks.processes import WorkerProcess, drain
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from benchmarks.workloads.latency import wait_until_ready

ENQUEUED = f"{PULSED}, enqueued in bulk"
DRAINED = f"{PULSED}, drained"
KEPT = f"{PULSED}, kept"
AFTER = f"{PULSED}, after "
MOST = f"{PULSED}, at most"


def measure_storage(server: Server, results: Results, scale: Scale) -> None:
    """Count write-ahead log, dead row versions, and what stays on the disk."""
    database = server.database("storage")
    for _ in range(scale.repeat):
        database.empty()
        before = _written(database)
        batch = enqueue(database, scale.drain)
        between = _written(database)
        drain(database, batch, limit=scale.drain_limit)
        after = _written(database)
        pairs = ((ENQUEUED, between, before), (DRAINED, after, between))
        for subject, later, earlier in pairs:
            for metric, count in later.items():
                per_job = (count - earlier[metric]) / batch.size
                results.add("storage", server.engine, subject, metric, per_job)
        kept = _kept(database) / batch.size
        results.add("storage", server.engine, KEPT, "bytes/job", kept)
    server.drop("storage")


def _written(database: Database) -> dict[str, int]:
    if isinstance(database, SqliteDatabase):
        return {}
    time.sleep(1)  # statistics of sessions that have just ended
    (log,), *_ = database.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    (versions,), *_ = database.rows(
        "SELECT n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname = 'pulse_jobs'"
    )
    return {"bytes of WAL/job": int(log), "dead rows/job": versions}


def _kept(database: Database) -> int:
    if isinstance(database, SqliteDatabase):
        database.settle_down()
        return database.path.stat().st_size
    (size,), *_ = database.rows("SELECT pg_total_relation_size('pulse_jobs')")
    return int(size)


def measure_idle(server: Server, results: Results, scale: Scale) -> None:
    """Watch an idle worker."""
    database = server.database("idle")
    server.log_statements("idle")
    with WorkerProcess(database.url) as worker:
        wait_until_ready(database.url)
        time.sleep(2)
        for _ in range(scale.repeat):
            asked, used = server.statements(), worker.cpu_seconds()
            began = time.monotonic()
            time.sleep(scale.idle_seconds)
            passed = time.monotonic() - began
            cpu = 100 * (worker.cpu_seconds() - used) / passed
            results.add("idle", server.engine, PULSED, "% of a core", cpu)
            if server.engine == "postgres":
                queries = (server.statements() - asked) / passed
                results.add("idle", server.engine, PULSED, "queries/s", queries)
            results.add("idle", server.engine, PULSED, "MB resident", worker.memory())
    server.drop("idle")


def measure_memory(server: Server, results: Results, scale: Scale) -> None:
    """Watch the memory of a worker while it drains a long queue, once."""
    database = server.database("memory")
    batch = enqueue(database, scale.memory)
    limit = scale.drain_limit * max(1, scale.memory // scale.drain)
    with WorkerProcess(database.url) as worker:
        most, after = watch(database, batch, worker, limit)
    for jobs, resident in after.items():
        results.add("memory", server.engine, f"{AFTER}{jobs:,} jobs", "MB resident", resident)
    results.add("memory", server.engine, MOST, "MB resident", most)
    server.drop("memory")


def watch(
    database: Database, batch: Batch, worker: WorkerProcess, limit: float
) -> tuple[float, dict[int, float]]:
    """Sample ten times a second; return the maximum, and the sample after each tenth."""
    give_up = time.monotonic() + limit
    most, after = 0.0, dict[int, float]()
    first: UUID | None = batch.first
    while first is not None:
        first = database.first_unfinished(batch, first)
        resident = worker.memory()
        most = max(most, resident)
        tenths = 10 if first is None else bisect_left(batch.tenths, first)
        # In a short drain several are done between two samples, and share the later one.
        for share in range(len(after) + 1, tenths + 1):
            after[batch.size * share // 10] = resident
        if time.monotonic() > give_up:
            raise RuntimeError(f"{batch.size:,} jobs were not drained within {limit:g} s")
        time.sleep(0.1)
    return most, after

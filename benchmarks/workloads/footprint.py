"""Footprint: what a job costs in bytes and rows, and what an idle or busy worker takes."""

from __future__ import annotations

import time

from benchmarks.databases import Database, Server, SqliteDatabase, enqueue
from benchmarks.processes import WorkerProcess, drain
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from benchmarks.workloads.latency import wait_until_ready

ENQUEUED = f"{PULSED}, enqueued in bulk"
DRAINED = f"{PULSED}, drained"
KEPT = f"{PULSED}, kept"


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
    """Watch a worker that has nothing to do."""
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
    """Watch the memory of a worker while it drains a long queue."""
    database = server.database("memory")
    batch = enqueue(database, scale.memory)
    began = time.monotonic()
    limit = scale.drain_limit * max(1, scale.memory // scale.drain)
    first = batch.first
    with WorkerProcess(database.url) as worker:
        resident = []
        while (unfinished := database.first_unfinished(batch, first)) is not None:
            if unfinished != batch.first:  # it has begun
                resident.append(worker.memory())
            if time.monotonic() - began > limit:
                break
            first = unfinished
            time.sleep(0.25)
        resident.append(worker.memory())
    results.add("memory", server.engine, PULSED, "MB resident, in time", *resident)
    results.add("memory", server.engine, PULSED, "MB resident, most", max(resident))
    early = resident[len(resident) // 5]
    results.add("memory", server.engine, PULSED, "end / first fifth", resident[-1] / early)
    results.add("memory", server.engine, PULSED, "jobs", float(batch.size))
    server.drop("memory")

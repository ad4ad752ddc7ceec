"""Several worker processes: whether two of them drain as fast as one, or faster."""

from __future__ import annotations

from benchmarks.databases import Server, enqueue
from benchmarks.processes import drain
from benchmarks.results import Results
from benchmarks.scale import Scale
from benchmarks.workloads.drain import SLOTS, our_name


def measure_processes(server: Server, results: Results, scale: Scale) -> None:
    """Drain with one and two processes, few and many slots, in turns."""
    database = server.database()
    for _ in range(scale.repeat):
        for slots in SLOTS:
            for processes in (1, 2):
                database.empty()
                batch = enqueue(database, scale.drain)
                drained = drain(
                    database,
                    batch,
                    processes=processes,
                    concurrency=slots,
                    limit=scale.drain_limit,
                )
                subject = our_name(processes, slots)
                results.add("processes", server.engine, subject, "jobs/s", drained.rate)

"""The gRPC server: what it costs to reach the jobs through it instead of in their database.

The same worker alternates between the URL of the database and that of a server. Jobs for a drain
are enqueued directly into the database; single jobs go through the server both ways.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from benchmarks.databases import Database, Server, enqueue
from benchmarks.processes import ServerProcess, WorkerProcess, drain, in_processes
from benchmarks.results import PULSED, Results, percentile
from benchmarks.scale import Scale
from benchmarks.workloads.latency import picked_up, submit_stamps, wait_until_ready

SLOTS = (100, 500)
DIRECT = f"{PULSED}, the database directly"
THROUGH = f"{PULSED}, through the server"


def direct(slots: int) -> str:
    return f"{DIRECT}, {slots} slots"


def through(slots: int) -> str:
    return f"{THROUGH}, {slots} slots"


@contextlib.contextmanager
def reached(database: Database, *, by_server: bool) -> Iterator[str]:
    """Provide the URL by which a worker reaches the jobs."""
    if not by_server:
        yield database.url
        return
    with ServerProcess(database) as serving:
        yield serving.url


def measure_server(server: Server, results: Results, scale: Scale) -> None:
    """Drain with few and many slots, with the database and with a server before it."""
    database = server.database("behind")
    for _ in range(scale.repeat):
        for slots in SLOTS:
            for subject, by_server in ((direct(slots), False), (through(slots), True)):
                database.empty()
                batch = enqueue(database, scale.drain)
                with reached(database, by_server=by_server) as url:
                    drained = drain(
                        database, batch, url=url, concurrency=slots, limit=scale.drain_limit
                    )
                results.add("server", server.engine, subject, "jobs/s", drained.rate)
    server.drop("behind")


def measure_server_pickup(server: Server, results: Results, scale: Scale) -> None:
    """Let idle workers pick up single jobs, enqueued and run on the same side of the server.

    Both sides wait all the time and get a job alternately: a moment in which the machine stalls
    decides a p99, and must not fall on one side only.
    """
    straight, behind = server.database("straight"), server.database("behind")
    for _ in range(scale.repeat):
        straight.empty()
        behind.empty()
        with (
            ServerProcess(behind) as serving,
            WorkerProcess(straight.url),
            WorkerProcess(serving.url),
        ):
            urls = straight.url, serving.url
            for url in urls:
                wait_until_ready(url)
            in_processes(submit_stamps, (urls, scale.pickups))
            for subject, database in ((DIRECT, straight), (THROUGH, behind)):
                found = picked_up(database, scale.pickups)
                for percent in (50, 99):
                    metric, value = f"p{percent} ms", percentile(found, percent)
                    results.add("server-pickup", server.engine, subject, metric, value)
    server.drop("straight")
    server.drop("behind")

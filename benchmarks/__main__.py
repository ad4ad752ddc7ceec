"""``python3 dev.py bench``: how fast jobs go in and out, on both engines.

SQLite runs with ``synchronous=FULL`` and PostgreSQL with fsync and synchronous commits, as in
production. Numbers of one run may be compared with each other; those of two machines may not.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pulsed import JobType, Pulse
from tests.support.scratch_postgres import ScratchPostgres


def main() -> None:
    arguments = parse()
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}; "
        f"medians of {arguments.repeat} runs, jobs per second\n"
    )
    engines = arguments.engine.split(",")
    measured = [measure(engine, arguments.jobs, arguments.repeat) for engine in engines]
    print(f"{'':<34}" + "".join(f"{engine:>12}" for engine in engines))
    for workload in measured[0]:
        print(f"{workload:<34}" + "".join(f"{rates[workload]:>12,.0f}" for rates in measured))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs in a drain (20000)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each workload (3)")
    parser.add_argument("--engine", default="sqlite,postgres", help="sqlite, postgres or both")
    return parser.parse_args()


def measure(engine: str, jobs: int, repeat: int) -> dict[str, float]:
    """Run every workload on an engine; returns the medians of jobs per second."""
    with database(engine) as url, Pulse(url) as app:
        tiny_async, tiny_plain = declare(app)
        workloads: dict[str, tuple[int, Callable[[int], float]]] = {
            "enqueue one by one": (jobs // 10, partial(enqueue_singly, tiny_async)),
            "enqueue_many": (jobs, partial(enqueue_many, tiny_async)),
            "drain, async handler, 100 slots": (jobs, partial(drain, app, tiny_async)),
            "drain, plain function, 100 slots": (jobs, partial(drain, app, tiny_plain)),
        }
        return {
            name: median_rate(app, workload, count, repeat)
            for name, (count, workload) in workloads.items()
        }


def median_rate(app: Pulse, workload: Callable[[int], float], jobs: int, repeat: int) -> float:
    rates = []
    for _ in range(repeat):
        rates.append(jobs / workload(jobs))
        app.jobs.delete_matching(queue="default")
    return statistics.median(rates)


@contextmanager
def database(engine: str) -> Iterator[str]:
    if engine == "postgres":
        with ScratchPostgres(fsync=True) as server:
            yield server.url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'bench.db'}"


def declare(app: Pulse) -> tuple[JobType[[int], int], JobType[[int], int]]:
    @app.job
    async def tiny_async(number: int) -> int:
        return number

    @app.job
    def tiny_plain(number: int) -> int:
        return number

    return tiny_async, tiny_plain


def enqueue_singly(job: JobType[[int], int], jobs: int) -> float:
    """Enqueue one commit at a time, as a web request does."""
    job.enqueue(0)  # connect
    began = time.perf_counter()
    for number in range(jobs):
        job.enqueue(number)
    return time.perf_counter() - began


def enqueue_many(job: JobType[[int], int], jobs: int) -> float:
    began = time.perf_counter()
    job.enqueue_many([(number,) for number in range(jobs)])
    return time.perf_counter() - began


def drain(app: Pulse, job: JobType[[int], int], jobs: int) -> float:
    enqueue_many(job, jobs)
    return asyncio.run(drained(app))


async def drained(app: Pulse) -> float:
    """Return the seconds in which a worker empties the queue, from its start."""
    async with app:
        worker = app.worker()
        began = time.perf_counter()
        working = asyncio.create_task(worker.run())
        while any((await app.jobs.acounts(status=("PENDING", "RUNNING"))).values()):
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - began
        worker.stop()
        await working
    return seconds


if __name__ == "__main__":
    main()

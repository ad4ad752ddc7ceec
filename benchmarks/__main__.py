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
from pathlib import Path

from pulsed import Pulse, Router
from tests.support.scratch_postgres import ScratchPostgres


def main() -> None:
    arguments = parse()
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}; "
        f"medians of {arguments.repeat} runs, jobs per second\n"
    )
    print(f"{'':<34}{'sqlite':>12}{'postgres':>12}")
    measured = {engine: measure(engine, arguments) for engine in arguments.engine.split(",")}
    for workload in WORKLOADS:
        cells = (measured.get(engine, {}).get(workload) for engine in ("sqlite", "postgres"))
        print(
            f"{workload:<34}"
            + "".join(f"{cell:>12,.0f}" if cell else f"{'-':>12}" for cell in cells)
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs in a drain (20000)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each workload (3)")
    parser.add_argument("--engine", default="sqlite,postgres", help="sqlite, postgres or both")
    return parser.parse_args()


def measure(engine: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run every workload on an engine; returns the medians of jobs per second."""
    with database(engine) as url, Pulse(url) as app:
        app.include(router)
        return {
            name: median_rate(app, workload, int(arguments.jobs * share), arguments.repeat)
            for name, (workload, share) in WORKLOADS.items()
        }


def median_rate(
    app: Pulse, workload: Callable[[Pulse, int], float], jobs: int, repeat: int
) -> float:
    rates = []
    for _ in range(repeat):
        rates.append(jobs / workload(app, jobs))
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


router = Router()


@router.job
async def tiny_async(number: int) -> int:
    return number


@router.job
def tiny_plain(number: int) -> int:
    return number


def enqueue_singly(_app: Pulse, jobs: int) -> float:
    """Enqueue one commit at a time, as a web request does."""
    tiny_async.enqueue(0)  # connect
    began = time.perf_counter()
    for number in range(jobs):
        tiny_async.enqueue(number)
    return time.perf_counter() - began


def enqueue_many(_app: Pulse, jobs: int) -> float:
    began = time.perf_counter()
    tiny_async.enqueue_many([(number,) for number in range(jobs)])
    return time.perf_counter() - began


def drain_async(app: Pulse, jobs: int) -> float:
    tiny_async.enqueue_many([(number,) for number in range(jobs)])
    return asyncio.run(drained(app))


def drain_plain(app: Pulse, jobs: int) -> float:
    tiny_plain.enqueue_many([(number,) for number in range(jobs)])
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


WORKLOADS: dict[str, tuple[Callable[[Pulse, int], float], float]] = {
    "enqueue one by one": (enqueue_singly, 0.1),
    "enqueue_many": (enqueue_many, 1),
    "drain, async handler, 100 slots": (drain_async, 1),
    "drain, plain function, 100 slots": (drain_plain, 1),
}

if __name__ == "__main__":
    main()

"""Enqueueing: one commit for each job as a web request does it, and in bulk.

Each subject runs in its own process and measures from its first to its last commit; it connects
before. The rows go into the same table with all its indexes. A raw loop gets its rows ready made,
pulsed creates and checks them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import raw_postgres, raw_sqlite
from benchmarks.app import declare
from benchmarks.databases import Database, Server, SqliteDatabase
from benchmarks.processes import in_processes
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from pulsed import Pulse

Act = tuple[Callable[..., float], Sequence[Any]]


def measure_enqueue(server: Server, results: Results, scale: Scale) -> None:
    """Enqueue one by one through the sync API."""
    database = server.database()
    driver = "sqlite3" if server.engine == "sqlite" else "psycopg"
    acts: dict[str, Act] = {
        f"raw {driver}": raw_singly(database, scale.enqueue),
        PULSED: (enqueue_singly, (database.url, scale.enqueue)),
    }
    _in_turns(server, results, "enqueue", acts, scale.enqueue, scale.repeat)


def raw_singly(database: Database, jobs: int) -> Act:
    if isinstance(database, SqliteDatabase):
        return raw_sqlite.insert_singly, (str(database.path), jobs)
    return raw_postgres.insert_singly, (database.url, jobs)


def measure_aenqueue(server: Server, results: Results, scale: Scale) -> None:
    """Enqueue one by one through the async API, with several callers at once on one loop."""
    database = server.database()
    driver = "sqlite3" if isinstance(database, SqliteDatabase) else "asyncpg"
    acts: dict[str, Act] = {
        f"raw {driver}": raw_singly(database, scale.enqueue)
        if isinstance(database, SqliteDatabase)
        else (raw_postgres.insert_singly_async, (database.url, scale.enqueue))
    }
    for callers in CALLERS:
        acts[at_once(callers)] = (aenqueue_at_once, (database.url, scale.enqueue, callers))
    _in_turns(server, results, "aenqueue", acts, scale.enqueue, scale.repeat)


CALLERS = (1, 10, 100)


def at_once(callers: int) -> str:
    return f"{PULSED}, {callers} caller{'' if callers == 1 else 's at once'}"


def measure_bulk(server: Server, results: Results, scale: Scale) -> None:
    """Enqueue many at once, in one transaction and as a stream."""
    database = server.database()
    acts: dict[str, Act] = {}
    if isinstance(database, SqliteDatabase):
        acts["raw sqlite3 executemany"] = (raw_sqlite.insert_many, (str(database.path), scale.bulk))
    else:
        for driver in ("asyncpg", "psycopg"):
            arguments = (driver, database.url, scale.bulk)
            acts[f"raw {driver} unnest"] = (raw_postgres.insert_many, arguments)
    acts[f"{PULSED} enqueue_many"] = (enqueue_many, (database.url, scale.bulk))
    acts[f"{PULSED} enqueue_iter"] = (enqueue_iter, (database.url, scale.bulk))
    acts[f"{PULSED} aenqueue_many"] = (aenqueue_many, (database.url, scale.bulk))
    _in_turns(server, results, "bulk", acts, scale.bulk, scale.repeat)


def _in_turns(
    server: Server, results: Results, name: str, acts: dict[str, Act], jobs: int, repeat: int
) -> None:
    database = server.database()
    for _ in range(repeat):
        for subject, (act, arguments) in acts.items():
            database.empty()
            (seconds,) = in_processes(act, arguments)
            results.add(name, server.engine, subject, "jobs/s", jobs / seconds)


def enqueue_singly(url: str, jobs: int) -> float:
    with Pulse(url) as app:
        job = declare(app).noop
        job.enqueue(0)  # connects
        began = time.perf_counter()
        for number in range(jobs):
            job.enqueue(number)
        return time.perf_counter() - began


def aenqueue_at_once(url: str, jobs: int, callers: int) -> float:
    return asyncio.run(_aenqueue_at_once(url, jobs, callers))


async def _aenqueue_at_once(url: str, jobs: int, callers: int) -> float:
    async with Pulse(url) as app:
        job = declare(app).noop
        numbers = iter(range(jobs))

        async def caller() -> None:
            for number in numbers:
                await job.aenqueue(number)

        await job.aenqueue(0)
        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return time.perf_counter() - began


def enqueue_many(url: str, jobs: int) -> float:
    with Pulse(url) as app:
        job = declare(app).noop
        job.enqueue(0)
        began = time.perf_counter()
        job.enqueue_many([(number,) for number in range(jobs)])
        return time.perf_counter() - began


def enqueue_iter(url: str, jobs: int) -> float:
    with Pulse(url) as app:
        job = declare(app).noop
        job.enqueue(0)
        began = time.perf_counter()
        for _ in job.enqueue_iter((number,) for number in range(jobs)):
            pass
        return time.perf_counter() - began


def aenqueue_many(url: str, jobs: int) -> float:
    return asyncio.run(_aenqueue_many(url, jobs))


async def _aenqueue_many(url: str, jobs: int) -> float:
    async with Pulse(url) as app:
        job = declare(app).noop
        await job.aenqueue(0)
        began = time.perf_counter()
        await job.aenqueue_many([(number,) for number in range(jobs)])
        return time.perf_counter() - began

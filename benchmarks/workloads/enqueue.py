"""Enqueueing: one commit for each job as a web request does it, and in bulk.

Each subject runs in its own process and measures from its first to its last commit; it connects
before. The bare driver writes into a table of three columns and gets its rows ready made; pulsed
creates and checks them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import bare_postgres, bare_sqlite
from benchmarks.app import declare
from benchmarks.databases import Database, Server, SqliteDatabase
from benchmarks.event_loop import run as on_loop
from benchmarks.homes import HomeError
from benchmarks.peers import PeerError, empty_place, run
from benchmarks.peers.peer import GRAPHILE_MANY
from benchmarks.processes import in_processes
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from pulsed import Pulse

Act = tuple[Callable[..., float], Sequence[Any]]


def measure_enqueue(server: Server, results: Results, scale: Scale) -> None:
    """Enqueue one by one through the sync API, with several threads at once."""
    database = server.database()
    acts: dict[str, Act] = {
        BARE[server.engine]: bare_singly(database, scale.enqueue),
        PULSED: (enqueue_singly, (database.url, scale.enqueue)),
    }
    for callers in CALLERS[1:]:
        acts[at_once(callers)] = (enqueue_at_once, (database.url, scale.enqueue, callers))
    for _ in range(scale.repeat):
        _take_turns(server, results, "enqueue", acts, scale.enqueue)


BARE = {"postgres": "bare psycopg", "sqlite": "bare sqlite3"}
BARE_ASYNC = {"postgres": "bare asyncpg", "sqlite": "bare sqlite3"}
BARE_MANY = {"postgres": "bare asyncpg unnest", "sqlite": "bare sqlite3 executemany"}


def bare_singly(database: Database, jobs: int) -> Act:
    if isinstance(database, SqliteDatabase):
        return bare_sqlite.insert_singly, (str(database.path), jobs)
    return bare_postgres.insert_singly, (database.url, jobs)


def measure_aenqueue(server: Server, results: Results, scale: Scale) -> None:
    """Enqueue one by one through the async API, with several callers at once on one loop."""
    database = server.database()
    acts: dict[str, Act] = {
        BARE_ASYNC[server.engine]: bare_singly(database, scale.enqueue)
        if isinstance(database, SqliteDatabase)
        else (bare_postgres.insert_singly_async, (database.url, scale.enqueue))
    }
    for callers in CALLERS:
        acts[at_once(callers)] = (aenqueue_at_once, (database.url, scale.enqueue, callers))
    for _ in range(scale.repeat):
        _take_turns(server, results, "aenqueue", acts, scale.enqueue)


CALLERS = (1, 10, 100)


def at_once(callers: int) -> str:
    return f"{PULSED}, {callers} caller{'' if callers == 1 else 's at once'}"


def measure_bulk(server: Server, results: Results, scale: Scale) -> None:
    """Enqueue many at once, in one transaction and as a stream; beside a peer if asked."""
    database = server.database()
    acts: dict[str, Act] = {BARE_MANY[server.engine]: bare_many(database, scale.bulk)}
    for call in (enqueue_many, enqueue_iter, aenqueue_many):
        acts[f"{PULSED} {call.__name__}"] = (call, (database.url, scale.bulk))
    for _ in range(scale.repeat):
        _take_turns(server, results, "bulk", acts, scale.bulk)
        if server.engine == "postgres" and "graphile-worker" in scale.peers:
            _graphile_many(server, results, scale.bulk)


def _graphile_many(server: Server, results: Results, jobs: int) -> None:
    try:
        with empty_place(GRAPHILE_MANY, server) as url:
            said = run(GRAPHILE_MANY, url, str(jobs))
    except (HomeError, PeerError) as error:
        print(f"  {GRAPHILE_MANY.title} did not run: {error}", file=sys.stderr, flush=True)
        return
    rate = jobs / said["enqueue_seconds"]
    results.add("bulk", server.engine, GRAPHILE_MANY.title, "jobs/s", rate)


def bare_many(database: Database, jobs: int) -> Act:
    if isinstance(database, SqliteDatabase):
        return bare_sqlite.insert_many, (str(database.path), jobs)
    return bare_postgres.insert_many, (database.url, jobs)


def _take_turns(
    server: Server, results: Results, name: str, acts: dict[str, Act], jobs: int
) -> None:
    database = server.database()
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


def enqueue_at_once(url: str, jobs: int, callers: int) -> float:
    """Enqueue from several threads, as a web server with a pool of threads does."""
    with Pulse(url) as app, ThreadPoolExecutor(callers) as threads:
        job = declare(app).noop
        everybody = threading.Barrier(callers + 1)

        def caller(numbers: range) -> None:
            job.enqueue(0)  # connects
            everybody.wait()
            for number in numbers:
                job.enqueue(number)

        shares = [range(jobs)[first::callers] for first in range(callers)]
        calling = [threads.submit(caller, share) for share in shares]
        everybody.wait()
        began = time.perf_counter()
        for call in calling:
            call.result()
        return time.perf_counter() - began


def aenqueue_at_once(url: str, jobs: int, callers: int) -> float:
    return on_loop(_aenqueue_at_once(url, jobs, callers))


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
    return on_loop(_aenqueue_many(url, jobs))


async def _aenqueue_many(url: str, jobs: int) -> float:
    async with Pulse(url) as app:
        job = declare(app).noop
        await job.aenqueue(0)
        began = time.perf_counter()
        await job.aenqueue_many([(number,) for number in range(jobs)])
        return time.perf_counter() - began

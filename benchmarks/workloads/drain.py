"""Drains: how fast no-op jobs go through, beside the raw loop on the same table.

The subjects alternate, so that a machine that slows down affects all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import raw_postgres, raw_sqlite
from benchmarks.databases import Batch, Database, Drained, Server, SqliteDatabase, enqueue
from benchmarks.processes import drain, in_processes
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale

Drain = Callable[[Database, Batch], Drained]

DRIVERS = {"postgres": ("asyncpg", "psycopg"), "sqlite": ("sqlite3",)}
"""The fastest first."""


def measure_drain(server: Server, results: Results, scale: Scale) -> None:
    """Drain with one and two processes, few and many slots, async and plain handlers."""
    database = server.database()
    for _ in range(scale.repeat):
        for subject, (topic, act) in subjects(server.engine, scale).items():
            results.add(
                "drain", server.engine, subject, "jobs/s", once(database, topic, act, scale)
            )


def once(database: Database, topic: str, act: Drain, scale: Scale) -> float:
    database.empty()
    batch = enqueue(database, scale.drain, topic)
    return act(database, batch).rate


def subjects(engine: str, scale: Scale) -> dict[str, tuple[str, Drain]]:
    """Return the subjects with their topics and drains."""
    found: dict[str, tuple[str, Drain]] = {}
    best, *others = DRIVERS[engine]
    for batch in (100, 500):
        for driver in (best, *(others if scale.every_ceiling else ())):
            found[raw_name(driver, batch)] = ("noop", partial(raw, driver, 1, batch))
        found[our_name(1, batch)] = ("noop", ours(1, batch, scale))
        found[our_name(2, batch)] = ("noop", ours(2, batch, scale))
    # As many at a time as a peer may hold that fetches in batches of thousands.
    found[our_name(1, 2_000)] = ("noop", ours(1, 2_000, scale))
    if scale.every_ceiling:
        found[f"{raw_name(best, 500)}, 2 processes"] = ("noop", partial(raw, best, 2, 500))
    found[f"{PULSED}, plain functions"] = ("plain", ours(1, 100, scale))
    return found


def our_name(processes: int, concurrency: int) -> str:
    several = "" if processes == 1 else f", {processes} processes"
    return f"{PULSED}, {concurrency:,} slots{several}"


def raw_name(driver: str, batch: int) -> str:
    return f"raw {driver}, batches of {batch}"


def ours(processes: int, concurrency: int, scale: Scale) -> Drain:
    return partial(drain, processes=processes, concurrency=concurrency, limit=scale.drain_limit)


def raw(driver: str, processes: int, size: int, database: Database, batch: Batch) -> Drained:
    if isinstance(database, SqliteDatabase):
        in_processes(raw_sqlite.drain, *[(str(database.path), size)] * processes)
    else:
        in_processes(raw_postgres.drain, *[(driver, database.url, size)] * processes)
    return database.drained(batch)

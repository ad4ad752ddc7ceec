"""The ceiling on PostgreSQL: what the driver alone does on a table of three columns.

Claims are made with SKIP LOCKED and completions by ids, both in batches, both durable: in turn on
one connection, or on one each, so that a completion and the next claim are in flight together.
There is no handler, no decoding of payloads, no result, no lease, no fence, no retry and no
heartbeat: the least that can be called a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
from psycopg import RawCursor

from benchmarks.event_loop import run

CREATE = """
CREATE TABLE bare_jobs (
    id uuid PRIMARY KEY,
    state smallint NOT NULL DEFAULT 0,
    payload text NOT NULL)"""

INDEX = "CREATE INDEX bare_jobs_due ON bare_jobs (id) WHERE state = 0"

FILL = """
INSERT INTO bare_jobs (id, payload)
SELECT lpad(to_hex(n), 32, '0')::uuid, '{"number":' || n || '}'
FROM generate_series(1, %s) AS numbers(n)"""

CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM bare_jobs WHERE state = 0
    ORDER BY id LIMIT $1::int FOR UPDATE SKIP LOCKED)
UPDATE bare_jobs AS j SET state = 1 FROM picked WHERE j.id = picked.id
RETURNING j.id, j.payload"""

COMPLETE = "UPDATE bare_jobs SET state = 2 WHERE id = ANY ($1::uuid[])"

INSERT = "INSERT INTO bare_jobs (id, payload) VALUES ($1, $2)"

INSERT_MANY = "INSERT INTO bare_jobs (id, payload) SELECT * FROM unnest($1::uuid[], $2::text[])"

CHANNEL = "bare"

INSERT_AND_NOTIFY = f"""
WITH added AS (INSERT INTO bare_jobs (id, payload) VALUES ($1, $2) RETURNING id)
SELECT pg_notify('{CHANNEL}', '') FROM added"""

# The planner knows nothing of a table that was just filled: bind it to the indexes.
PLANNER = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}

CHUNK = 5_000


@contextlib.contextmanager
def table(url: str, jobs: int = 0) -> Iterator[None]:
    """Provide the table with so many jobs in it."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("DROP TABLE IF EXISTS bare_jobs")
        session.execute(CREATE)
        session.execute(INDEX)
        session.execute(FILL, (jobs,))
        session.execute("VACUUM (ANALYZE) bare_jobs")
        session.execute("CHECKPOINT")
        try:
            yield
        finally:
            session.execute("DROP TABLE bare_jobs")


def drain(url: str, jobs: int, batch: int) -> tuple[int, float, float]:
    """Claim and complete so many jobs; returns how many there were, and from when until when."""
    with table(url, jobs):
        return run(claim_and_complete(url, batch))


def drain_in_turn(url: str, jobs: int, batch: int) -> tuple[int, float, float]:
    """Do the same on one connection, without anything in flight beside."""
    with table(url, jobs):
        return run(claim_then_complete(url, batch))


async def claim_then_complete(url: str, batch: int) -> tuple[int, float, float]:
    """Claim, complete, repeat, until nothing is left."""
    async with _connected(url) as connection:
        began, done = time.time(), 0
        while rows := await connection.fetch(CLAIM, batch):
            done += len(rows)
            await connection.execute(COMPLETE, [job for job, _ in rows])
        return done, began, time.time()


async def claim_and_complete(url: str, batch: int) -> tuple[int, float, float]:
    """Go on until nothing is left."""
    async with _connected(url) as claiming, _connected(url) as completing:
        began, done = time.time(), 0
        reporting: asyncio.Task[Any] | None = None
        while rows := await claiming.fetch(CLAIM, batch):
            done += len(rows)
            if reporting is not None:
                await reporting
            ids = [job for job, _ in rows]
            reporting = asyncio.create_task(completing.execute(COMPLETE, ids))
        if reporting is not None:
            await reporting
        return done, began, time.time()


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, server_settings=PLANNER)
    try:
        yield connection
    finally:
        await connection.close()


# -- enqueueing -----------------------------------------------------------------------------------


def insert_singly(url: str, jobs: int) -> float:
    """Insert one job for each commit with psycopg; returns the seconds."""
    with table(url), _session(url) as session:
        session.execute(INSERT, row(0))
        began = time.perf_counter()
        for number in range(jobs):
            session.execute(INSERT, row(number))
        return time.perf_counter() - began


def _session(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, prepare_threshold=0, cursor_factory=RawCursor)


def insert_singly_async(url: str, jobs: int) -> float:
    """Insert one job for each commit with asyncpg; returns the seconds."""
    with table(url):
        return run(_insert_singly_async(url, jobs))


async def _insert_singly_async(url: str, jobs: int) -> float:
    async with _connected(url) as connection:
        await connection.execute(INSERT, *row(0))
        began = time.perf_counter()
        for number in range(jobs):
            await connection.execute(INSERT, *row(number))
        return time.perf_counter() - began


def insert_many(url: str, jobs: int) -> float:
    """Insert all jobs in one transaction; returns the seconds, without making the rows."""
    rows = [row(number) for number in range(jobs)]
    with table(url):
        return run(_insert_many(url, rows))


async def _insert_many(url: str, rows: list[tuple[UUID, str]]) -> float:
    chunks = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
    columns = [tuple(map(list, zip(*chunk, strict=True))) for chunk in chunks]
    async with _connected(url) as connection:
        began = time.perf_counter()
        async with connection.transaction():
            for ids, payloads in columns:
                await connection.execute(INSERT_MANY, ids, payloads)
        return time.perf_counter() - began


def row(number: int) -> tuple[UUID, str]:
    """Return a job; its id is known before the commit, and rises with time."""
    bits = time.time_ns() // 1_000_000 << 80 | 7 << 76 | 2 << 62 | secrets.randbits(62)
    return UUID(int=bits), f'{{"number":{number}}}'


# -- pick-up --------------------------------------------------------------------------------------


def insert_stamps(url: str, gaps: list[float]) -> None:
    """Insert and notify in one statement: a round trip and a commit less than any other way."""
    with _session(url) as session:
        session.execute("SELECT 1")
        for gap in gaps:
            time.sleep(gap)
            job, _ = row(0)
            session.execute(INSERT_AND_NOTIFY, (job, f'{{"sent":{time.time_ns()}}}'))


def receive_stamps(url: str, count: int, ready: Any, latencies: Any) -> None:
    """Be notified, claim, and read the clock, until so many have come."""
    latencies.put(run(_receive_stamps(url, count, ready)))


async def _receive_stamps(url: str, count: int, ready: Any) -> list[float]:
    async with _connected(url) as listening, _connected(url) as claiming:
        told = asyncio.Event()
        await listening.add_listener(CHANNEL, lambda *_: told.set())
        found: list[float] = []
        await claiming.fetch(CLAIM, 100)  # prepares
        ready.set()
        while len(found) < count:
            await told.wait()
            told.clear()
            for _, payload in await claiming.fetch(CLAIM, 100):
                found += [(time.time_ns() - json.loads(payload)["sent"]) / 1e6]
        return found

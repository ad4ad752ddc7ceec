"""The ceiling on PostgreSQL: claim and complete on pulsed's own table, with nothing around it.

As strong as a driver loop gets while it keeps the guarantees: claims are made on one connection,
completions on another one with the next claim in flight; both in batches, both durable; completions
are fenced by id, status, token and owner; the planner is bound to the indexes as pulsed binds it.
There is no handler, no decoding, no retry and no heartbeat.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine
from typing import Any

import asyncpg
import psycopg
from psycopg import AsyncRawCursor, RawCursor

from benchmarks.databases import ordered_id

PLANNER = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}

CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM pulse_jobs
    WHERE queue = 'default' AND priority = 0 AND next_run_at <= now()
      AND status IN ('PENDING', 'RETRYING', 'WAITING')
    ORDER BY next_run_at, id LIMIT $1::int FOR UPDATE SKIP LOCKED)
UPDATE pulse_jobs AS j SET status = 'RUNNING', attempts = attempts + 1,
    lease_token = greatest(lease_token + 1, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint),
    locked_by = $2::uuid, lease_until = clock_timestamp() + interval '30 s',
    started_at = clock_timestamp()
FROM picked WHERE j.id = ANY (ARRAY[picked.id])
RETURNING j.id, j.payload::text, j.lease_token"""

COMPLETE = """
UPDATE pulse_jobs AS j SET status = 'SUCCEEDED', completed_at = now(), result = r.result::json,
    last_worker = locked_by, last_outcome = 'SUCCEEDED', locked_by = NULL, lease_until = NULL
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS r(id, token, result)
WHERE j.id = ANY (ARRAY[r.id]) AND j.status = 'RUNNING' AND j.lease_token = r.token
  AND j.locked_by = $4::uuid"""

INSERT = """
INSERT INTO pulse_jobs (id, queue, topic, status, priority, payload, next_run_at, submitted_at)
VALUES ($1, $2, $3, 'PENDING', $4, $5, now(), now())"""

INSERT_MANY = """
INSERT INTO pulse_jobs (id, queue, topic, status, priority, payload, next_run_at, submitted_at)
SELECT r.id, r.queue, r.topic, 'PENDING', r.priority, r.payload::json, now(), now()
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::text[])
    AS r(id, queue, topic, priority, payload)"""

CHUNK = 5_000


class AsyncpgLoop:
    """asyncpg on two connections."""

    def __init__(self, claiming: Any, completing: Any) -> None:
        self._claiming = claiming
        self._completing = completing

    @classmethod
    async def connect(cls, url: str) -> AsyncpgLoop:
        return cls(
            await asyncpg.connect(url, server_settings=PLANNER),
            await asyncpg.connect(url, server_settings=PLANNER),
        )

    async def claim(self, batch: int, worker: uuid.UUID) -> list[Any]:
        found: list[Any] = await self._claiming.fetch(CLAIM, batch, worker)
        return found

    async def complete(self, *columns: Any) -> None:
        await self._completing.execute(COMPLETE, *columns)

    async def close(self) -> None:
        await self._claiming.close()
        await self._completing.close()


class PsycopgLoop:
    """psycopg 3 on two connections, with binary results and prepared statements."""

    def __init__(self, claiming: Any, completing: Any) -> None:
        self._claiming = claiming
        self._completing = completing

    @classmethod
    async def connect(cls, url: str) -> PsycopgLoop:
        connections = [
            await psycopg.AsyncConnection.connect(
                url,
                autocommit=True,
                prepare_threshold=0,
                cursor_factory=AsyncRawCursor,
                options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
            )
            for settings in (PLANNER, PLANNER)
        ]
        return cls(*connections)

    async def claim(self, batch: int, worker: uuid.UUID) -> list[Any]:
        cursor = await self._claiming.execute(CLAIM, (batch, worker), binary=True)
        found: list[Any] = await cursor.fetchall()
        return found

    async def complete(self, *columns: Any) -> None:
        await self._completing.execute(COMPLETE, columns)

    async def close(self) -> None:
        await self._claiming.close()
        await self._completing.close()


DRIVERS: dict[str, type[AsyncpgLoop | PsycopgLoop]] = {
    "asyncpg": AsyncpgLoop,
    "psycopg": PsycopgLoop,
}


def drain(driver: str, url: str, batch: int) -> int:
    """Claim and complete until nothing is left; returns how many."""
    done: int = run(_drain(driver, url, batch))
    return done


async def _drain(driver: str, url: str, batch: int) -> int:
    loop = await DRIVERS[driver].connect(url)
    worker = uuid.uuid4()
    done = 0
    completing: asyncio.Task[None] | None = None
    while rows := await loop.claim(batch, worker):
        done += len(rows)
        if completing is not None:
            await completing
        ids, tokens = [row[0] for row in rows], [row[2] for row in rows]
        completing = asyncio.create_task(loop.complete(ids, tokens, ["1"] * len(rows), worker))
    if completing is not None:
        await completing
    await loop.close()
    return done


def insert_singly(url: str, jobs: int) -> float:
    """Insert one job for each commit with psycopg; returns the seconds."""
    with psycopg.connect(
        url, autocommit=True, prepare_threshold=0, cursor_factory=RawCursor
    ) as connection:
        connection.execute(INSERT, _row(0))
        began = time.perf_counter()
        for number in range(jobs):
            connection.execute(INSERT, _row(number))
        return time.perf_counter() - began


def insert_singly_async(url: str, jobs: int) -> float:
    """Insert one job for each commit with asyncpg; returns the seconds."""
    seconds: float = run(_insert_singly_with_asyncpg(url, jobs))
    return seconds


async def _insert_singly_with_asyncpg(url: str, jobs: int) -> float:
    connection = await asyncpg.connect(url)
    await connection.execute(INSERT, *_row(0))
    began = time.perf_counter()
    for number in range(jobs):
        await connection.execute(INSERT, *_row(number))
    took = time.perf_counter() - began
    await connection.close()
    return took


def insert_many(driver: str, url: str, jobs: int) -> float:
    """Insert all jobs in one transaction; returns the seconds, without making the rows."""
    columns = [list(column) for column in zip(*map(_row, range(jobs)), strict=True)]
    chunks = [[column[at : at + CHUNK] for column in columns] for at in range(0, jobs, CHUNK)]
    if driver == "asyncpg":
        seconds: float = run(_insert_with_asyncpg(url, chunks))
        return seconds
    with psycopg.connect(url, cursor_factory=RawCursor) as connection:
        began = time.perf_counter()
        for chunk in chunks:
            connection.execute(INSERT_MANY, chunk)
        connection.commit()
        return time.perf_counter() - began


async def _insert_with_asyncpg(url: str, chunks: list[Any]) -> float:
    connection = await asyncpg.connect(url)
    began = time.perf_counter()
    async with connection.transaction():
        for chunk in chunks:
            await connection.execute(INSERT_MANY, *chunk)
    took = time.perf_counter() - began
    await connection.close()
    return took


def _row(number: int) -> tuple[uuid.UUID, str, str, int, str]:
    return ordered_id(), "default", "noop", 0, f'{{"number":{number}}}'


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run on uvloop where there is one: the ceiling is the best that the driver can do."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)

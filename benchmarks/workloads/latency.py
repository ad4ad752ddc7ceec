"""Latency: how soon a job starts, on an idle worker and under a steady load.

Pick-up is taken end to end by the machine's one clock: from before the call of ``enqueue`` in one
process to the first line of the handler in another. Under a steady load it is the database's clock,
from the transaction of the submit to the claim. Jobs are submitted on time whether or not the ones
before them were stored, so a slow moment is not hidden by a producer that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from typing import Any

import asyncpg
import psycopg
from psycopg import RawCursor

from benchmarks import raw_postgres
from benchmarks.app import declare
from benchmarks.databases import Batch, Database, Server, opened, ordered_id
from benchmarks.processes import SPAWN, WorkerProcess, in_processes, wait_until_done
from benchmarks.raw_postgres import CLAIM, PLANNER
from benchmarks.results import PULSED, Results, percentile
from benchmarks.scale import Scale
from pulsed import Pulse

CHANNEL = "bench"
GAPS = (0.015, 0.045)
"""Seconds between two submits; not in step with anything that the worker does."""

Latencies = list[float]


# -- an idle worker -----------------------------------------------------------------------------


def measure_pickup(server: Server, results: Results, scale: Scale) -> None:
    """Let an idle worker pick up single jobs."""
    for _ in range(scale.repeat):
        if server.engine == "postgres":
            raw = raw_pickup(server.database(), scale.pickups)
            _percentiles(results, "pickup", server.engine, "raw LISTEN/NOTIFY", raw, (50, 99))
        ours = our_pickup(server.database(), scale.pickups)
        _percentiles(results, "pickup", server.engine, PULSED, ours, (50, 99))


def our_pickup(database: Database, count: int) -> Latencies:
    database.empty()
    with WorkerProcess(database.url):
        wait_until_ready(database.url)
        in_processes(submit_stamps, ((database.url,), count))
        return picked_up(database, count)


def picked_up(database: Database, count: int) -> Latencies:
    """Wait until so many stamps have run, and return how long each of them took."""
    query = "SELECT payload, result FROM pulse_jobs WHERE topic = 'stamp'"
    while len(rows := [row for row in database.rows(query) if row[1] is not None]) < count:
        time.sleep(0.05)
    return [(_number(result) - _number(payload, "sent")) / 1e6 for payload, result in rows]


def _number(column: Any, key: str | None = None) -> int:
    """Read a JSON column, which PostgreSQL's driver has decoded already."""
    value = json.loads(column) if isinstance(column, str) else column
    return int(value[key] if key else value)


def submit_stamps(urls: tuple[str, ...], count: int) -> None:
    """Submit so many to each of several places, alternately."""
    with contextlib.ExitStack() as stack:
        jobs = []
        for url in urls:
            app = stack.enter_context(Pulse(url))
            jobs.append(declare(app).stamp)
            app.jobs.counts()  # connects
        for gap in _gaps(count):
            for job in jobs:
                time.sleep(gap)
                job.enqueue(time.time_ns())


def raw_pickup(database: Database, count: int) -> Latencies:
    """One process inserts and notifies; another one is notified, claims, and reads the clock."""
    database.empty()
    latencies: Any = SPAWN.SimpleQueue()
    ready = SPAWN.Event()
    receiver = SPAWN.Process(target=receive_stamps, args=(database.url, count, ready, latencies))
    receiver.start()
    ready.wait(30)
    in_processes(insert_stamps, (database.url, count))
    found: Latencies = latencies.get()
    receiver.join()
    return found


def receive_stamps(url: str, count: int, ready: Any, latencies: Any) -> None:
    latencies.put(raw_postgres.run(_receive_stamps(url, count, ready)))


async def _receive_stamps(url: str, count: int, ready: Any) -> Latencies:
    listening = await asyncpg.connect(url)
    claiming = await asyncpg.connect(url, server_settings=PLANNER)
    told = asyncio.Event()
    await listening.add_listener(CHANNEL, lambda *_: told.set())
    worker, found = ordered_id(), Latencies()
    await claiming.fetch(CLAIM, 100, worker)  # prepares
    ready.set()
    while len(found) < count:
        await told.wait()
        told.clear()
        for row in await claiming.fetch(CLAIM, 100, worker):
            found.append((time.time_ns() - json.loads(row[1])["sent"]) / 1e6)
    await listening.close()
    await claiming.close()
    return found


def insert_stamps(url: str, count: int) -> None:
    """Insert and notify in one statement: a round trip and a commit less than any other way."""
    statement = f"""
        WITH added AS (
            INSERT INTO pulse_jobs (id, queue, topic, status, priority, payload, next_run_at,
                submitted_at)
            VALUES ($1, 'default', 'stamp', 'PENDING', 0, $2, now(), now()) RETURNING queue)
        SELECT pg_notify('{CHANNEL}', queue) FROM added"""
    with psycopg.connect(
        url, autocommit=True, prepare_threshold=0, cursor_factory=RawCursor
    ) as connection:
        connection.execute("SELECT 1")
        for gap in _gaps(count):
            time.sleep(gap)
            connection.execute(statement, (ordered_id(), f'{{"sent":{time.time_ns()}}}'))


def _gaps(count: int) -> Latencies:
    chance = random.Random(1)
    return [chance.uniform(*GAPS) for _ in range(count)]


# -- a steady load ------------------------------------------------------------------------------


def measure_steady(server: Server, results: Results, scale: Scale) -> None:
    """Hold a rate, and measure how long jobs wait for their start."""
    for rate in scale.steady_rates:
        subject = f"{PULSED}, {rate:,} jobs/s"
        for _ in range(scale.repeat):
            found = steady(server.database(), rate, scale.steady_seconds)
            _percentiles(results, "steady", server.engine, subject, found, (50, 95, 99))


def steady(database: Database, rate: int, seconds: float) -> Latencies:
    database.empty()
    with WorkerProcess(database.url):
        wait_until_ready(database.url)
        ((first, last),) = in_processes(produce, (database.url, rate, seconds))
        wait_until_done(database, Batch(first, last, int(rate * seconds)), 60)
    if database.engine == "postgres":
        waited = "extract(epoch FROM started_at - submitted_at)::float8 * 1e3"
    else:
        waited = "(started_at - submitted_at) / 1e3"
    rows = database.rows(
        f"SELECT {waited} FROM pulse_jobs WHERE topic = 'noop' AND CAST(result AS text) <> '-1'"
    )
    return [row[0] for row in rows]


def produce(url: str, rate: int, seconds: float) -> tuple[Any, Any]:
    return asyncio.run(_produce(url, rate, seconds))


async def _produce(url: str, rate: int, seconds: float) -> tuple[Any, Any]:
    """Enqueue at the rate, each job at its time."""
    storing = []
    async with Pulse(url) as app:
        job = declare(app).noop
        await app.jobs.acounts()  # connects
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            if (wait := began + number / rate - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            storing.append(asyncio.create_task(job.aenqueue(number)))
        ids = [stored.id for stored in await asyncio.gather(*storing)]
    return min(ids), max(ids)


# -- shared -------------------------------------------------------------------------------------


def wait_until_ready(url: str) -> None:
    """Wait until a worker has run a first job, so that its connections and caches are warm."""
    with opened(url) as tasks:
        tasks.noop.enqueue(-1).result(timeout=60)


def _percentiles(
    results: Results, name: str, engine: str, subject: str, found: Latencies, which: tuple[int, ...]
) -> None:
    for percent in which:
        results.add(name, engine, subject, f"p{percent} ms", percentile(found, percent))

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
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import bare_postgres
from benchmarks.app import declare
from benchmarks.databases import Batch, Database, Server, opened
from benchmarks.event_loop import run as on_loop
from benchmarks.homes import HomeError
from benchmarks.peers import PeerError, empty_place, run
from benchmarks.peers.peer import HUEY_PICKUP, Peer
from benchmarks.processes import SPAWN, WorkerProcess, in_processes, wait_until_done
from benchmarks.results import PULSED, Results, percentile
from benchmarks.scale import Scale
from pulsed import Pulse

BARE = "bare LISTEN/NOTIFY"
ASYNC = f"{PULSED}, aenqueue"
GAPS = (0.015, 0.045)
"""Seconds between two submits; not in step with anything that the worker does."""

Latencies = list[float]


# -- an idle worker -----------------------------------------------------------------------------


def measure_pickup(server: Server, results: Results, scale: Scale) -> None:
    """Let an idle worker pick up single jobs, in turns with the bare driver and with a peer."""
    for _ in range(scale.repeat):
        for subject, act in pickups(server, scale).items():
            try:
                found = act(scale.pickups)
            except (HomeError, PeerError) as error:
                print(f"  {subject} did not run: {error}", file=sys.stderr, flush=True)
                continue
            _percentiles(results, "pickup", server.engine, subject, found, (50, 99))


def pickups(server: Server, scale: Scale) -> dict[str, Callable[[int], Latencies]]:
    """Return the subjects, in the order in which they take turns."""
    database = server.database()
    found: dict[str, Callable[[int], Latencies]] = {}
    if server.engine == "postgres":
        found[BARE] = partial(bare_pickup, database)
    found[PULSED] = partial(our_pickup, database)
    found[ASYNC] = partial(our_pickup, database, submit=asubmit_stamps)
    if server.engine == "sqlite" and any(name.startswith("huey") for name in scale.peers):
        found |= {peer.title: partial(peer_pickup, peer, server) for peer in HUEY_PICKUP}
    return found


def peer_pickup(peer: Peer, server: Server, count: int) -> Latencies:
    """Return how long a peer took for each job, by its own script."""
    with empty_place(peer, server) as place:
        found: Latencies = run(peer, place, str(count), *map(str, GAPS))["latencies"]
    return found


def our_pickup(
    database: Database, count: int, submit: Callable[..., None] | None = None
) -> Latencies:
    database.empty()
    with WorkerProcess(database.url):
        wait_until_ready(database.url)
        in_processes(submit or submit_stamps, ((database.url,), count))
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
        for gap in gaps(count):
            for job in jobs:
                time.sleep(gap)
                job.enqueue(time.time_ns())


def asubmit_stamps(urls: tuple[str, ...], count: int) -> None:
    """Submit so many through the async API."""
    on_loop(_asubmit_stamps(urls[0], count))


async def _asubmit_stamps(url: str, count: int) -> None:
    async with Pulse(url) as app:
        job = declare(app).stamp
        await app.jobs.acounts()  # connects
        for gap in gaps(count):
            await asyncio.sleep(gap)
            await job.aenqueue(time.time_ns())


def bare_pickup(database: Database, count: int) -> Latencies:
    """One process inserts and notifies; another one is notified, claims, and reads the clock."""
    latencies: Any = SPAWN.SimpleQueue()
    ready = SPAWN.Event()
    arguments = (database.url, count, ready, latencies)
    with bare_postgres.table(database.url):
        receiver = SPAWN.Process(target=bare_postgres.receive_stamps, args=arguments)
        receiver.start()
        ready.wait(30)
        in_processes(bare_postgres.insert_stamps, (database.url, gaps(count)))
        found: Latencies = latencies.get()
        receiver.join()
    return found


def gaps(count: int) -> Latencies:
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
    return on_loop(_produce(url, rate, seconds))


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

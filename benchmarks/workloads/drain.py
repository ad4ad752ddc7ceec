"""Drains: how fast no-op jobs go through, beside the bare driver and beside other queues.

The subjects alternate, so that a machine that slows down affects all of them. Each drain comes with
what it cost: processor time of worker and server, idle cores, write-ahead log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from benchmarks import bare_postgres, bare_sqlite
from benchmarks.databases import Drained, Server, SqliteDatabase, enqueue
from benchmarks.homes import HomeError
from benchmarks.meters import metering
from benchmarks.peers import PeerError
from benchmarks.peers import drain as drain_peer
from benchmarks.peers.peer import PEERS
from benchmarks.processes import drain, in_processes
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale

Drain = Callable[[Server, Scale], Drained]

SLOTS = (100, 500)
PLAIN = f"{PULSED}, plain functions"
DRIVERS = {"postgres": "asyncpg", "sqlite": "sqlite3"}


def our_name(processes: int, concurrency: int) -> str:
    several = "" if processes == 1 else f", {processes} processes"
    return f"{PULSED}, {concurrency:,} slots{several}"


def bare_name(engine: str, batch: int) -> str:
    return f"bare {DRIVERS[engine]}, batches of {batch}"


def one_connection_name(batch: int) -> str:
    return f"bare asyncpg, one connection, batches of {batch}"


def measure_drain(server: Server, results: Results, scale: Scale) -> None:
    """Let each subject drain once, then each again."""
    broken: set[str] = set()
    for _ in range(scale.repeat):
        for subject, act in subjects(server.engine).items():
            with metering(server) as meter:
                drained = act(server, scale)
            _add(results, server, subject, drained, meter.cost(drained))
        for name in peers_of(server.engine, scale):
            if name not in broken and not measure_peer(name, server, results, scale):
                broken.add(name)
    server.drop("drain")


def subjects(engine: str) -> dict[str, Drain]:
    """Return pulsed and the bare loops, in the order in which they take turns."""
    found: dict[str, Drain] = {}
    for slots in SLOTS:
        found[bare_name(engine, slots)] = partial(bare, slots)
        if engine == "postgres":
            found[one_connection_name(slots)] = partial(bare_in_turn, slots)
        found[our_name(1, slots)] = partial(ours, "noop", slots)
    found[PLAIN] = partial(ours, "plain", SLOTS[0])
    return found


def ours(topic: str, slots: int, server: Server, scale: Scale) -> Drained:
    """Drain with one worker process."""
    database = server.database("drain")
    database.empty()
    batch = enqueue(database, scale.long_drain, topic)
    return drain(database, batch, concurrency=slots, limit=scale.drain_limit)


def bare(batch: int, server: Server, scale: Scale) -> Drained:
    """Drain with the driver alone, on its own table in the same database."""
    database = server.database("drain")
    if isinstance(database, SqliteDatabase):
        call = (str(database.path), scale.long_drain, batch)
        ((jobs, began, ended),) = in_processes(bare_sqlite.drain, call)
    else:
        call = (database.url, scale.long_drain, batch)
        ((jobs, began, ended),) = in_processes(bare_postgres.drain, call)
    return Drained(jobs, began, ended)


def bare_in_turn(batch: int, server: Server, scale: Scale) -> Drained:
    """Drain with asyncpg alone on one connection."""
    call = (server.database("drain").url, scale.long_drain, batch)
    ((jobs, began, ended),) = in_processes(bare_postgres.drain_in_turn, call)
    return Drained(jobs, began, ended)


def peers_of(engine: str, scale: Scale) -> list[str]:
    return [name for name in scale.peers if PEERS[name].engine == engine]


def measure_peer(name: str, server: Server, results: Results, scale: Scale) -> bool:
    """Let a peer drain once and return whether it did. The page says why it did not."""
    peer = PEERS[name]
    try:
        found = drain_peer(peer, server, peer.size(scale.long_drain))
    except (HomeError, PeerError) as error:
        print(f"  {peer.title} did not run: {error}", file=sys.stderr, flush=True)
        results.about[peer.title] = f"did not run; {str(error).splitlines()[-1]}"
        return False
    results.about[peer.title] = found.about
    _add(results, server, peer.title, found.drained, found.cost)
    return True


def _add(
    results: Results, server: Server, subject: str, drained: Drained, cost: dict[str, float]
) -> None:
    results.add("drain", server.engine, subject, "jobs/s", drained.rate)
    for metric, value in cost.items():
        results.add("drain", server.engine, subject, metric, value)
    results.add("drain", server.engine, subject, "jobs", drained.jobs)

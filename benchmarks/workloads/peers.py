"""pulsed and other queues, draining in turns: the same number of jobs, the same server.

Slow peers get fewer jobs, and pulsed drains as few beside them. So each peer has a drain of pulsed
that was measured within the same minute, and a machine that slows down affects all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.databases import Database, Server, enqueue
from benchmarks.homes import HomeError
from benchmarks.peers import PEERS, Peer, PeerError, run
from benchmarks.processes import drain
from benchmarks.results import Results
from benchmarks.scale import Scale
from benchmarks.workloads.drain import our_name

Turn = Callable[[], None]

OURS = ((1, 100), (1, 500), (1, 2_000), (2, 100))
"""Processes and slots of pulsed beside the fast peers."""


def measure_peers(server: Server, results: Results, scale: Scale) -> None:
    """Let each subject drain once, then each again."""
    sizes = by_size(server.engine, scale)
    broken: set[str] = set()
    for _ in range(scale.repeat):
        for size, names in sizes.items():
            if all(PEERS[name].jobs is None for name in names):
                drain_ours(server, results, scale, size, among_most=size == next(iter(sizes)))
            for name in names:
                if name not in broken and not drain_theirs(PEERS[name], server, results, size):
                    broken.add(name)
    server.drop("beside_peers")


def by_size(engine: str, scale: Scale) -> dict[int, list[str]]:
    """Return the subjects with their numbers of jobs, the most first."""
    found: dict[int, list[str]] = {}
    for name in scale.peers:
        if PEERS[name].engine == engine:
            found.setdefault(PEERS[name].size(scale.peer), []).append(name)
    return dict(sorted(found.items(), reverse=True))


def drain_ours(
    server: Server, results: Results, scale: Scale, size: int, *, among_most: bool
) -> None:
    database = server.database("beside_peers")
    for processes, slots in OURS if among_most else OURS[:1]:
        subject = our_name(processes, slots) + ("" if among_most else f", {size:,} jobs")
        act = partial(drain, processes=processes, concurrency=slots, limit=scale.drain_limit)
        rate = _rate(database, size, act)
        results.add("peers", server.engine, subject, "jobs/s", rate)
        results.add("peers", server.engine, subject, "jobs", size)


def _rate(database: Database, size: int, act: Callable[..., Any]) -> float:
    database.empty()
    rate: float = act(database, enqueue(database, size)).rate
    return rate


def drain_theirs(peer: Peer, server: Server, results: Results, size: int) -> bool:
    """Run a peer once and return whether it ran. The page shows why it did not."""
    try:
        said = run(peer, server, size)
    except (HomeError, PeerError) as error:
        print(f"  {peer.title} did not run: {error}", file=sys.stderr, flush=True)
        results.about[peer.title] = f"did not run; {str(error).splitlines()[-1]}"
        return False
    results.about[peer.title] = f"{said['version']}; {said['settings']}"
    results.add("peers", server.engine, peer.title, "jobs/s", said["jobs"] / said["seconds"])
    results.add("peers", server.engine, peer.title, "jobs", said["jobs"])
    if peer.jobs is None:
        filled = said["jobs"] / said["enqueue_seconds"]
        results.add("peers", server.engine, peer.title, "enqueued in bulk/s", filled)
    return True

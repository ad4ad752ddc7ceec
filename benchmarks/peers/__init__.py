"""Other queues on the same machine and server, each with the settings its makers name for speed.

A peer is a script that enqueues no-op jobs, drains them in one process, and prints JSON: how many
jobs, from when until when by the machine's clock, its version and its settings. The time runs from
the first run of the handler to the last report, or to the last run where that cannot be seen. The
start of its process does not count. Peers get fresh statistics before they start; pulsed does not.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.databases import Drained, Server
from benchmarks.homes import node, node_with, python_with
from benchmarks.meters import Meter, metering
from benchmarks.peers.peer import Peer
from benchmarks.redis_server import RedisError, serving_redis

FOLDER = Path(__file__).parent
PATIENCE = 120.0


class PeerError(Exception):
    """A peer's script failed."""


@dataclass(frozen=True)
class Outcome:
    """What a peer's script said, and what it cost."""

    drained: Drained
    enqueue_seconds: float
    about: str
    """Its version and settings."""
    cost: dict[str, float]


def drain(peer: Peer, server: Server, jobs: int) -> Outcome:
    """Let a peer drain so many jobs once, on its own empty database."""
    with _placed(peer, server) as (place, meter):
        said = run(peer, place, str(jobs))
    drained = Drained(said["jobs"], said["began"], said["ended"])
    about = f"{said['version']}; {said['settings']}"
    return Outcome(drained, said["enqueue_seconds"], about, meter.cost(drained))


@contextlib.contextmanager
def _placed(peer: Peer, server: Server) -> Iterator[tuple[str, Meter]]:
    """Provide what the peer connects to, and a meter of the server behind it."""
    if peer.broker == "redis":
        try:
            with serving_redis() as redis, Meter(redis.pid) as meter:
                yield redis.url, meter
        except RedisError as error:
            raise PeerError(str(error)) from None
        return
    with empty_place(peer, server) as place, metering(server) as meter:
        yield place, meter


@contextlib.contextmanager
def empty_place(peer: Peer, server: Server) -> Iterator[str]:
    """Provide the URL of an empty database, or the path of a file that does not exist yet."""
    if peer.broker == "sqlite":
        with tempfile.TemporaryDirectory(dir=server.folder) as folder:
            yield f"{folder}/peer.db"
        return
    url = server.create_empty("peer")
    try:
        yield url
    finally:
        server.remove_empty("peer")


def run(peer: Peer, *arguments: str) -> dict[str, Any]:
    """Run a peer's script once and return what it printed last."""
    script, home = FOLDER / peer.script, peer.packages[0]
    if script.suffix == ".mjs":
        folder = node_with(home, peer.packages)
        command = [str(node()), str(script)]
    else:
        folder = Path(tempfile.gettempdir())
        command = [str(python_with(home, peer.packages)), str(script)]
    try:
        done = subprocess.run(
            [*command, *arguments, *peer.arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"not done after {PATIENCE:g} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerError((done.stderr or done.stdout).strip()[-1500:] or "it said nothing")
    found: dict[str, Any] = json.loads(lines[-1])
    return found

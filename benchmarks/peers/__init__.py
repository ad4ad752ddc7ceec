"""Other queues on the same machine and server, each with its best documented settings.

A peer is a script of its own that enqueues no-op jobs, drains them in one process, and prints JSON.
Its time is taken by the script itself, from the first run of the handler to the last: the start of
its process is not charged, and what it still has to report afterwards is a gift, unless its reports
lag seconds behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.databases import Server
from benchmarks.homes import HomeError, node_with, python_with
from benchmarks.results import Results
from benchmarks.scale import Scale

FOLDER = Path(__file__).parent
PATIENCE = 120.0


@dataclass(frozen=True)
class Peer:
    """How to get and run one."""

    script: str
    packages: tuple[str, ...]
    engine: str = "postgres"
    share: float = 1.0
    """How much of the jobs it gets: minutes of a slow drain say no more than seconds."""


PEERS = {
    "graphile-worker": Peer("graphile-worker.mjs", ("graphile-worker",)),
    "pg-boss": Peer("pg-boss.mjs", ("pg-boss",)),
    "pgqueuer": Peer("pgqueuer_worker.py", ("pgqueuer", "asyncpg", "uvloop")),
    "procrastinate": Peer("procrastinate_worker.py", ("procrastinate",), share=0.1),
    "chancy": Peer("chancy_worker.py", ("chancy",), share=0.25),
    "dbos": Peer("dbos_queue.py", ("dbos",), share=0.1),
    "huey": Peer("huey_sqlite.py", ("huey",), engine="sqlite", share=0.5),
}


def measure_peers(
    server: Server, results: Results, scale: Scale, names: tuple[str, ...]
) -> dict[str, str]:
    """Let each of them drain; returns its version and settings, or why it did not run."""
    about: dict[str, str] = {}
    for name in names:
        peer = PEERS[name]
        if peer.engine != server.engine:
            continue
        try:
            for _ in range(scale.repeat):
                said = run(name, peer, server, int(scale.peer * peer.share))
                about[name] = f"{said['version']}; {said['settings']}"
                rate = said["jobs"] / said["seconds"]
                results.add("peers", server.engine, name, "jobs/s", rate)
                filled = said["jobs"] / said["enqueue_seconds"]
                results.add("peers", server.engine, name, "enqueued in bulk/s", filled)
        except (HomeError, PeerError) as error:
            print(f"  {name} did not run: {error}", file=sys.stderr, flush=True)
            about[name] = f"did not run; {str(error).splitlines()[-1]}"
    return about


class PeerError(Exception):
    """A peer's script failed."""


def run(name: str, peer: Peer, server: Server, jobs: int) -> dict[str, Any]:
    """Run a peer's script once, on an empty database of its own."""
    script = FOLDER / peer.script
    if script.suffix == ".mjs":
        folder = node_with(name, peer.packages)
        command = ["node", str(script)]
    else:
        folder = Path(tempfile.gettempdir())
        command = [str(python_with(name, peer.packages)), str(script)]
    if peer.engine == "sqlite":
        with tempfile.TemporaryDirectory(dir=server.folder) as home:
            return _outcome([*command, f"{home}/peer.db", str(jobs)], folder)
    url = server.create_empty("peer")
    try:
        return _outcome([*command, url, str(jobs)], folder)
    finally:
        server.remove_empty("peer")


def _outcome(command: list[str], folder: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"not done after {PATIENCE:g} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise PeerError((done.stderr or done.stdout).strip()[-1500:])
    found: dict[str, Any] = json.loads(lines[-1])
    return found

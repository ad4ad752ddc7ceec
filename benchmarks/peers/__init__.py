"""Other queues on the same machine and server, each with its best documented settings.

A peer is a script that enqueues no-op jobs, drains them in one process, and prints JSON. The script
measures its own time, from the first run of the handler to the last. That excludes the start of its
process, and its last reports as well, unless its reports lag behind the runs. The fast ones get
fresh statistics before they start; pulsed does not.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.databases import Server
from benchmarks.homes import node_with, python_with

FOLDER = Path(__file__).parent
PATIENCE = 120.0


@dataclass(frozen=True)
class Promise:
    """What a queue does for a job that has run, with the settings measured."""

    row: str
    """What happens to its row."""
    result: str
    """Whether the handler's result can be read."""
    commit: str
    """How many jobs a commit reports."""
    late: str
    """What a worker's report does after the job went to another worker."""


@dataclass(frozen=True)
class Peer:
    """How to get and run one."""

    title: str
    script: str
    packages: tuple[str, ...]
    promise: Promise
    engine: str = "postgres"
    share: float = 1.0
    """Its share of the jobs: minutes of a slow drain show no more than seconds."""
    jobs: int | None = None
    """A fixed number instead, if its own timer sets its speed."""
    arguments: tuple[str, ...] = ()

    def size(self, all_jobs: int) -> int:
        """Return how many jobs it drains."""
        return self.jobs or int(all_jobs * self.share)


OURS = Promise("kept", "kept", "a batch", "refused, by token")
_PG_BOSS = Promise("kept", "not in batches", "a batch", "accepted while the job runs")

PEERS = {
    "graphile-worker": Peer(
        "graphile-worker",
        "graphile-worker.mjs",
        ("graphile-worker",),
        Promise("deleted", "none", "a batch", "accepted"),
    ),
    "pg-boss": Peer(
        "pg-boss, fetched by hand", "pg-boss.mjs", ("pg-boss",), _PG_BOSS, arguments=("hand",)
    ),
    "pg-boss-work": Peer(
        "pg-boss, work() in batches", "pg-boss.mjs", ("pg-boss",), _PG_BOSS, arguments=("work",)
    ),
    "pg-boss-default": Peer(
        "pg-boss, work() by default",
        "pg-boss.mjs",
        ("pg-boss",),
        Promise("kept", "kept", "one job", "accepted while the job runs"),
        jobs=4,
        arguments=("default",),
    ),
    "pgqueuer": Peer(
        "PgQueuer",
        "pgqueuer_worker.py",
        ("pgqueuer", "asyncpg", "uvloop"),
        Promise("moved to a log, without payload", "none", "a batch", "accepted"),
    ),
    "procrastinate": Peer(
        "Procrastinate",
        "procrastinate_worker.py",
        ("procrastinate",),
        Promise("kept", "none", "one job", "accepted while the job runs or waits"),
        share=0.025,
    ),
    "chancy": Peer(
        "Chancy",
        "chancy_worker.py",
        ("chancy",),
        Promise("kept", "none", "a batch, about a second later", "refused, by claim"),
        share=0.125,
    ),
    "dbos": Peer(
        "DBOS",
        "dbos_queue.py",
        ("dbos",),
        Promise("kept", "kept", "one job", "refused, by owner"),
        share=0.025,
    ),
    "huey": Peer(
        "Huey",
        "huey_sqlite.py",
        ("huey",),
        Promise("deleted before the run", "kept until read", "one job", "no other worker gets it"),
        engine="sqlite",
        share=0.2,
    ),
}

STEPS = Peer(
    "DBOS",
    "dbos_steps_queue.py",
    ("dbos",),
    Promise("kept", "kept", "one step", "refused, by owner"),
)
"""The peer that has durable steps."""


class PeerError(Exception):
    """A peer's script failed."""


def run(peer: Peer, server: Server, jobs: int) -> dict[str, Any]:
    """Run a peer's script once, on its own empty database."""
    script, home = FOLDER / peer.script, peer.packages[0]
    if script.suffix == ".mjs":
        folder = node_with(home, peer.packages)
        command = ["node", str(script)]
    else:
        folder = Path(tempfile.gettempdir())
        command = [str(python_with(home, peer.packages)), str(script)]
    if peer.engine == "sqlite":
        with tempfile.TemporaryDirectory(dir=server.folder) as place:
            return _outcome([*command, f"{place}/peer.db", str(jobs), *peer.arguments], folder)
    url = server.create_empty("peer")
    try:
        return _outcome([*command, url, str(jobs), *peer.arguments], folder)
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
        raise PeerError((done.stderr or done.stdout).strip()[-1500:] or "it said nothing")
    found: dict[str, Any] = json.loads(lines[-1])
    return found

"""Flatness: whether a drain keeps its speed beside many other rows, or under an old snapshot.

Each alternates with a database that has none of them, on the same server. Drained jobs stay in
both, as they would for a user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from benchmarks.databases import Database, Server, enqueue
from benchmarks.processes import drain
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale

CLEAN = f"{PULSED}, nothing beside"
KINDS = {
    "future": f"{PULSED}, future jobs beside",
    "finished": f"{PULSED}, finished jobs beside",
    "foreign": f"{PULSED}, due jobs without a handler beside",
}
CONTROL = f"{PULSED}, no snapshot"
HELD = f"{PULSED}, snapshot held"


def measure_beside(server: Server, results: Results, scale: Scale) -> None:
    """Drain beside future jobs, finished jobs, and due jobs that no worker here can run."""
    databases = {CLEAN: server.database("beside_nothing")}
    for kind, subject in KINDS.items():
        databases[subject] = server.database(f"beside_{kind}")
        databases[subject].fill(kind, scale.beside)
        databases[subject].settle_down()
    for _ in range(scale.repeat):
        for subject, database in databases.items():
            rate = _drain(database, scale.drain, scale.drain_limit)
            results.add("beside", server.engine, subject, "jobs/s", rate)
    for name in ("nothing", *KINDS):
        server.drop(f"beside_{name}")


def measure_snapshot(server: Server, results: Results, scale: Scale) -> None:
    """Drain while another session holds a snapshot that is older than all of it."""
    control, held = server.database("no_snapshot"), server.database("snapshot")
    with holding_snapshot(held):
        for database in (control, held):
            _drain(database, scale.under_snapshot, 2 * scale.drain_limit)
        for _ in range(scale.repeat):
            for subject, database in ((CONTROL, control), (HELD, held)):
                rate = _drain(database, scale.drain, scale.drain_limit)
                results.add("snapshot", server.engine, subject, "jobs/s", rate)
    for name in ("no_snapshot", "snapshot"):
        server.drop(name)


def _drain(database: Database, jobs: int, limit: float) -> float:
    return drain(database, enqueue(database, jobs), limit=limit).rate


@contextlib.contextmanager
def holding_snapshot(database: Database) -> Iterator[None]:
    """Stay in a transaction, as a forgotten report does; dead rows after it cannot be removed."""
    with psycopg.connect(database.url) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM pulse_jobs")
        yield
        session.rollback()

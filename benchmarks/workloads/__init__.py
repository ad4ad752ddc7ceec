"""The workloads, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.databases import Server
from benchmarks.results import Results
from benchmarks.scale import Scale
from benchmarks.workloads.drain import measure_drain
from benchmarks.workloads.enqueue import measure_bulk, measure_enqueue
from benchmarks.workloads.flatness import measure_beside, measure_snapshot
from benchmarks.workloads.footprint import measure_idle, measure_memory, measure_storage
from benchmarks.workloads.latency import measure_pickup, measure_steady
from benchmarks.workloads.recovery import measure_recovery

BOTH = ("postgres", "sqlite")


@dataclass(frozen=True)
class Workload:
    """Something to measure, and where it can be."""

    measure: Callable[[Server, Results, Scale], None]
    title: str
    method: str
    """How it is measured, in words for the page."""
    engines: tuple[str, ...] = BOTH
    quick: bool = True
    """Whether a glance includes it."""


WORKLOADS = {
    "drain": Workload(
        measure_drain,
        "Drain",
        """\
No-op jobs are enqueued, then `pulsed worker` processes with default settings work them off;
results and rows are kept. The time is read from the rows: from the moment when every worker had
started its first job to the end of the last one. The raw loops claim and complete on the same
table with the same indexes, in batches, with the next claim in flight, and are timed from the
rows in the same way.""",
    ),
    "enqueue": Workload(
        measure_enqueue,
        "Enqueue one by one",
        """\
One process, one job for each call and commit, through the sync API; raw is a prepared
single-row INSERT on an open connection.""",
    ),
    "bulk": Workload(
        measure_bulk,
        "Bulk enqueue",
        """\
One process; `enqueue_many` is one transaction, `enqueue_iter` one for every 5,000 jobs. Making
and checking the payloads is part of it. Raw is given its rows ready made, and writes them in
one transaction.""",
    ),
    "pickup": Workload(
        measure_pickup,
        "Idle pick-up",
        """\
A worker has nothing to do; another process enqueues single jobs, 15 to 45 ms apart, through the
sync API. From before the call of `enqueue` to the first line of the handler. Raw: one process
inserts and notifies in one statement, another one listens, claims, and reads the clock.""",
    ),
    "steady": Workload(
        measure_steady,
        "Steady load",
        """\
A producer process enqueues single jobs at a rate, each at its time whether or not those before
it were stored (open loop). From the transaction of the submit to the claim, by the database's
clock.""",
        quick=False,
    ),
    "beside": Workload(
        measure_beside,
        "Beside a crowd",
        """\
One worker, 100 slots, beside a million rows in the same queue: jobs of the future, finished
jobs, or due jobs, older than all others, of a topic that the worker has no handler for. In
turns with a database without them.""",
    ),
    "snapshot": Workload(
        measure_snapshot,
        "Under a held snapshot",
        """\
Another session stays in a transaction that is older than all jobs, so that no dead row or index
entry can be removed. 100,000 jobs are drained first, in this database and in the control, then
they take turns.""",
        engines=("postgres",),
    ),
    "recovery": Workload(
        measure_recovery,
        "Recovery",
        """\
SIGKILL to a worker with a running job (lease 2 s, tick 1 s, no backoff), with a second worker
alive. From the kill to the first line of the handler in the other worker.""",
        quick=False,
    ),
    "storage": Workload(
        measure_storage,
        "Write-ahead log, dead rows, disk",
        """\
What enqueueing and draining the jobs of a drain write, by the server's own counters; kept is
the table with its indexes (or the file) afterwards.""",
        quick=False,
    ),
    "idle": Workload(
        measure_idle,
        "Idle worker",
        """\
Processor time of all its threads, transactions by the server's counter (asked from another
database), and resident memory, while nothing is due.""",
        quick=False,
    ),
    "memory": Workload(
        measure_memory,
        "Memory of a busy worker",
        """\
Resident memory of a worker, looked at four times a second while it drains a long queue.""",
        quick=False,
    ),
}

"""The workloads, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.databases import Server
from benchmarks.results import Results
from benchmarks.scale import Scale
from benchmarks.workloads.bulk_acts import measure_bulk_acts
from benchmarks.workloads.drain import measure_drain
from benchmarks.workloads.enqueue import measure_aenqueue, measure_bulk, measure_enqueue
from benchmarks.workloads.flatness import measure_beside, measure_snapshot
from benchmarks.workloads.footprint import measure_idle, measure_memory, measure_storage
from benchmarks.workloads.latency import measure_pickup, measure_steady
from benchmarks.workloads.limits import measure_limits
from benchmarks.workloads.observed import TURN, measure_observed
from benchmarks.workloads.operators import measure_operators
from benchmarks.workloads.pages import jobs_of, measure_pages
from benchmarks.workloads.phases import PHASES, RATE, measure_phases
from benchmarks.workloads.processes import measure_processes
from benchmarks.workloads.recovery import measure_recovery
from benchmarks.workloads.server import measure_server, measure_server_pickup
from benchmarks.workloads.workflows import (
    measure_fan_out,
    measure_steps,
    measure_steps_beside_peers,
)

BOTH = ("postgres", "sqlite")


@dataclass(frozen=True)
class Workload:
    """Something to measure, and where it can be."""

    measure: Callable[[Server, Results, Scale], None]
    title: str
    method: str
    """How it is measured, in words for the page."""
    size: Callable[[Scale], str]
    """How much of it, in words."""
    engines: tuple[str, ...] = BOTH
    samples: Callable[[Scale], int] = lambda scale: scale.repeat
    """How many of each figure."""
    quick: bool = True
    """Whether a glance includes it."""
    beside_peers: bool = False
    """Whether it takes turns with other queues where these are asked for."""


WORKLOADS = {
    "drain": Workload(
        measure_drain,
        "Drain",
        """\
No-op jobs are enqueued, then one `pulsed worker` with default settings works them off; results and
rows are kept. Its time is read from the rows: from its first claim to the end of the last job. It
takes turns with the bare driver on a table of three columns with one partial index (claim a batch
with SKIP LOCKED, complete it by its ids: in turn on one connection, or on two with the next claim
in flight), and with other queues, each on its own database on the same server; slow ones get fewer
jobs. The time of a peer runs from the first call of its handler to its last report, or to the last
call where that cannot be seen. Peers run in one process.

Processor time is that of the worker's processes and of the database's (or Redis's) during the
drain. Idle is the share of both cores' time in which there was nothing to do, or only the disk to
wait for: a queue that leaves cores idle waits for itself.""",
        lambda scale: f"{scale.long_drain:,} jobs",
        beside_peers=True,
    ),
    "processes": Workload(
        measure_processes,
        "Two processes",
        """\
The same drain with one and two worker processes, which share the two cores with the database.""",
        lambda scale: f"{scale.drain:,} jobs",
        quick=False,
    ),
    "enqueue": Workload(
        measure_enqueue,
        "Enqueue one by one",
        """\
One process, one job for each call, through the sync API: one caller, and 10 and 100 threads that
each call once after the other. Bare is a prepared single-row INSERT into a table of three columns
on an open connection.""",
        lambda scale: f"{scale.enqueue:,} jobs",
    ),
    "aenqueue": Workload(
        measure_aenqueue,
        "Async enqueue",
        """\
One process and event loop, uvloop as in uvicorn; 1, 10 and 100 callers each await one `aenqueue`
after the other, as the requests of a web server do. Jobs that are in flight at once share a commit.
Bare is a prepared single-row INSERT into a table of three columns, one after the other.""",
        lambda scale: f"{scale.enqueue:,} jobs",
    ),
    "bulk": Workload(
        measure_bulk,
        "Bulk enqueue",
        """\
One process; `enqueue_many` is one transaction, `enqueue_iter` one for every 5,000 jobs. Making
and checking the payloads is part of it. Bare is given its rows ready made, and writes them into a
table of three columns in one transaction. graphile-worker gets all in one call of `addJobs`.""",
        lambda scale: f"{scale.bulk:,} jobs",
        beside_peers=True,
    ),
    "pickup": Workload(
        measure_pickup,
        "Idle pick-up",
        """\
A worker is idle; another process enqueues single jobs, 15 to 45 ms apart, through the sync API or
the async one. The time runs from before the call to the first line of the handler. Bare: one
process inserts into a table of three columns and notifies in one statement, another one listens,
claims, and reads the clock. Huey's consumer has one thread; it polls, so how often decides.""",
        lambda scale: f"{scale.pickups:,} jobs",
        beside_peers=True,
    ),
    "steady": Workload(
        measure_steady,
        "Steady load",
        """\
A producer process enqueues single jobs at a rate, each at its time whether or not those before
it were stored (open loop). The time runs from the transaction of the submit to the claim, by the
database's clock.""",
        lambda scale: f"{scale.steady_seconds:g} s",
        quick=False,
    ),
    "beside": Workload(
        measure_beside,
        "Beside a crowd",
        """\
One worker, 100 slots, beside many other rows in the same queue: future jobs, finished jobs, or due
jobs, older than all others, of a topic that the worker has no handler for. It alternates with a
database without them.""",
        lambda scale: f"{scale.drain:,} jobs beside {scale.beside:,}",
    ),
    "phases": Workload(
        measure_phases,
        "Beside an idle transaction",
        """\
A steady load, produced and consumed by the adapter for the public long-horizon benchmark of
PostgreSQL queues (`benchmarks/long_horizon`): first clean, then beside a session that is idle in a
transaction, then after it. The times run from before the INSERT to the first line of the handler,
over half a minute; samples of the first third of each phase do not count.""",
        lambda scale: f"{RATE} jobs/s, {len(PHASES)} × {scale.phase_seconds:g} s",
        engines=("postgres",),
        samples=lambda scale: int(scale.phase_seconds * 2 / 3),
        quick=False,
    ),
    "snapshot": Workload(
        measure_snapshot,
        "Under a held snapshot",
        """\
Another session stays in a transaction that is older than all jobs, so that no dead row or index
entry can be removed. A first batch of jobs is drained under it, in this database and in the
control; then the two alternate.""",
        lambda scale: f"{scale.drain:,} jobs after {scale.under_snapshot:,}",
        engines=("postgres",),
    ),
    "recovery": Workload(
        measure_recovery,
        "Recovery",
        """\
SIGKILL to a worker with a running job (lease 2 s, tick 1 s, no backoff), with a second worker
alive. The time runs from the kill to the first line of the handler in the other worker.""",
        lambda _: "one kill each",
        samples=lambda scale: scale.kills,
        quick=False,
    ),
    "storage": Workload(
        measure_storage,
        "Write-ahead log, dead rows, disk",
        """\
What enqueueing and draining the jobs of a drain write, by the server's own counters; kept is
the table with its indexes (or the file) afterwards.""",
        lambda scale: f"{scale.drain:,} jobs",
        quick=False,
    ),
    "idle": Workload(
        measure_idle,
        "Idle worker",
        """\
Processor time of all its threads, statements by the server's log (without BEGIN and COMMIT), and
resident memory, while nothing is due.""",
        lambda scale: f"{scale.idle_seconds:g} s",
        quick=False,
    ),
    "memory": Workload(
        measure_memory,
        "Memory of a busy worker",
        """\
Resident memory of one worker with 100 slots, sampled ten times a second while it drains a long
queue: the maximum of all samples, and the first sample after each tenth of the jobs (with
`--quick`, several tenths share a sample).""",
        lambda scale: f"{scale.memory:,} jobs",
        samples=lambda _: 1,
        quick=False,
    ),
    "observed": Workload(
        measure_observed,
        "Statistics and metrics",
        f"""\
One worker with 100 slots drains no-op jobs. After every {TURN:,} of them it changes between
neither, statistics, and both. The figure is the processor time of the worker's process, and the
target compares neighbouring turns. Workers write their statistics every five seconds: that flush is
measured separately.""",
        lambda scale: f"{scale.observed:,} jobs",
        samples=lambda scale: scale.observed // (3 * TURN),
        quick=False,
    ),
    "steps": Workload(
        measure_steps,
        "Steps of a workflow",
        """\
A workflow takes no-op steps one after the other, each stored before the next begins, timed by its
own clock. Bare: single-row inserts in the same database, one commit each. Many workflows at once
share commits; their time is read from the rows.""",
        lambda scale: f"{scale.steps:,} steps",
    ),
    "fan-out": Workload(
        measure_fan_out,
        "Fan-out",
        """\
A job fans out to no-op children, waits for them, and ends: from its submit to its end. It
alternates with as many jobs without a parent, enqueued in one call: from their submit to the end of
the last.""",
        lambda scale: f"{scale.children:,} children",
    ),
    "server": Workload(
        measure_server,
        "Drain through the server",
        """\
The same worker drains with the URL of the database, and with that of a `pulsed server`,
alternately. Server, worker and database share the cores of the machine.""",
        lambda scale: f"{scale.drain:,} jobs",
        engines=("postgres",),
    ),
    "server-pickup": Workload(
        measure_server_pickup,
        "Idle pick-up through the server",
        """\
As the idle pick-up above, and the same through a `pulsed server`: the job is enqueued through it
and picked up through it. Both workers wait all the time, each on its own database, and get a job
alternately, because a moment in which the machine stalls decides a p99. Each of them gets a job
every 30 to 90 ms. A worker that was idle for five seconds is offered a job before it is sent one,
which takes one more exchange; that is not measured here.""",
        lambda scale: f"{scale.pickups:,} jobs",
        engines=("postgres",),
    ),
    "operators": Workload(
        measure_operators,
        "Lists, counts and acts",
        """\
Every interactive operation, one after the other in one process, beside finished jobs; what the
doctor reads beside due jobs as well. Filters that match nothing scan the most. A page of a list has
100 jobs. Bulk acts find 1,000 jobs of one topic by reading the whole table, page by page. For a
command, the figure is the processor time of its process, in addition to its queries.""",
        lambda scale: f"{scale.beside:,} jobs",
    ),
    "limits": Workload(
        measure_limits,
        "Limits",
        """\
One process claims 100 jobs at a time and reports them at once: without a limit, under one, with a
key for each job, and of 50 keys alone and beside a full key. Then nine tenants with 100 jobs each
share the slots with one that has all others; 1.0 means that they are done when their shares allow
it.""",
        lambda scale: f"{scale.drain:,} jobs, {scale.under_snapshot:,} of the full key",
        quick=False,
    ),
    "bulk-acts": Workload(
        measure_bulk_acts,
        "Bulk operations",
        """\
A bulk operation gives all future jobs another priority, while a worker drains no-op jobs; that
alternates with the same drain alone. Then the operation's process is killed (SIGKILL), and another
one finishes it: the rate is that of the rest, with the ten seconds for which the operation is left
to the process that died. Every job has to be changed in the end.""",
        lambda scale: f"{scale.beside:,} jobs",
        quick=False,
    ),
    "pages": Workload(
        measure_pages,
        "Pages of the dashboard",
        """\
Beside a week of jobs in every status, with their statistics: every page, and searches of every
kind. A request runs in the process of the dashboard, without a network, from the request to the
whole answer. Cold, nothing was read before; warm, another tab has just requested the same page. The
processor time is that of the dashboard's process, which includes SQLite's. Memory is that of
`pulsed ui` before and after some thousand requests. Ten tabs are open on ten pages, each with its
event stream, and fetch their pages again after every tick, while an idle worker picks up single
jobs, and then drains many; that alternates with the same without a dashboard, on the same two
cores.""",
        lambda scale: f"{scale.beside:,} jobs, {jobs_of('sqlite', scale):,} on SQLite",
        quick=False,
    ),
    "peers-steps": Workload(
        measure_steps_beside_peers,
        "Steps beside a peer",
        """\
One workflow of no-op steps, one after the other, alternating with one of DBOS on the same server,
which also stores each step before the next. Each is timed by its own clock.""",
        lambda scale: f"{scale.steps:,} steps",
        engines=("postgres",),
        quick=False,
    ),
}

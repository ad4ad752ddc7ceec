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
    engines: tuple[str, ...] = BOTH


WORKLOADS = {
    "drain": Workload(measure_drain),
    "enqueue": Workload(measure_enqueue),
    "bulk": Workload(measure_bulk),
    "pickup": Workload(measure_pickup),
    "steady": Workload(measure_steady),
    "beside": Workload(measure_beside),
    "snapshot": Workload(measure_snapshot, engines=("postgres",)),
    "recovery": Workload(measure_recovery),
    "storage": Workload(measure_storage),
    "idle": Workload(measure_idle),
    "memory": Workload(measure_memory),
}

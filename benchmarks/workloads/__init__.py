"""The workloads, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.databases import Server
from benchmarks.results import Results
from benchmarks.scale import Scale
from benchmarks.workloads.drain import measure_drain

BOTH = ("postgres", "sqlite")


@dataclass(frozen=True)
class Workload:
    """Something to measure, and where it can be."""

    measure: Callable[[Server, Results, Scale], None]
    engines: tuple[str, ...] = BOTH


WORKLOADS = {
    "drain": Workload(measure_drain),
}

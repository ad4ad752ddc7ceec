"""Whether a measure stays flat: the last third of a soak beside the first, after its warm-up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from tests.chaos.checker import Check

WARM_UP = 0.15
"""The share of a run in which caches fill and the first finished jobs are not yet removed."""

# Of each measure: by which factor the last third may exceed the first, and below which value nobody
# cares. Latencies are those of a machine that others use, too.
LIMITS: dict[str, tuple[float, float]] = {
    "p50 start, ms": (1.5, 5.0),
    "p99 start, ms": (2.0, 100.0),
    "dead tuples": (2.0, 5_000.0),
    "WAL per job, bytes": (1.3, 0.0),
    "tables, MB": (1.5, 2.0),
    "log, MB": (1.5, 8.0),
    "worker, MB": (1.15, 0.0),
    "worker, descriptors": (1.2, 0.0),
}
LEAST_THROUGHPUT = 0.9
THROUGHPUT = "jobs/s"


def ratio(values: Sequence[float], floor: float = 0.0) -> float:
    """Return the median of the last third over that of the first, of what is above the floor."""
    known = [max(value, floor) for value in values if not math.isnan(value)]
    known = known[int(len(known) * WARM_UP) :]
    third = len(known) // 3
    if not third:
        return math.nan
    first, last = statistics.median(known[:third]), statistics.median(known[-third:])
    return last / first if first else (math.inf if last else 1.0)


def check(series: Mapping[str, Sequence[float]]) -> list[Check]:
    """Return for each measure whether it is flat."""
    checks = []
    for name, values in series.items():
        if all(math.isnan(value) for value in values):
            continue
        if name == THROUGHPUT:
            found = ratio(values)
            bad = not found >= LEAST_THROUGHPUT
        elif name in LIMITS:
            most, floor = LIMITS[name]
            found = ratio(values, floor)
            bad = not found <= most
        else:
            continue
        what = f"{name}: last third / first third = {found:.2f}"
        checks.append(Check("flat", what, len(values), int(bad)))
    return checks

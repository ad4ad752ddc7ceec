"""The targets, as data."""

from __future__ import annotations

from benchmarks.targets.cost import cost_targets
from benchmarks.targets.speed import speed_targets
from benchmarks.targets.target import Target

TARGETS: list[Target] = [
    target
    for engine in ("postgres", "sqlite")
    for target in (*speed_targets(engine), *cost_targets(engine))
]

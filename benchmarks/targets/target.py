"""A target: what a run should reach.

It is a ratio of two figures of the same part wherever possible, so that it means the same on any
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import PULSED, Results, ratio

Figure = Callable[[Results], float | None]
RATE = "jobs/s"


@dataclass(frozen=True)
class Target:
    """A line of the table."""

    what: str
    engine: str
    compared: str
    """With what, in words."""
    figure: Figure
    bound: float
    at_least: bool = True
    unit: str = "×"
    rival: bool = False
    """Whether it is compared with another queue."""

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    @property
    def wanted(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.bound:g} {self.unit} {self.compared}".strip()


def relative(workload: str, engine: str, ours: str, theirs: str, metric: str = RATE) -> Figure:
    """Compare two subjects of one part."""
    return lambda results: ratio(
        results.find(workload, engine, ours, metric),
        results.find(workload, engine, theirs, metric),
    )


def plain(workload: str, engine: str, metric: str, subject: str = PULSED) -> Figure:
    """Take a figure as it is."""

    def figure(results: Results) -> float | None:
        found = results.find(workload, engine, subject, metric)
        return None if found is None else found.median

    return figure


def beside_fastest(
    workload: str, engine: str, ours: str, *, is_rival: Callable[[str], bool]
) -> Figure:
    """Compare a rate with that of the fastest of some others in the same part."""

    def figure(results: Results) -> float | None:
        rivals = [m for m in results.of(workload, engine) if m.metric == RATE]
        rivals = [m for m in rivals if is_rival(m.subject)]
        fastest = max(rivals, key=lambda rival: rival.median, default=None)
        return ratio(results.find(workload, engine, ours, RATE), fastest)

    return figure

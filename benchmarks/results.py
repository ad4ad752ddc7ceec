"""What was measured: samples by workload, engine, subject and metric, and how they compare."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

PULSED = "pulsed"


@dataclass
class Measurement:
    """The samples of one figure, in the order in which they were taken."""

    workload: str
    engine: str
    subject: str
    """pulsed, a bare driver or a peer, with what sets it apart: ``pulsed, 2 processes``."""
    metric: str
    """With its unit: ``jobs/s``, ``p50 ms``."""
    samples: list[float] = field(default_factory=list)
    run: str = ""
    """When the part it belongs to was begun; only figures of one part are compared."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


class Results:
    """Everything measured so far."""

    def __init__(self, run: str, measurements: list[Measurement] | None = None) -> None:
        self.run = run
        self.about: dict[str, str] = {}
        """What else is to be known about a subject: its version and settings."""
        self._found = {self._key(m): m for m in measurements or []}

    def add(self, workload: str, engine: str, subject: str, metric: str, *samples: float) -> None:
        """Record samples, and say so: a run takes minutes."""
        new = Measurement(workload, engine, subject, metric, run=self.run)
        self._found.setdefault(self._key(new), new).samples += samples
        shown = ", ".join(map(readable, samples[:5])) + (", …" if len(samples) > 5 else "")
        print(f"  {workload} · {engine} · {subject}: {shown} {metric}", file=sys.stderr, flush=True)

    def find(self, workload: str, engine: str, subject: str, metric: str) -> Measurement | None:
        return self._found.get((workload, engine, subject, metric))

    def of(self, workload: str, engine: str | None = None) -> Iterator[Measurement]:
        for measurement in self._found.values():
            if measurement.workload == workload and engine in (None, measurement.engine):
                yield measurement

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._found.values())

    def replace(self, workload: str, engine: str, new: Results) -> None:
        """Put what was measured again in the place of what was known."""
        kept = {key: m for key, m in self._found.items() if key[:2] != (workload, engine)}
        self._found = kept | {self._key(m): m for m in new}

    @staticmethod
    def _key(measurement: Measurement) -> tuple[str, str, str, str]:
        return (
            measurement.workload,
            measurement.engine,
            measurement.subject,
            measurement.metric,
        )


def ratio(ours: Measurement | None, theirs: Measurement | None) -> float | None:
    """Compare two figures of one part: sample by sample if they were taken in turns."""
    if ours is None or theirs is None or ours.run != theirs.run:
        return None
    if len(ours.samples) == len(theirs.samples):
        pairs = zip(ours.samples, theirs.samples, strict=True)
        return statistics.median(own / other for own, other in pairs)
    return ours.median / theirs.median


def percentile(samples: list[float], percent: float) -> float:
    """Return the sample below which so many percent lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def readable(value: float) -> str:
    """Write a figure with three digits that mean something."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"

"""Pictures of numbers over time: data for the charts, and small bars drawn by the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from pulsed.model.rollup import Series

SPANS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
"""The lengths of time that a chart can show."""

MOST_BARS = 30
BAR_HEIGHT = 18
BARS_WIDTH = 120


def span_in(query: Mapping[str, str]) -> str:
    """Return the span that the parameters of an address choose."""
    span = query.get("span", "")
    return span if span in SPANS else "1h"


def chart_data(series: Series) -> str:
    """Return a series for the charts, as JSON: columns of equal length.

    Rates are per minute; durations are seconds, null where nothing ran.
    """
    minutes = series.step / 60
    points = [(point.at.timestamp(), point.stats) for point in series.points]
    columns = {
        "at": [at for at, _ in points],
        "succeeded": [stats.succeeded / minutes for _, stats in points],
        "failed": [(stats.failed + stats.dead_lettered) / minutes for _, stats in points],
        "submitted": [stats.submitted / minutes for _, stats in points],
        "wait_p50": [stats.wait.p50 for _, stats in points],
        "wait_p95": [stats.wait.p95 for _, stats in points],
        "run_p50": [stats.run.p50 for _, stats in points],
        "run_p95": [stats.run.p95 for _, stats in points],
    }
    return msgspec.json.encode(columns).decode()


def bars(values: Sequence[float]) -> str:
    """Return the path of an SVG picture with one bar per value, the highest at full height."""
    grouped = _grouped(values)
    top = max(grouped, default=0) or 1
    step = BARS_WIDTH / max(1, len(grouped))
    width = max(1.0, step - 1)
    drawn = []
    for number, value in enumerate(grouped):
        height = max(1.0, value / top * BAR_HEIGHT) if value else 0.0
        if height:
            x = f"{number * step:.1f}".removesuffix(".0")
            drawn.append(f"M{x} {BAR_HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z")
    return "".join(drawn)


def _grouped(values: Sequence[float]) -> list[float]:
    """Return the sums of neighbours, at most so many; what is left over is the oldest."""
    size = -(-len(values) // MOST_BARS) or 1
    first = len(values) % size
    return [sum(values[at : at + size]) for at in range(first, len(values), size)]

"""Numbers over time as one line of small bars."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
NONE = "·"
"""Stands for zero, which has no bar."""


def sparkline(values: Sequence[float], width: int) -> str:
    """Return at most ``width`` bars, the highest of them full; neighbours are added up."""
    size = -(-len(values) // max(1, width)) or 1
    grouped = [sum(values[at : at + size]) for at in range(0, len(values), size)]
    top = max(grouped, default=0)
    return "".join(_bar(value / top) if value else NONE for value in grouped)


def _bar(share: float) -> str:
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]

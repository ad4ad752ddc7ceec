"""Percentiles of the last seconds, in bounded memory."""

from __future__ import annotations

import math
from collections import Counter, deque

PRECISION = math.log(1.005)
"""Buckets are half a percent wide: percentiles have the three digits that the harness asks for."""
SHORTEST = 0.001
"""Milliseconds below which all values are alike."""


class RecentLatencies:
    """Counts latencies in buckets, one set of buckets for each second of a window."""

    def __init__(self, seconds: int = 30) -> None:
        self._seconds: deque[tuple[int, Counter[int]]] = deque(maxlen=seconds)

    def add(self, milliseconds: float, now: float) -> None:
        """Count a latency at an instant."""
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        bucket = int(math.log(max(milliseconds, SHORTEST) / SHORTEST) / PRECISION)
        self._seconds[-1][1][bucket] += 1

    def percentiles(self, *percents: float, now: float) -> list[float]:
        """Return percentiles in milliseconds; 0 if nothing was counted within the window."""
        since = int(now) - (self._seconds.maxlen or 0)
        counted: Counter[int] = Counter()
        for second, buckets in self._seconds:
            if second > since:
                counted.update(buckets)
        return [_percentile(counted, percent) for percent in percents]


def _percentile(counted: Counter[int], percent: float) -> float:
    left = math.ceil(counted.total() * percent / 100)
    for bucket in sorted(counted):
        left -= counted[bucket]
        if left <= 0:
            return SHORTEST * math.exp((bucket + 0.5) * PRECISION)
    return 0.0

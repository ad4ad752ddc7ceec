"""The buckets of a histogram of durations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 10_800.0, 43_200.0,
)  # fmt: skip
"""Upper bounds of the buckets of a histogram, in seconds, inclusive. One more bucket has the rest.
They are columns of the database: changing them takes a migration."""
BUCKETS = len(BOUNDS) + 1


def buckets_of(durations: Iterable[float]) -> Mapping[int, int]:
    """Return how many durations are in each bucket that has any."""
    ordered = sorted(durations)  # so that a batch takes a search for each bucket, not for each run
    buckets: dict[int, int] = {}
    begin, end = 0, len(ordered)
    while begin < end:
        bucket = bisect_left(BOUNDS, ordered[begin])
        after = bisect_right(ordered, BOUNDS[bucket]) if bucket < len(BOUNDS) else end
        buckets[bucket] = after - begin
        begin = after
    return buckets

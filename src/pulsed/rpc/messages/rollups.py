"""Statistics to messages and back."""

from __future__ import annotations

from typing import Any

from pulsed.model.buckets import BUCKETS
from pulsed.model.rollup import COUNTS, ErrorRollup, Histogram, Rollup, Stats
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.conversion import Conversion
from pulsed.rpc.messages.values import instant, maybe, stamp


def rollup_message(rollup: Rollup) -> pb.Rollup:
    """Return the statistics of a queue and topic as a message."""
    stats = rollup.stats
    return pb.Rollup(
        at=stamp(rollup.at),
        queue=rollup.queue,
        topic=rollup.topic,
        wait=_histogram_message(stats.wait),
        run=_histogram_message(stats.run),
        **{name: getattr(stats, name) for name in COUNTS},
    )


def rollup_of(message: Any) -> Rollup:
    """Return the statistics of a message."""
    counts = {name: getattr(message, name) for name in COUNTS}
    stats = Stats(**counts, wait=_histogram_of(message.wait), run=_histogram_of(message.run))
    return Rollup(instant(message.at), maybe(message, "queue"), maybe(message, "topic"), stats)


_error = Conversion(ErrorRollup, pb.ErrorRollup)
error_message = _error.message
"""Return how often an error happened as a message."""
error_of = _error.value
"""Return how often an error happened, from a message."""


def _histogram_message(histogram: Histogram) -> pb.Histogram | None:
    """Return a histogram as a message, without the zeros at its end."""
    counts = list(histogram.counts)
    while counts and not counts[-1]:
        counts.pop()
    return pb.Histogram(counts=counts, seconds=histogram.seconds) if counts else None


def _histogram_of(message: Any) -> Histogram:
    counts = tuple(message.counts)
    if len(counts) > BUCKETS:
        raise ValueError(f"a histogram has at most {BUCKETS} buckets")
    return Histogram(counts + (0,) * (BUCKETS - len(counts)), message.seconds)

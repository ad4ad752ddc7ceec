"""What a server accepts of a worker's statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pulsed.handler import clean_text
from pulsed.handler.options import checked_due, checked_name
from pulsed.model.rollup import COUNTS, MINUTE, OTHERS, ErrorRollup, Rollup, error_text, floor
from pulsed.rpc.messages.errors import invalid
from pulsed.rpc.messages.rollups import error_of, rollup_of
from pulsed.rpc.server.checks.items import converted

MOST_IN_A_MINUTE = 10**9
"""Of any count: an hour of them still fits its column."""


def rollup(message: Any) -> Rollup:
    """Return a worker's statistics of a minute, queue and topic."""
    said: Rollup = converted(rollup_of, message)
    stats = said.stats
    _check_counts(getattr(stats, name) for name in COUNTS)
    for histogram in (stats.wait, stats.run):
        _check_counts(histogram.counts)
        if not 0 <= histogram.seconds < math.inf:
            raise invalid(f"{histogram.seconds} s is no sum of durations.")
    queue, topic = _name("queue", said.queue), _name("topic", said.topic)
    return Rollup(floor(checked_due("at", said.at), MINUTE), queue, topic, stats)


def error(message: Any) -> ErrorRollup:
    """Return how often an error happened in a minute."""
    said: ErrorRollup = converted(error_of, message)
    _check_counts((said.count, said.dead_lettered))
    name, text = error_text(clean_text(said.error), clean_text(said.message))
    return ErrorRollup(
        at=floor(checked_due("at", said.at), MINUTE),
        queue=_name("queue", said.queue),
        topic=_name("topic", said.topic),
        error=name,
        count=said.count,
        dead_lettered=said.dead_lettered,
        last_at=checked_due("last_at", said.last_at),
        message=text,
    )


def _name(what: str, value: str | None) -> str:
    return checked_name(what, value) if value else OTHERS


def _check_counts(counts: Iterable[int]) -> None:
    for count in counts:
        if not 0 <= count <= MOST_IN_A_MINUTE:
            raise invalid(f"{count:,} of anything in a minute are too many, or too few.")

"""A job's stream: the items that its runs emit, in order, for readers in any process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from pulsed.model.job import Lease, Status

LARGEST_ITEM = 65_536
"""Bytes of one item as JSON."""
LARGEST_STORED = 2 * LARGEST_ITEM
"""Bytes of one item as it is stored, which a codec has made longer."""
KEPT_ITEMS = 10_000
"""Of a job's stream, how many items are kept; the oldest are removed first…"""
KEPT_BYTES = 16 * 1024 * 1024
"""…and how many bytes of them."""
TRIMMED_EVERY = 100
"""Items after which a stream is trimmed: so many, or their bytes, may be stored beyond that."""
LAST_POSITION = 2**53 - 1
"""The largest position: browsers calculate exactly up to here."""
MOST_RUNS = 2**31 - 1


class StreamItem(msgspec.Struct, frozen=True):
    """One item as it is stored."""

    position: int
    """Its number in the job's stream, from 1 and without gaps."""
    run: int
    """The number of the run that emitted it, from 1, among the runs that emitted something."""
    value: str
    """JSON text."""
    emitted_at: datetime


class Emission(NamedTuple):
    """Consecutive items of one run, to be written under its lease."""

    lease: Lease
    run: int
    first: int
    """The position of the first of them."""
    values: Sequence[str]

    @property
    def reaches_trim(self) -> bool:
        """Whether the stream should be trimmed after these items."""
        before = self.first - 1
        return (before + len(self.values)) // TRIMMED_EVERY > before // TRIMMED_EVERY


class StreamPage(NamedTuple):
    """Items after a position, and the status that the job had before they were read.

    So a page that ends a stream has a terminal status and no items after it.
    """

    items: Sequence[StreamItem]
    status: Status | None
    """None: there is no such job."""

"""The store's interface for statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from pulsed.model.rollup import By, ErrorRollup, Errors, Rollup, RollupFilter, SeriesRows, Totals


class RollupStore(ABC):
    """Where statistics live. Every answer is read from them, and none from the jobs."""

    @abstractmethod
    async def record(
        self, recorder: UUID, rollups: Sequence[Rollup], errors: Sequence[ErrorRollup] = ()
    ) -> datetime:
        """Write what one recorder has counted; returns the database's time.

        Each row is the recorder's total of a minute so far, and replaces a lower one; so the call
        may be repeated. A minute that is over for ten minutes is ignored.
        """

    @abstractmethod
    async def series(
        self, where: RollupFilter, step: int | None = None, *, by: Collection[By] = ()
    ) -> SeriesRows:
        """Read statistics over time, in steps of so many seconds.

        Args:
            where: The first step begins at its ``since``, or before.
            step: Whole minutes; None chooses one that suits the length. It is longer than asked for
                where minutes are not kept any more.
            by: With ``queue`` or ``topic``, rows for each of them.
        """

    @abstractmethod
    async def totals(self, where: RollupFilter) -> Totals:
        """Read the sums over a span of time, by queue and topic, the busiest first."""

    @abstractmethod
    async def errors(self, where: RollupFilter, *, limit: int) -> Errors:
        """Read which errors happened, the most frequent first, each with its last message."""

    @abstractmethod
    async def fold(self, *, keep: float | None, limit: int) -> int:
        """Fold minutes of recorders into rows of longer spans, and remove what is too old.

        Hours are kept for ``keep`` seconds, or for ever. Works on at most ``limit`` rows of each
        kind; returns the number of the kind with the most.
        """

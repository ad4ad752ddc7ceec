"""The database's clock, as this process last measured it.

Events carry its time, and how long a job waited is the difference of two of its instants. Asking
for it with every batch would cost a round trip, so it is measured now and then, and the process's
own monotonic clock counts the time in between.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta

from pulsed.engine.forever import forever
from pulsed.store.base import Store

log = logging.getLogger("pulsed.events")

INTERVAL = 30.0
"""Seconds between two measurements."""

MOST_UNCERTAIN = 1.0
"""Seconds that a measurement may take; a longer one is discarded."""


class DatabaseClock:
    """Says what time it is in the database, without asking it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._zero = datetime.now(UTC) - timedelta(seconds=time.monotonic())
        """The database's time when the monotonic clock was 0. Until measured, the process's."""

    def now(self) -> datetime:
        """Return the database's time."""
        return self.at(time.monotonic())

    def at(self, monotonic: float) -> datetime:
        """Return the database's time at an instant of the monotonic clock."""
        return self._zero + timedelta(seconds=monotonic)

    async def measure(self) -> None:
        """Ask the database for its time, and correct this clock by no more than that proves wrong.

        The answer was right at some instant while the question was in flight.
        """
        before = time.monotonic()
        now = await self._store.now()
        after = time.monotonic()
        if after - before <= MOST_UNCERTAIN:
            earliest, latest = now - timedelta(seconds=after), now - timedelta(seconds=before)
            self._zero = min(max(self._zero, earliest), latest)

    async def run(self) -> None:
        """Measure for ever, while there are subscribers who want to know."""
        await forever(
            self._tick,
            "reading the database's clock",
            log=log,
            after_failure=lambda _: INTERVAL,
            level=lambda _error, _failures: logging.DEBUG,
        )

    async def _tick(self) -> float:
        if self._store.events.wanted:
            await self.measure()
        return INTERVAL

"""Gives up statements that get no answer, with one timer for all of an event loop.

The server ends a statement that takes too long, so what comes here waits for a server that hangs or
for a network that has lost the connection. It has waited for half a minute, and a second more does
not matter; a timer for each statement would take a tenth of the processor time of a small one.
"""

from __future__ import annotations

import asyncio
import time

from pulsed.store.postgres.asyncpg_connection import AsyncpgConnection

CHECK_EVERY = 1.0
"""Seconds between two checks while statements are in flight."""


class TimeLimit:
    """How long a verb may wait: an urgent one in all, another one for each of its answers."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float, *, is_urgent: bool = False) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds if is_urgent else None

    def left(self) -> float | None:
        """Return the seconds that an urgent verb has left; None for another."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def next_answer(self, connection: AsyncpgConnection) -> float | None:
        """Limit the wait for a connection's next answer; returns the driver's part of that."""
        if self._end is not None:
            return self.left()
        connection.deadline = time.monotonic() + self.seconds
        return None


class Overdue:
    """Aborts the connections whose deadline is over while they wait for an answer."""

    def __init__(self) -> None:
        self.in_flight: set[AsyncpgConnection] = set()
        """Connections with a statement; the pool may have been closed meanwhile."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: AsyncpgConnection) -> None:
        """Check a connection regularly from now on."""
        self.in_flight.add(connection)
        if self._timer is None:
            self._check_later()

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_EVERY, self._check)

    def _check(self) -> None:
        self._timer = None
        now = time.monotonic()
        for connection in list(self.in_flight):
            if connection.deadline <= now:
                connection.is_overdue = True
                connection.terminate()
        if self.in_flight:
            self._check_later()

    def stop(self) -> None:
        """End the timer unless something is in flight."""
        if self._timer is not None and not self.in_flight:
            self._timer.cancel()
            self._timer = None

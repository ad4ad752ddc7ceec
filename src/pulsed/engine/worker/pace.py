"""How quickly plain functions end, by which a worker decides whether to claim ahead for them."""

from __future__ import annotations

RUNS = 100
"""Runs that are timed together: one alone may wait for Python's lock, however quick it is."""

QUICK = 0.02
"""Seconds in which so many runs have to end."""


class Pace:
    """Times runs while any is in a thread. The time between them does not count."""

    def __init__(self) -> None:
        self.running = 0
        """Runs that are in threads, or queued for them."""
        self._since = 0.0
        self._ended = 0
        self._took = 0.0

    def begin(self, runs: int, now: float) -> None:
        """Note that runs go to threads."""
        if not self.running:
            self._since = now
        self.running += runs

    def end(self, now: float, runs: int = 1) -> bool | None:
        """Note that runs have ended; returns for at least ``RUNS`` of them whether all were quick.

        None: they are too few to tell.
        """
        self.running -= runs
        self._ended += runs
        is_full = self._ended >= RUNS
        if self.running and not is_full:
            return None
        self._took, self._since = self._took + now - self._since, now
        if not is_full:
            return None
        is_quick = self._took <= QUICK * self._ended / RUNS
        self._ended, self._took = 0, 0.0
        return is_quick

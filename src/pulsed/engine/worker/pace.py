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

    def end(self, now: float) -> bool | None:
        """Note that a run has ended; returns for each ``RUNS`` of them whether they were quick."""
        self.running -= 1
        self._ended += 1
        is_full = self._ended >= RUNS
        if self.running and not is_full:
            return None
        self._took, self._since = self._took + now - self._since, now
        if not is_full:
            return None
        is_quick = self._took <= QUICK
        self._ended, self._took = 0, 0.0
        return is_quick

"""How quickly plain functions end, by which a worker decides how much to claim ahead for them."""

from __future__ import annotations

from typing import NamedTuple

RUNS = 100
"""Runs that are timed together: one alone may wait for Python's lock, however quick it is."""

QUICK = 0.02
"""Seconds in which so many runs have to end."""


class Timed(NamedTuple):
    """Runs that were timed together."""

    runs: int
    seconds: float

    @property
    def is_quick(self) -> bool:
        """Whether they ended as quickly as ``RUNS`` in ``QUICK`` seconds."""
        return self.seconds <= QUICK * self.runs / RUNS


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

    def end(self, now: float, runs: int = 1) -> Timed | None:
        """Note that runs have ended; returns how long at least ``RUNS`` of them took together.

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
        timed = Timed(self._ended, self._took)
        self._ended, self._took = 0, 0.0
        return timed

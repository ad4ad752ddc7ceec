"""The runs that a store has started in queues which controls govern.

When one of them ends, its queue may have room for the next, and that is a notification: otherwise a
queue with a limit would start as many jobs a second as the limit has.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from pulsed.model.job import Assignment

MOST_RUNS = 100_000
"""Runs that a store remembers; polling makes up for the others."""


class GovernedRuns:
    """Which queue each run is of."""

    def __init__(self) -> None:
        self._queues: dict[UUID, str] = {}

    def claimed(self, queue: str, jobs: Iterable[Assignment]) -> None:
        """Remember the runs of a claim."""
        self._queues.update((job.job_id, queue) for job in jobs)
        while len(self._queues) > MOST_RUNS:  # of workers that died, most likely
            del self._queues[next(iter(self._queues))]

    def ended(self, jobs: Iterable[UUID]) -> set[str]:
        """Forget runs that have ended; returns the queues that have room now."""
        if not self._queues:
            return set()
        return {queue for job_id in jobs if (queue := self._queues.pop(job_id, None))}

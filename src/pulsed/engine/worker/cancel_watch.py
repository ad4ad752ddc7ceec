"""Stops running jobs soon after they are cancelled.

Heartbeats report cancellations, too, but are as rare as leases are long. While jobs run, this
queries the store at hints and every poll; the answer comes from an index that is nearly
always empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from pulsed.engine.forever import Alarm, forever
from pulsed.engine.worker.run import Run, StopReason
from pulsed.errors import StorageError
from pulsed.model.job import Lease
from pulsed.store.base import Store

log = logging.getLogger("pulsed.worker")

SHORTEST_INTERVAL = 0.2
"""Seconds between two checks at least: hints are debounced."""


class CancelWatch:
    """A loop that stops the runs whose jobs are cancelled."""

    def __init__(
        self,
        store: Store,
        worker_id: UUID,
        *,
        poll: float,
        runs: Callable[[], Mapping[Lease, Run]],
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._poll = poll
        self._runs = runs
        self._alarm = Alarm()

    def wake(self) -> None:
        """Check soon: a job may have been cancelled."""
        self._alarm.ring()

    async def run(self) -> None:
        """Check for ever."""
        await forever(
            self._tick_and_pause,
            "checking for cancelled jobs",
            log=log,
            after_failure=lambda _: self._poll,
            sleep=lambda seconds: self._alarm.sleep(seconds, debounce=SHORTEST_INTERVAL),
            level=_level,
        )

    async def _tick_and_pause(self) -> float:
        await self.tick()
        return self._poll

    async def tick(self) -> list[Run]:
        """Stop the runs of cancelled jobs; returns those that were not being stopped before."""
        if not self._runs():
            return []
        asked = await self._store.held(self._worker_id, asked_to_stop=True)
        runs = self._runs()
        told = [run for lease in asked if (run := runs.get(lease)) and run.stop is None]
        for run in told:
            run.tell_to_stop(StopReason.CANCELLED)
        return told


def _level(error: Exception, _failures: int) -> int:
    """Log storage errors only at DEBUG: heartbeats report cancelled jobs, if later."""
    return logging.DEBUG if isinstance(error, StorageError) else logging.WARNING

"""Learns at a hint that the worker is to drain or to stop; its presence tick learns it, too.

Behind a server there are no such hints: the next presence tick has to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from pulsed.engine.forever import Alarm, forever
from pulsed.model.job import WorkerRequest
from pulsed.store.base import Store

log = logging.getLogger("pulsed.worker")

SHORTEST_INTERVAL = 1.0
"""Seconds between two reads at least: most hints that name nothing are about jobs."""
LONGEST_INTERVAL = 3600.0


class RequestWatch:
    """A loop that reads what was asked of a worker."""

    def __init__(
        self, store: Store, worker_id: UUID, on_request: Callable[[WorkerRequest], None]
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._on_request = on_request
        self._alarm = Alarm()

    def wake(self) -> None:
        """Read soon: something may have been asked."""
        if not self._store.is_remote:
            self._alarm.ring()

    async def run(self) -> None:
        """Read at every hint, for ever."""
        await forever(
            self._tick_and_pause,
            "checking what is asked of this worker",
            log=log,
            after_failure=lambda _: LONGEST_INTERVAL,
            sleep=self._pause,
            level=lambda *_: logging.DEBUG,  # the presence tick reports what is wrong
        )

    async def _pause(self, seconds: float) -> None:
        await self._alarm.sleep(seconds, debounce=SHORTEST_INTERVAL)

    async def _tick_and_pause(self) -> float:
        await self.tick()
        return LONGEST_INTERVAL

    async def tick(self) -> None:
        """Read this worker's row, and pass on what was asked of it."""
        if self._store.is_remote:
            return
        row = await self._store.worker(self._worker_id)
        if row is not None and row.request is not None:
            self._on_request(WorkerRequest(row.request))

"""Notices within a moment that running jobs were asked to stop.

Heartbeats say so, too, but are as rare as leases are long. While jobs run, this asks the store at
every hint and every poll; the answer comes from an index that is empty nearly always.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from pulsed.engine.worker.run import Run, Stop
from pulsed.errors import StorageError
from pulsed.model.job import Lease
from pulsed.store.base import Store

log = logging.getLogger("pulsed.worker")

SHORTEST_INTERVAL = 0.2
"""Seconds between two checks, however many hints arrive."""


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
        self._hinted = asyncio.Event()

    def wake(self) -> None:
        """Check soon: a job may have been cancelled."""
        self._hinted.set()

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(min(SHORTEST_INTERVAL, self._poll))
            try:
                async with asyncio.timeout(self._poll):
                    await self._hinted.wait()
            except TimeoutError:
                pass
            self._hinted.clear()
            try:
                await self.tick()
            except Exception as error:  # heartbeats say the same, later
                surprise = None if isinstance(error, StorageError) else error
                level = logging.DEBUG if surprise is None else logging.WARNING
                log.log(level, "cannot check for cancelled jobs: %s", error, exc_info=surprise)

    async def tick(self) -> list[Run]:
        """Stop the runs that were asked to; returns those that were not told before."""
        if not self._runs():
            return []
        asked = await self._store.held(self._worker_id, asked_to_stop=True)
        runs = self._runs()
        told = [run for lease in asked if (run := runs.get(lease)) and run.stop is None]
        for run in told:
            run.tell_to_stop(Stop.CANCELLED)
        return told

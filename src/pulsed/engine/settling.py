"""Reporting outcomes in batches.

While one batch is on its way to the database the next one gathers, so batches grow with the load
and a lone outcome waits for nothing. A report is kept until the database has answered it; the
lease is beaten for as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from pulsed.engine.patience import PATIENCE
from pulsed.errors import StorageError, StorageRefused
from pulsed.job import Failed, Lease, Report
from pulsed.store.base import Store

log = logging.getLogger("pulsed.worker")

LARGEST_BATCH = 500
REFUSED = "the outcome could not be stored"


class Settler:
    """Takes reports and sees to it that the database has them."""

    def __init__(
        self,
        store: Store,
        on_settled: Callable[[Sequence[Report], set[Lease]], None],
        shortest_lease: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._store = store
        self._on_settled = on_settled
        self._shortest_lease = shortest_lease
        self._waiting: list[Report] = []
        self._in_flight = 0
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._failures = 0

    def put(self, report: Report) -> None:
        """Take a report; it is on its way."""
        if not self._waiting:
            self._arrived.set()
            self._empty.clear()
        self._waiting.append(report)

    @property
    def backlog(self) -> int:
        """How many reports the database has not answered."""
        return len(self._waiting) + self._in_flight

    async def flushed(self) -> None:
        """Wait until every report has been answered."""
        await self._empty.wait()

    async def run(self) -> None:
        """Settle for ever."""
        while True:
            await self._arrived.wait()
            if not await self.tick():
                self._failures += 1
                await asyncio.sleep(PATIENCE.delay(self._failures))

    async def tick(self) -> bool:
        """Settle one batch; False if the database could not be asked."""
        batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
        self._in_flight = len(batch)
        try:
            await self._settle(batch)
        except Exception as error:  # an outcome is not given up, whatever it is
            surprise = None if isinstance(error, StorageError) else error
            log.warning("%d outcomes wait (%s)", len(batch), error, exc_info=surprise)
            self._waiting = batch + self._waiting
            return False
        finally:
            self._in_flight = 0
            self._note_emptiness()
        self._failures = 0
        return True

    def _note_emptiness(self) -> None:
        if not self._waiting:
            self._arrived.clear()
            self._empty.set()

    async def _settle(self, batch: list[Report]) -> None:
        try:
            accepted = await self._store.settle(batch, within=self._shortest_lease())
        except StorageRefused as error:
            await self._settle_one_by_one(batch, error)
            return
        self._on_settled(batch, accepted)

    async def _settle_one_by_one(self, batch: list[Report], error: StorageRefused) -> None:
        """Keep one report that the database refuses from taking the others with it."""
        if len(batch) > 1:
            for report in batch:
                await self._settle([report])
            return
        (report,) = batch
        log.error("the outcome of job %s was refused (%s)", report.lease.job_id, error)
        if isinstance(report.outcome, Failed) and report.outcome.error.startswith(REFUSED):
            self._on_settled(batch, set())  # not even this: the lease will run out
        else:
            refusal = Failed(f"{REFUSED}: {error}", final=True)
            await self._settle([Report(report.lease, refusal)])

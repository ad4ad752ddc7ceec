"""Reporting outcomes in batches.

While one batch is on its way to the database the next one gathers, so batches grow with the load
and a lone outcome waits for nothing. A report is kept until the database has answered it; the
lease is beaten for as long. A batch that fails because of one of its reports is halved until that
one is alone; it is tried again from time to time, and holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from pulsed.batches import batches, halves
from pulsed.engine.patience import PATIENCE
from pulsed.errors import StorageError, StorageRefused, concerns_everything
from pulsed.job import Failed, Lease, Report
from pulsed.store.base import Store
from pulsed.store.throttle import level_of

log = logging.getLogger("pulsed.worker")

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
        self._aside: list[Report] = []
        """Reports that fail alone, until they are tried again."""
        self._in_flight = 0
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._failures = 0
        self._failures_alone = 0

    def put(self, report: Report) -> None:
        """Take a report; it is on its way."""
        if not self._waiting:
            self._arrived.set()
            self._empty.clear()
        self._waiting.append(report)

    @property
    def backlog(self) -> int:
        """How many reports the database has not answered."""
        return len(self._waiting) + len(self._aside) + self._in_flight

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
        batch = next(batches(self._waiting, lambda report: report.size), [])
        self._waiting = self._waiting[len(batch) :]
        self._in_flight = len(batch)
        try:
            left = await self._settle(batch)
            self._waiting = [*left, *self._waiting]
        finally:
            self._in_flight = 0
            self._note_emptiness()
        if left:
            return False
        self._failures = 0
        if not self._aside:
            self._failures_alone = 0
        return True

    def _note_emptiness(self) -> None:
        if not self._waiting:
            self._arrived.clear()
            if not self._aside:
                self._empty.set()

    async def _settle(self, batch: Sequence[Report]) -> Sequence[Report]:
        """Settle reports; returns those that have to wait for the database."""
        try:
            accepted = await self._store.settle(batch, within=self._shortest_lease())
        except Exception as error:  # noqa: BLE001 - an outcome is not given up, whatever it is
            if concerns_everything(error):
                log.log(level_of(error), "%d outcomes wait (%s)", len(batch), error)
                return batch
            if len(batch) > 1:
                return [each for half in halves(batch) for each in await self._settle(half)]
            return await self._settle_alone(batch[0], error)
        self._on_settled(batch, accepted)
        return ()

    async def _settle_alone(self, report: Report, error: Exception) -> Sequence[Report]:
        """Do what can be done about a report that the database does not take."""
        if not isinstance(error, StorageRefused):
            surprise = None if isinstance(error, StorageError) else error
            log.warning(
                "the outcome of job %s waits (%s)", report.lease.job_id, error, exc_info=surprise
            )
            self._put_aside(report)
            return ()
        log.error("the outcome of job %s was refused (%s)", report.lease.job_id, error)
        if isinstance(report.outcome, Failed) and report.outcome.error.startswith(REFUSED):
            self._on_settled([report], set())  # not even this: the lease will run out
            return ()
        refusal = Failed(f"{REFUSED}: {error}", final=True)
        return await self._settle([Report(report.lease, refusal)])

    def _put_aside(self, report: Report) -> None:
        """Try a report again later, without holding up the others until then."""
        if not self._aside:
            self._failures_alone += 1
            delay = PATIENCE.delay(self._failures_alone)
            asyncio.get_running_loop().call_later(delay, self._try_again)
        self._aside.append(report)

    def _try_again(self) -> None:
        aside, self._aside = self._aside, []
        for report in aside:
            self.put(report)

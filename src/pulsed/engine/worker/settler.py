"""Reports outcomes in batches.

While one batch is in flight the next one gathers, so batches grow with the load and a single
outcome is sent at once. A report is kept until the database has answered it; heartbeats renew its
lease for as long. A batch that fails because of one of its reports is halved until that one is
alone; it is retried with backoff, and holds up no other. Neither does one whose row another
session of the database has locked. A batch that takes too long is made smaller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias, TypeVar

from pulsed.batches import TRANSACTION, Limits, first_batch, halves
from pulsed.engine.workflow.outage import OUTAGE_BACKOFF
from pulsed.errors import StorageBusy, StorageError, StorageRefused, concerns_everything
from pulsed.model.outcome import Failed, Report
from pulsed.store.base import Store
from pulsed.store.log_throttle import level_of
from pulsed.store.results import Accepted
from pulsed.wording import counted

log = logging.getLogger("pulsed.worker")

REFUSED = "the outcome could not be stored"

LOCKED_AGAIN = 0.5
"""Seconds until a locked row is retried. Soon: when the lock is released, the lease may have
expired, and a watchdog would count the run as failed."""

T = TypeVar("T")

size_of = attrgetter("size")

Settle: TypeAlias = Callable[[Sequence[Report]], Awaitable[Sequence[Report]]]
"""Settles reports; returns those to retry when the database is back."""


class Settler:
    """Takes reports and retries them until the database has answered."""

    def __init__(
        self,
        store: Store,
        on_settled: Callable[[Sequence[Report], Accepted], None],
        shortest_lease: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._store = store
        self._on_settled = on_settled
        self._shortest_lease = shortest_lease
        self._waiting: list[Report] = []
        self._aside: list[Report] = []
        """Reports that fail alone, or whose rows are locked, until they are due for a retry…"""
        self._again: list[Report] = []
        """…and those of them that are due."""
        self._most = TRANSACTION.items
        """Reports in a batch; fewer while the database takes too long for more."""
        self._in_flight = 0
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._failures = 0
        self._failures_alone = 0
        self._surprised = False
        """Whether the traceback of an unexpected error was logged for this batch."""

    def put(self, reports: Iterable[Report]) -> None:
        """Queue reports for the next batch."""
        self._waiting += reports
        if self._waiting:
            self._arrived.set()
            self._empty.clear()

    @property
    def backlog(self) -> int:
        """How many reports the database has not answered."""
        return len(self._waiting) + len(self._aside) + len(self._again) + self._in_flight

    async def flushed(self) -> None:
        """Wait until every report has been answered."""
        await self._empty.wait()

    async def run(self) -> None:
        """Settle for ever."""
        while True:
            await self._arrived.wait()
            if not await self.tick():
                self._failures += 1
                await asyncio.sleep(OUTAGE_BACKOFF.delay(self._failures))

    async def tick(self) -> bool:
        """Settle one batch; False if reports are left to retry after a backoff."""
        waiting, settle = self._waiting, self._settle
        if self._again:
            waiting, settle = self._again, self._settle_free
        batch = first_batch(waiting, size_of, Limits(self._most, TRANSACTION.bytes))
        del waiting[: len(batch)]
        self._in_flight = len(batch)
        self._surprised = False
        try:
            left = await settle(batch)
            self._waiting = [*left, *self._waiting]
        finally:
            self._in_flight = 0
            self._note_emptiness()
        if left:
            return False
        self._failures = 0
        self._most = min(2 * self._most, TRANSACTION.items)
        if not self._aside:
            self._failures_alone = 0
        return True

    def _note_emptiness(self) -> None:
        if not self._waiting and not self._again:
            self._arrived.clear()
            if not self._aside:
                self._empty.set()

    async def _settle(self, batch: Sequence[Report]) -> Sequence[Report]:
        """Settle reports; returns those to retry when the database is back."""
        answer = await _answer_of(self._store.settle(batch, within=self._shortest_lease()))
        if isinstance(answer, StorageBusy):
            log.warning("reporting %s took too long (%s)", counted(len(batch), "outcome"), answer)
            return await self._settle_free(batch)
        if isinstance(answer, Exception):
            return await self._failed(batch, answer, self._settle)
        self._on_settled(batch, answer)
        return ()

    async def _settle_free(self, batch: Sequence[Report]) -> Sequence[Report]:
        """Settle reports, except those whose rows another session has locked."""
        answer = await _answer_of(self._store.settle_free(batch))
        if isinstance(answer, StorageBusy):  # the table is locked, or the batch was too large
            if len(batch) == 1:
                self._put_aside(batch, LOCKED_AGAIN)
                return ()
            log.warning("%s not reported yet (%s)", counted(len(batch), "outcome"), answer)
            self._most = len(batch) // 2
            return batch
        if isinstance(answer, Exception):
            return await self._failed(batch, answer, self._settle_free)
        accepted, locked = answer
        self._put_aside([each for each in batch if each.lease in locked], LOCKED_AGAIN)
        self._on_settled([each for each in batch if each.lease not in locked], accepted)
        return ()

    async def _failed(
        self, batch: Sequence[Report], error: Exception, settle: Settle
    ) -> Sequence[Report]:
        if concerns_everything(error):
            message_text = "%s not reported yet (%s)"
            log.log(level_of(error), message_text, counted(len(batch), "outcome"), error)
            return batch
        if len(batch) > 1:
            return [each for half in halves(batch) for each in await settle(half)]
        return await self._settle_alone(batch[0], error)

    async def _settle_alone(self, report: Report, error: Exception) -> Sequence[Report]:
        """Retry a report that failed alone; if it was refused, fail its job instead."""
        if not isinstance(error, StorageRefused):
            # One traceback for a batch: its reports fail alike.
            surprise = None if self._surprised or isinstance(error, StorageError) else error
            self._surprised |= surprise is not None
            log.warning(
                "the outcome of job %s waits (%s)", report.lease.job_id, error, exc_info=surprise
            )
            self._failures_alone += not self._aside
            self._put_aside([report], OUTAGE_BACKOFF.delay(self._failures_alone))
            return ()
        log.error("the outcome of job %s was refused (%s)", report.lease.job_id, error)
        if isinstance(report.outcome, Failed) and report.outcome.error.startswith(REFUSED):
            self._on_settled([report], Accepted())  # refused as well: the lease will expire
            return ()
        refusal = Failed(f"{REFUSED}: {error}", final=True)
        return await self._settle([report._replace(outcome=refusal)])

    def _put_aside(self, reports: Sequence[Report], delay: float) -> None:
        """Retry reports after a delay, without holding up the others until then."""
        if reports and not self._aside:
            asyncio.get_running_loop().call_later(delay, self._try_again)
        self._aside += reports

    def _try_again(self) -> None:
        self._again += self._aside
        self._aside = []
        self._arrived.set()


async def _answer_of(call: Awaitable[T]) -> T | Exception:
    """Await a call; returns its error, because an outcome is kept whatever the error.

    Returned and not raised, so that a retry does not run inside of an ``except``: the traceback of
    its error would have this one's in it, and so on for each half of a batch.
    """
    try:
        return await call
    except Exception as error:  # noqa: BLE001
        return error

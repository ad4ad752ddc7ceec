"""Bulk operations: acts on all jobs that match, which outlive the process that starts them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Unpack
from uuid import UUID

from pulsed.client.acts import chosen_for, moving, reprioritising, rescheduling
from pulsed.client.filter import Filter
from pulsed.client.one_job import JobId, checked_id
from pulsed.client.operator import operator
from pulsed.engine.upkeep.bulk import perform_to_end
from pulsed.errors import BulkNotFound, InvalidOption
from pulsed.handler.options import checked_count
from pulsed.model.audit import of_filter
from pulsed.model.bulk import (
    CANCEL,
    DELETE,
    LONGEST_LIST,
    RETRY,
    RETRY_FRESH,
    RUN_NOW,
    BulkAct,
    BulkKind,
    BulkRow,
    BulkState,
    Skip,
)
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, JobRow
from pulsed.model.page import Counts, Page
from pulsed.store.base import Store
from pulsed.store.blocking import blocking

PAGE = 1_000
"""Jobs per page."""


class BulkOperation:
    """An act on all jobs that match a filter, and how far it was when it was last read."""

    def __init__(self, store: Callable[[], Store], row: BulkRow) -> None:
        self._store = store
        self.row = row

    def __repr__(self) -> str:
        return (
            f"<BulkOperation {self.id} {self.row.kind.verb} {self.state} "
            f"done={self.done} skipped={self.skipped}>"
        )

    @property
    def id(self) -> UUID:
        """By which every process finds it: ``app.jobs.bulk.get(id)``."""
        return self.row.id

    @property
    def state(self) -> BulkState:
        """RUNNING, DONE, STOPPED or FAILED."""
        return self.row.state

    @property
    def done(self) -> int:
        """On how many jobs it was done."""
        return self.row.done

    @property
    def skipped(self) -> int:
        """How many jobs were left as they are; ``skips()`` says why."""
        return self.row.skipped

    @property
    def total(self) -> int:
        """How many jobs matched before the start; a lower bound if ``row.is_at_least``."""
        return self.row.total

    @property
    def progress(self) -> float:
        """From 0.0 to 1.0, as far as the number of jobs is known; 1.0 when it is DONE."""
        return self.row.percent / 100

    async def arefresh(self) -> BulkOperation:
        """Read again how far it is."""
        self.row = await read_bulk(self._store(), self.id)
        return self

    async def await_(self, timeout: float | None = None) -> BulkOperation:  # noqa: ASYNC109
        """Perform it, or wait while other processes do, until it has ended.

        After ``timeout`` seconds it returns all the same; the state says whether it goes on.
        """
        row = await perform_to_end(self._store(), self.id, within=timeout)
        self.row = row or self.row
        return self

    async def astop(self) -> BulkOperation:
        """End it; what it has done stays done."""
        self.row = await stop_bulk(self._store(), self.id)
        return self

    async def askips(self) -> Sequence[Skip]:
        """Read the first thousand jobs that it left as they are, each with the reason."""
        return await self._store().bulk.skips(self.id)

    refresh = blocking(arefresh)
    wait = blocking(await_)
    stop = blocking(astop)
    skips = blocking(askips)


class Bulk:
    """Acts on all jobs that match a filter: ``app.jobs.bulk``.

    Each method starts an operation and returns at once. Workers and servers perform it, in small
    batches; so does a caller that waits for it.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    async def apreview(self, act: str, **where: Unpack[Filter]) -> Counts:
        """Count the jobs that an act such as ``"retry"`` would be about, by status.

        Counting stops at 50,000; a status in ``at_least`` may have more jobs.
        """
        return await self._store().counts(chosen_for(where, _kind(act)))

    async def aretry(self, *, fresh: bool = False, **where: Unpack[Filter]) -> BulkOperation:
        """Send dead-lettered and cancelled jobs back to PENDING, with fresh attempts.

        A job whose key another one holds is skipped, and ``skips()`` names the holder.
        """
        return await self._start(RETRY_FRESH if fresh else RETRY, where)

    async def acancel(self, **where: Unpack[Filter]) -> BulkOperation:
        """Cancel unfinished jobs, and ask running ones to stop."""
        return await self._start(CANCEL, where)

    async def adelete(self, **where: Unpack[Filter]) -> BulkOperation:
        """Remove jobs that are not running."""
        return await self._start(DELETE, where)

    async def arun_now(self, **where: Unpack[Filter]) -> BulkOperation:
        """Make jobs due that wait for their time."""
        return await self._start(RUN_NOW, where)

    async def areschedule(
        self,
        *,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        **where: Unpack[Filter],
    ) -> BulkOperation:
        """Give jobs that have not started, or that are to be retried, another time.

        A ``delay`` counts from now, for all of them.
        """
        return await self._start(rescheduling(at, delay), where)

    async def areprioritise(self, to: int, **where: Unpack[Filter]) -> BulkOperation:
        """Give jobs that have not started another priority."""
        return await self._start(reprioritising(to), where)

    async def amove(self, to: str, **where: Unpack[Filter]) -> BulkOperation:
        """Move jobs that have not started to another queue."""
        return await self._start(moving(to), where)

    async def aget(self, bulk_id: JobId) -> BulkOperation:
        """Read an operation; raises ``BulkNotFound`` if there is none."""
        return self._operation(await read_bulk(self._store(), checked_id(bulk_id)))

    async def alist(self, *, limit: int = 100) -> builtins.list[BulkOperation]:
        """Read the latest operations, newest first."""
        checked_count("limit", limit, 1, LONGEST_LIST)
        return [self._operation(row) for row in await self._store().bulk.list(limit=limit)]

    async def astop(self, bulk_id: JobId) -> BulkOperation:
        """End an operation; what it has done stays done."""
        return self._operation(await stop_bulk(self._store(), checked_id(bulk_id)))

    preview = blocking(apreview)
    retry = blocking(aretry)
    cancel = blocking(acancel)
    delete = blocking(adelete)
    run_now = blocking(arun_now)
    reschedule = blocking(areschedule)
    reprioritise = blocking(areprioritise)
    move = blocking(amove)
    get = blocking(aget)
    stop = blocking(astop)

    async def _start(self, act: BulkAct, where: Filter) -> BulkOperation:
        chosen = chosen_for(where, act.kind)
        return self._operation(await start_bulk(self._store(), act, chosen))

    def _operation(self, row: BulkRow) -> BulkOperation:
        return BulkOperation(self._store, row)

    # Last, because from here on the name means this method inside the class.
    list = blocking(alist)


async def start_bulk(store: Store, act: BulkAct, where: JobFilter) -> BulkRow:
    """Start an operation in the name of this process's operator."""
    return await store.bulk.start(new_job_id(), act, where, by=operator(of_filter(where)))


async def read_bulk(store: Store, bulk_id: UUID) -> BulkRow:
    """Return an operation, or raise ``BulkNotFound``."""
    return _found(bulk_id, await store.bulk.get(bulk_id))


async def stop_bulk(store: Store, bulk_id: UUID) -> BulkRow:
    """End an operation, or raise ``BulkNotFound``."""
    return _found(bulk_id, await store.bulk.stop(bulk_id, by=operator(str(bulk_id))))


def _found(bulk_id: UUID, row: BulkRow | None) -> BulkRow:
    if row is None:
        raise BulkNotFound(
            f"There is no bulk operation {bulk_id} in this database: none was started, or it was "
            "removed after 90 days."
        )
    return row


def _kind(act: str) -> BulkKind:
    try:
        return BulkKind(act.upper().replace(" ", "_").replace("-", "_"))
    except (ValueError, AttributeError):
        known = ", ".join(kind.lower() for kind in BulkKind)
        raise InvalidOption(f"{act!r:.100} is no act on jobs; there are {known}.") from None


async def pages(
    store: Store, where: JobFilter, limit: int = PAGE, before: UUID | None = None
) -> AsyncIterator[Page[JobRow]]:
    """Yield all jobs that match in pages, newest first, however many rows that scans."""
    while True:
        page = await store.list_jobs(where, limit=limit, before=before)
        if page:
            yield page
        before = page.next
        if before is None:
            return

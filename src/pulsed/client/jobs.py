"""All jobs of a database: list, count, cancel, retry and delete them, one by one or in bulk."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Unpack

from pulsed.client.acts import moving, reprioritising, rescheduling
from pulsed.client.bulk import PAGE, Bulk, BulkOperation, pages
from pulsed.client.filter import Filter, StatusFilter, checked_filter, checked_groups
from pulsed.client.job import Client, Job
from pulsed.client.one_job import (
    JobId,
    cancel_one,
    change_one,
    checked_id,
    delete_one,
    edit_and_retry_one,
    find_one,
    read_one,
    retry_one,
    run_one_now,
)
from pulsed.client.operator import operator
from pulsed.client.prune import ages_for
from pulsed.engine.upkeep.pruner import prune_all
from pulsed.handler import encode_by_name
from pulsed.handler.options import checked_count
from pulsed.model.audit import of_ages
from pulsed.model.job import Failure, JobRow, Status
from pulsed.model.page import Counts, GroupedCounts, Page
from pulsed.model.retention import Retention
from pulsed.store.base import Store
from pulsed.store.blocking import blocking

LARGEST_LIMIT = 10_000


class Jobs:
    """All jobs of an app's database: ``app.jobs``."""

    def __init__(self, client: Client, retention: Callable[[], Retention] = Retention) -> None:
        self._client = client
        self._retention = retention
        self.bulk = Bulk(client.store)
        """Acts on all jobs that match a filter, which go on without this process."""

    async def aget(self, job_id: JobId) -> Job[Any]:
        """Read one job; raises ``JobNotFound`` if there is none."""
        return self.of_row(await read_one(self._store, checked_id(job_id)))

    async def afind(self, topic: str, key: str) -> Job[Any]:
        """Read the job of a topic that holds a key, or else the latest one that held it."""
        return self.of_row(await find_one(self._store, topic, key))

    async def alist(
        self, *, limit: int = 100, before: JobId | None = None, **where: Unpack[Filter]
    ) -> Page[Job[Any]]:
        """Read jobs, newest first; ``before`` is the ``next`` of the previous page.

        A filter that no index covers scans at most 50,000 jobs. If it finds fewer than ``limit``
        and there are more jobs to scan, the page has ``is_cut`` set: continue at its ``next``.
        """
        checked_count("limit", limit, 1, LARGEST_LIMIT)
        cursor = None if before is None else checked_id(before)
        rows = await self._store.list_jobs(checked_filter(where), limit=limit, before=cursor)
        return Page(map(self.of_row, rows), next=rows.next, is_cut=rows.is_cut)

    async def acounts(self, **where: Unpack[Filter]) -> Counts:
        """Count jobs by status; every status is a key.

        Counting stops at 50,000; a status in ``at_least`` may have more jobs.
        """
        return await self._store.counts(checked_filter(where))

    async def acounts_by(self, *by: str, **where: Unpack[Filter]) -> GroupedCounts:
        """Count jobs by topic, queue, status or error, or by several of them; the largest first.

        The newest 50,000 that match are counted, and a thousand groups returned; ``is_cut`` and
        ``is_short`` say whether there are more. Of an error, the part before the colon counts.
        """
        return await self._store.counts_by(checked_filter(where), checked_groups(by))

    async def afailures(self, job_id: JobId) -> builtins.list[Failure]:
        """Read the runs of a job that failed or whose worker died, oldest first."""
        checked = checked_id(job_id)
        if not (failures := await self._store.failures(checked)):
            await read_one(self._store, checked)
        return failures

    async def awhy(self, job_id: JobId) -> builtins.list[str]:
        """Read in sentences where a job stands and what it waits for.

        They are for people, and may change: who has paused its queue, which jobs hold its limit,
        until when a rate is used up, when it expires, which worker is missing. There are none if it
        has ended, unless it expired, or another job has taken its key since.
        """
        from pulsed.engine.held_back import why  # noqa: PLC0415 - only for those who ask

        return await why(self._store, await read_one(self._store, checked_id(job_id)))

    async def acancel(self, job_id: JobId) -> Status:
        """Cancel a job, or ask it to stop if it is running.

        Returns CANCELLED, or RUNNING if the request is recorded and its run will see it soon.
        """
        return await cancel_one(self._store, checked_id(job_id), operator())

    async def aretry(self, job_id: JobId, *, fresh: bool = False) -> Status:
        """Send a dead-lettered or cancelled job back to PENDING with fresh attempts.

        A workflow continues from its checkpoints; ``fresh=True`` restarts it from the beginning.
        """
        return await retry_one(self._store, checked_id(job_id), operator(), fresh=fresh)

    async def aedit_and_retry(
        self, job_id: JobId, payload: Mapping[str, Any], *, fresh: bool = False
    ) -> Status:
        """Replace the arguments of a dead-lettered or cancelled job, and retry it.

        If this app has the job's handler, the arguments must fit it. A workflow continues from its
        checkpoints, whose steps saw the old arguments; ``fresh=True`` restarts it.
        """
        checked = checked_id(job_id)
        topic = (await read_one(self._store, checked)).topic
        handler = self._client.registry().find(topic)
        text = handler.encode_json(payload) if handler else encode_by_name(topic, payload)
        return await edit_and_retry_one(self._store, checked, text, operator(), fresh=fresh)

    async def adelete(self, job_id: JobId) -> Status:
        """Remove a job that is not running; returns the status it had."""
        return await delete_one(self._store, checked_id(job_id), operator())

    async def arun_now(self, job_id: JobId) -> Status:
        """Make a job due that waits for its time: a delayed one, a retry, a sleeping workflow.

        Returns its status, which does not change: it starts as soon as a worker is free.
        """
        return await run_one_now(self._store, checked_id(job_id), operator())

    async def areschedule(
        self, job_id: JobId, *, at: datetime | None = None, delay: timedelta | float | None = None
    ) -> Status:
        """Give a job that has not started, or that is to be retried, another time."""
        act = rescheduling(at, delay)
        return await change_one(self._store, checked_id(job_id), act, operator())

    async def areprioritise(self, job_id: JobId, to: int) -> Status:
        """Give a job that has not started another priority."""
        act = reprioritising(to)
        return await change_one(self._store, checked_id(job_id), act, operator())

    async def amove(self, job_id: JobId, to: str) -> Status:
        """Move a job that has not started to another queue."""
        return await change_one(self._store, checked_id(job_id), moving(to), operator())

    async def aretry_matching(self, **where: Unpack[Filter]) -> int:
        """Retry every dead-lettered or cancelled job that matches; returns how many.

        This, and the three below, is ``bulk.retry(…).wait()``: an operation that workers continue
        if this process dies.
        """
        return await _done(await self.bulk.aretry(**where))

    async def acancel_matching(self, **where: Unpack[Filter]) -> int:
        """Cancel unfinished jobs that match; returns how many, including those asked to stop."""
        return await _done(await self.bulk.acancel(**where))

    async def adelete_matching(self, **where: Unpack[Filter]) -> int:
        """Remove every matching job that is not running; returns how many."""
        return await _done(await self.bulk.adelete(**where))

    async def arun_matching_now(self, **where: Unpack[Filter]) -> int:
        """Make every matching job due that waits for its time; returns how many are due."""
        return await _done(await self.bulk.arun_now(**where))

    async def aprune(
        self, *, older_than: timedelta | float | None = None, status: StatusFilter | None = None
    ) -> dict[Status, int]:
        """Remove finished jobs now, with their failures; returns how many of each status.

        Without ``older_than``, the app's retention decides. With it, jobs that ended longer ago are
        removed: SUCCEEDED and CANCELLED ones, or those with the ``status`` that you give.
        """
        ages = ages_for(self._retention(), older_than=older_than, status=status)
        return await prune_all(self._store, ages, by=operator(of_ages(ages)))

    get = blocking(aget)
    find = blocking(afind)
    counts = blocking(acounts)
    counts_by = blocking(acounts_by)
    failures = blocking(afailures)
    why = blocking(awhy)
    cancel = blocking(acancel)
    retry = blocking(aretry)
    edit_and_retry = blocking(aedit_and_retry)
    delete = blocking(adelete)
    run_now = blocking(arun_now)
    reschedule = blocking(areschedule)
    reprioritise = blocking(areprioritise)
    move = blocking(amove)
    retry_matching = blocking(aretry_matching)
    cancel_matching = blocking(acancel_matching)
    delete_matching = blocking(adelete_matching)
    run_matching_now = blocking(arun_matching_now)
    prune = blocking(aprune)

    def iterate(self, **where: Unpack[Filter]) -> Iterator[Job[Any]]:
        """Yield every job that matches, newest first, reading a page at a time."""
        page: Page[Job[Any]] = self.list(limit=PAGE, **where)
        yield from page
        while page.next is not None:
            page = self.list(limit=PAGE, before=page.next, **where)
            yield from page

    async def aiterate(self, **where: Unpack[Filter]) -> AsyncIterator[Job[Any]]:
        """Yield every job that matches, newest first, reading a page at a time."""
        async for page in pages(self._store, checked_filter(where)):
            for row in page:
                yield self.of_row(row)

    @property
    def _store(self) -> Store:
        return self._client.store()

    def of_row(self, row: JobRow) -> Job[Any]:
        """Return a row that was read from the store as a ``Job``."""
        return Job(self._client, row)

    # Last, because from here on the name means this method inside the class.
    list = blocking(alist)


async def _done(operation: BulkOperation) -> int:
    """Perform an operation to its end; returns on how many jobs it was done."""
    return (await operation.await_()).done

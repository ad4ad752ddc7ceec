"""All jobs of a database: find them, count them, and change their course, one by one or in bulk."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Unpack
from uuid import UUID

from pulsed.client.filter import Filter, checked_filter, chosen_for
from pulsed.client.job import (
    Client,
    Job,
    JobId,
    cancel_one,
    checked_id,
    delete_one,
    read_one,
    retry_one,
)
from pulsed.handler.options import checked_count
from pulsed.job import Failure, JobFilter, JobRow, Status
from pulsed.lifecycle import CLAIMABLE, DELETABLE, REPLAYABLE
from pulsed.store.base import Store
from pulsed.store.blocking import blocking

PAGE = 1_000
"""How many jobs a bulk act takes at a time: one transaction each."""

LARGEST_LIMIT = 10_000


class Jobs:
    """All jobs of an app's database: ``app.jobs``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aget(self, job_id: JobId) -> Job[Any]:
        """Read one job; raises ``JobNotFound`` if there is none."""
        return self._job(await read_one(self._store, checked_id(job_id)))

    async def alist(
        self, *, limit: int = 100, before: JobId | None = None, **where: Unpack[Filter]
    ) -> builtins.list[Job[Any]]:
        """Read jobs, newest first; ``before`` is the id of the last job of the page before."""
        checked_count("limit", limit, 1, LARGEST_LIMIT)
        cursor = None if before is None else checked_id(before)
        rows = await self._store.list_jobs(checked_filter(where), limit=limit, before=cursor)
        return [self._job(row) for row in rows]

    async def acounts(self, **where: Unpack[Filter]) -> dict[Status, int]:
        """Count jobs by status; every status is a key."""
        return await self._store.counts(checked_filter(where))

    async def afailures(self, job_id: JobId) -> builtins.list[Failure]:
        """Read the failed attempts of a job, oldest first."""
        checked = checked_id(job_id)
        if not (failures := await self._store.failures(checked)):
            await read_one(self._store, checked)
        return failures

    async def acancel(self, job_id: JobId) -> Status:
        """Cancel a job, or ask it to stop if it is running.

        Returns CANCELLED, or RUNNING when the request is recorded and its run is about to see it.
        """
        return await cancel_one(self._store, checked_id(job_id))

    async def aretry(self, job_id: JobId) -> Status:
        """Send a dead-lettered or cancelled job back to PENDING with fresh attempts."""
        return await retry_one(self._store, checked_id(job_id))

    async def adelete(self, job_id: JobId) -> Status:
        """Remove a job that is not running; returns the status it had."""
        return await delete_one(self._store, checked_id(job_id))

    async def aretry_matching(self, **where: Unpack[Filter]) -> int:
        """Retry every dead-lettered or cancelled job that matches; returns how many."""
        chosen = chosen_for(where, REPLAYABLE, "retried")
        return await self._for_all(chosen, lambda ids: _replayed(self._store, ids))

    async def acancel_matching(self, **where: Unpack[Filter]) -> int:
        """Cancel every unfinished job that matches; returns how many, with those asked to stop."""
        chosen = chosen_for(where, (*CLAIMABLE, Status.RUNNING), "cancelled")
        return await self._for_all(chosen, lambda ids: _cancelled(self._store, ids))

    async def adelete_matching(self, **where: Unpack[Filter]) -> int:
        """Remove every matching job that is not running; returns how many."""
        chosen = chosen_for(where, DELETABLE, "deleted")
        return await self._for_all(chosen, lambda ids: _deleted(self._store, ids))

    get = blocking(aget)
    counts = blocking(acounts)
    failures = blocking(afailures)
    cancel = blocking(acancel)
    retry = blocking(aretry)
    delete = blocking(adelete)
    retry_matching = blocking(aretry_matching)
    cancel_matching = blocking(acancel_matching)
    delete_matching = blocking(adelete_matching)

    def iterate(self, **where: Unpack[Filter]) -> Iterator[Job[Any]]:
        """Go through every job that matches, newest first, reading a page at a time."""
        before: UUID | None = None
        while page := self.list(limit=PAGE, before=before, **where):
            yield from page
            before = page[-1].id

    async def aiterate(self, **where: Unpack[Filter]) -> AsyncIterator[Job[Any]]:
        """Go through every job that matches, newest first, reading a page at a time."""
        before: UUID | None = None
        while page := await self.alist(limit=PAGE, before=before, **where):
            for job in page:
                yield job
            before = page[-1].id

    @property
    def _store(self) -> Store:
        return self._client.store()

    def _job(self, row: JobRow) -> Job[Any]:
        return Job(self._client, row)

    async def _for_all(
        self, where: JobFilter, act: Callable[[Sequence[UUID]], Awaitable[int]]
    ) -> int:
        """Act on pages of matching jobs. Pages go by id, so one that stays behind is passed by."""
        done, before = 0, None
        while rows := await self._store.list_jobs(where, limit=PAGE, before=before):
            done += await act([row.id for row in rows])
            before = rows[-1].id
        return done

    # Last, because from here on the name means this method inside the class.
    list = blocking(alist)


async def _replayed(store: Store, ids: Sequence[UUID]) -> int:
    return sum(done for done, _ in (await store.replay(ids)).values())


async def _deleted(store: Store, ids: Sequence[UUID]) -> int:
    return sum(done for done, _ in (await store.delete(ids)).values())


async def _cancelled(store: Store, ids: Sequence[UUID]) -> int:
    stopping = (Status.CANCELLED, Status.RUNNING)
    return sum(status in stopping for status in (await store.cancel(ids)).values())

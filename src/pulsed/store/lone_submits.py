"""Jobs that are submitted alone, because the batch that they were in was refused.

A job whose key or id is in a transaction of somebody else waits for its end, on a connection. Jobs
with the same key wait in a line, of which one does so, and only a few such lines do at a time: the
other connections of the event loop stay free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from pulsed.errors import StorageBusy
from pulsed.model.job import NewJob
from pulsed.model.job_batch import GatheredJobs
from pulsed.store.results import Submitted

MOST_TRIED = 2
"""Jobs of refused batches that are submitted alone at a time, without waiting for others."""
MOST_WAITING = 2
"""Jobs that wait for transactions of others at a time, each on a connection of its own."""

Submit: TypeAlias = Callable[[Sequence[NewJob]], Awaitable[Submitted]]
SubmitGathered: TypeAlias = Callable[[GatheredJobs], Awaitable[Submitted]]


class LoneSubmits:
    """Submits jobs one by one, each with its own answer."""

    def __init__(self, submit: Submit, submit_unless_locked: SubmitGathered) -> None:
        self._submit = submit
        self._submit_unless_locked = submit_unless_locked
        self._tried = asyncio.Semaphore(MOST_TRIED)
        self._waiting = asyncio.Semaphore(MOST_WAITING)
        self._lines = WeakValueDictionary[tuple[str, str] | UUID, asyncio.Lock]()
        """Of the keys and ids that were found locked, while a caller waits for them."""

    def is_blocked(self, job: NewJob) -> bool:
        """Whether a job with this one's key, or id, is waiting for a transaction of others."""
        return _taken_name(job) in self._lines

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        """Submit one job, and wait for the transactions of others if that is needed."""
        (job,) = tried = GatheredJobs(jobs)
        async with self._tried:
            if not self.is_blocked(job):
                with suppress(StorageBusy):
                    return await self._submit_unless_locked(tried)
        line = self._lines.setdefault(_taken_name(job), asyncio.Lock())
        async with line, self._waiting:
            submitted = await self._submit(jobs)
        return submitted.after_lost_answer() if tried.may_be_stored else submitted


def _taken_name(job: NewJob) -> tuple[str, str] | UUID:
    """Return what a transaction of others may have taken: a job's key, or its id."""
    return job.id if job.key is None else (job.topic, job.key)

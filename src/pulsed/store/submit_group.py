"""Group commit for producers: concurrent submits of one event loop share a transaction.

A hundred requests of a web server that each enqueue a job would wait for a hundred commits. While
submits are in flight, later ones gather, and go together: two submits of about the same size are in
flight at a time. A caller that is alone waits for nothing. Each caller gets its own answer or its
own error: if a batch is refused, its callers submit their jobs alone.

Jobs with a key, or with an id that the caller has chosen, may have to wait for a transaction that
has used it and is not over. They have a group of their own, whose batches do not wait for long;
``lone_submits`` does.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pulsed.batches import TRANSACTION, first_batch, text_size
from pulsed.errors import StorageBusy, TransientStorageError
from pulsed.model.job import NewJob
from pulsed.model.job_batch import FreshJob, GatheredJobs
from pulsed.store.lone_submits import LoneSubmits, Submit, SubmitGathered
from pulsed.store.results import Submitted

MOST_IN_FLIGHT = 2
"""Submits that are in flight at a time: while the database commits one, it receives the next."""

WORTH_HALVING = 16
"""Gathered jobs that are sent as two submits if none is in flight: from then on, the callers of one
half are served while the database commits the other."""

LEAST_SHARE = 4
"""A second submit has at least a quarter as many jobs as are in flight; fewer gather until those
are answered. Otherwise a few of many callers would be submitted alone again and again, and a submit
of one job costs this process as much as a batch."""


def may_be_contended(jobs: Sequence[NewJob]) -> bool:
    """Whether a single job may have to wait for a transaction that uses its key or its id."""
    return jobs[0].key is not None or type(jobs) is not FreshJob


class PendingSubmit(NamedTuple):
    """A job, and the future of the call that waits for it."""

    job: NewJob
    answer: asyncio.Future[Submitted | GatheredJobs]
    """Its batch, if that was refused."""


class SubmitGroup:
    """Gathers the submits of one event loop."""

    def __init__(self, submit: Submit, submit_unless_locked: SubmitGathered | None = None) -> None:
        """The second one submits batches of jobs that may have to wait for others."""
        self._submit = submit
        self._submit_batch: SubmitGathered = submit_unless_locked or submit
        self._lone = LoneSubmits(submit, submit_unless_locked) if submit_unless_locked else None
        """None: no job may have to wait."""
        self._submit_refused = self._lone.submit if self._lone else submit
        self._alone = 0
        """Lone submits in flight."""
        self._batches = 0
        self._jobs_in_batches = 0
        self._waiting: deque[PendingSubmit] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next: asyncio.Task[None] | None = None
        """Will send what has gathered when it starts, in the next turn of the loop."""

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        """Submit one job, together with those of other callers if there are any."""
        (job,) = jobs
        if self._lone and self._lone.is_blocked(job):
            return await self._lone.submit(jobs)
        if self._alone + self._jobs_in_batches < MOST_IN_FLIGHT and not self._waiting:
            self._alone += 1
            try:
                return await self._submit(jobs)
            finally:
                self._alone -= 1
                if self._waiting:
                    self._send_soon()
        caller = PendingSubmit(job, asyncio.get_running_loop().create_future())
        self._waiting.append(caller)
        self._send_soon()
        answer = await caller.answer
        if not isinstance(answer, GatheredJobs):
            return answer
        submitted = await self._submit_refused([job])  # not as one that nobody has tried to store
        return submitted.after_lost_answer() if answer.may_be_stored else submitted

    def _send_soon(self) -> None:
        """Send what has gathered in the next turn of the loop, with what gathers until then."""
        if self._next is None and self._waiting and self._has_room():
            self._next = asyncio.get_running_loop().create_task(self._send())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._ended)

    def _has_room(self) -> bool:
        """Whether another submit may be sent for those that wait."""
        alone = self._alone_ahead
        are_few = len(self._waiting) * LEAST_SHARE < self._jobs_in_batches + alone
        return self._batches + alone < MOST_IN_FLIGHT and not are_few

    @property
    def _alone_ahead(self) -> int:
        """How many lone submits in flight a batch waits for: none that may have to wait itself."""
        return 0 if self._lone else self._alone

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._next is task:  # cancelled before it started
            self._next = None
            self._send_soon()

    async def _send(self) -> None:
        self._next = None
        callers = self._taken()
        self._batches += 1
        self._jobs_in_batches += len(callers)
        self._send_soon()  # the other half
        try:
            if callers:
                await self._answer(callers)
        finally:
            self._batches -= 1
            self._jobs_in_batches -= len(callers)
            self._send_soon()
            for caller in callers:  # those without an answer: the loop ends
                caller.answer.cancel()

    def _taken(self) -> Sequence[PendingSubmit]:
        """Return the next batch of those that wait and were not cancelled."""
        callers = [caller for caller in self._waiting if not caller.answer.done()]
        most = len(callers)
        if not self._batches + self._alone_ahead and most >= WORTH_HALVING:
            most //= 2
        batch = first_batch(callers[:most], _size, TRANSACTION)
        self._waiting = deque(callers[len(batch) :])
        return batch

    async def _answer(self, callers: Sequence[PendingSubmit]) -> None:
        """Submit the callers' jobs in one transaction; if that is refused, each goes alone."""
        jobs = GatheredJobs(caller.job for caller in callers)
        try:
            submitted = await self._submit_batch(jobs)
        except TransientStorageError as error:
            if self._lone and isinstance(error, StorageBusy):
                _answer(callers, lambda _: jobs)
                return
            for caller in callers:
                _fail(caller, error)
        except Exception:  # noqa: BLE001 - it is raised again for the caller that it concerns
            _answer(callers, lambda _: jobs)
        else:
            _answer(callers, submitted.of)


def _size(caller: PendingSubmit) -> int:
    return text_size(caller.job.payload)


def _answer(
    callers: Sequence[PendingSubmit], answer_of: Callable[[int], Submitted | GatheredJobs]
) -> None:
    for position, caller in enumerate(callers):
        if not caller.answer.done():
            caller.answer.set_result(answer_of(position))


def _fail(caller: PendingSubmit, error: Exception) -> None:
    """Give a caller a copy of an error: each adds something of its own to it."""
    if not caller.answer.done():
        own = copy.copy(error)
        own.__cause__ = error
        caller.answer.set_exception(own)

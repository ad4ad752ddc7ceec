"""Group commit for producers: concurrent submits of one event loop share a transaction.

A hundred requests of a web server that each enqueue a job would wait for a hundred commits. While
submits are in flight, later ones gather, and go together: two submits of about the same size are in
flight at a time. A caller that is alone waits for nothing. Each caller gets its own answer or its
own error.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from pulsed.batches import TRANSACTION, first_batch, halves, text_size
from pulsed.errors import TransientStorageError
from pulsed.model.job import NewJob
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

Submit: TypeAlias = Callable[[Sequence[NewJob]], Awaitable[Submitted]]


class PendingSubmit(NamedTuple):
    """A job, and the future of the call that waits for it."""

    job: NewJob
    answer: asyncio.Future[Submitted]


class SubmitGroup:
    """Gathers the submits of one event loop."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._flights = 0
        self._jobs_in_flight = 0
        self._waiting: deque[PendingSubmit] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next: asyncio.Task[None] | None = None
        """Will send what has gathered when it starts, in the next turn of the loop."""

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        """Submit one job, together with those of other callers if there are any."""
        if self._jobs_in_flight < MOST_IN_FLIGHT and not self._waiting:
            self._flights += 1
            self._jobs_in_flight += 1
            try:
                return await self._submit(jobs)
            finally:
                self._land(1)
        (job,) = jobs
        caller = PendingSubmit(job, asyncio.get_running_loop().create_future())
        self._waiting.append(caller)
        self._send_soon()
        return await caller.answer

    def _land(self, jobs: int) -> None:
        self._flights -= 1
        self._jobs_in_flight -= jobs
        if self._waiting:
            self._send_soon()

    def _send_soon(self) -> None:
        """Send what has gathered in the next turn of the loop, with what gathers until then."""
        if self._next is None and self._waiting and self._has_room():
            self._next = asyncio.get_running_loop().create_task(self._send())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._ended)

    def _has_room(self) -> bool:
        """Whether another submit may be sent for those that wait."""
        are_few = len(self._waiting) * LEAST_SHARE < self._jobs_in_flight
        return self._flights < MOST_IN_FLIGHT and not are_few

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._next is task:  # cancelled before it started
            self._next = None
            self._send_soon()

    async def _send(self) -> None:
        self._next = None
        callers = self._taken()
        self._flights += 1
        self._jobs_in_flight += len(callers)
        self._send_soon()  # the other half
        try:
            if callers:
                await self._answer(callers)
        finally:
            self._land(len(callers))
            for caller in callers:  # those without an answer: the loop ends
                caller.answer.cancel()

    def _taken(self) -> Sequence[PendingSubmit]:
        """Return the next batch of those that wait and were not cancelled."""
        callers = [caller for caller in self._waiting if not caller.answer.done()]
        most = len(callers)
        if not self._flights and most >= WORTH_HALVING:
            most //= 2
        batch = first_batch(callers[:most], _size, TRANSACTION)
        self._waiting = deque(callers[len(batch) :])
        return batch

    async def _answer(self, callers: Sequence[PendingSubmit]) -> None:
        """Submit the callers' jobs in one transaction; if that is refused, each half apart."""
        try:
            submitted = await self._submit([caller.job for caller in callers])
        except TransientStorageError as error:
            for caller in callers:
                _fail(caller, copy.copy(error), error)
        except Exception as error:  # noqa: BLE001 - goes to the caller that it concerns
            if len(callers) == 1:
                _fail(callers[0], error, error.__cause__)
                return
            for half in halves(callers):
                await self._answer(half)
        else:
            for position, caller in enumerate(callers):
                if not caller.answer.done():
                    caller.answer.set_result(submitted.of(position))


def _size(caller: PendingSubmit) -> int:
    return text_size(caller.job.payload)


def _fail(caller: PendingSubmit, error: Exception, cause: BaseException | None) -> None:
    if not caller.answer.done():
        error.__cause__ = cause
        caller.answer.set_exception(error)

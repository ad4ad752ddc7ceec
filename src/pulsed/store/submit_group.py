"""Group commit for producers: concurrent submits of one event loop share a transaction.

A hundred requests of a web server that each enqueue a job would wait for a hundred commits. While
submits are in flight, later ones gather, and go together as soon as one of those is answered. A
caller that is alone waits for nothing. Each caller gets its own answer or its own error.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pulsed.batches import TRANSACTION, first_batch, halves, text_size
from pulsed.errors import TransientStorageError
from pulsed.model.job import NewJob
from pulsed.store.results import Submitted

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_IN_FLIGHT = 2
"""Submits that are in flight at a time: while the database commits one, it receives the next."""

Submit: TypeAlias = Callable[[Sequence[NewJob]], Awaitable[Submitted]]


class PendingSubmit(NamedTuple):
    """A job, and the future of the call that waits for it."""

    job: NewJob
    answer: asyncio.Future[Submitted]


class SubmitGroup:
    """Gathers the submits of one event loop."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._in_flight = 0
        self._waiting: deque[PendingSubmit] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, job: NewJob) -> Submitted:
        """Submit a job, together with those of other callers if there are any."""
        if self._in_flight < MOST_IN_FLIGHT:
            with self._flight():
                return await self._submit([job])
        caller = PendingSubmit(job, asyncio.get_running_loop().create_future())
        self._waiting.append(caller)
        return await caller.answer

    @contextmanager
    def _flight(self) -> Iterator[None]:
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._send_gathered()

    def _send_gathered(self) -> None:
        callers = [caller for caller in self._waiting if not caller.answer.done()]
        self._waiting.clear()
        if callers:
            batch = first_batch(callers, _size, TRANSACTION)
            self._waiting.extend(callers[len(batch) :])
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, callers: Sequence[PendingSubmit]) -> None:
        try:
            with self._flight():
                await self._answer(callers)
        finally:  # the loop ends
            for caller in callers:
                caller.answer.cancel()

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

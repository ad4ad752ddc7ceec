"""Writes what runs store under their leases in batches: checkpoints, and items of streams.

While one batch is in flight the next one gathers, so a worker with many workflows needs few
transactions, and a single record is sent at once. A record is written even if its handler no longer
waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from pulsed.batches import batches, halves
from pulsed.engine.workflow.outage import retry_through_outage
from pulsed.errors import StorageBusy, concerns_everything
from pulsed.model.job import Lease


class Leased(Protocol):
    """What is written under a run's lease."""

    @property
    def lease(self) -> Lease:
        """The lease."""


R = TypeVar("R", bound=Leased)


class Recorder(Generic[R]):
    """Takes records and retries them until the database answers. One for each worker.

    ``write`` returns the leases that are still held. ``size`` is a record's bytes, ``count`` how
    many rows it is, and ``what`` names one in a log line.
    """

    def __init__(
        self,
        write: Callable[[Sequence[R]], Awaitable[set[Lease]]],
        what: str,
        *,
        size: Callable[[R], int],
        count: Callable[[R], int] = lambda _: 1,
    ) -> None:
        self._write_batch = write
        self._what = what
        self._size = size
        self._count = count
        self._waiting: list[tuple[R, asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._apart: set[asyncio.Task[None]] = set()

    def put(self, record: R) -> asyncio.Future[bool]:
        """Queue a record; the future tells whether its run still held the lease."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, answer))
        if self._writing is None:
            # Without any job's context variables: it writes for all jobs.
            self._writing = asyncio.create_task(
                self._write_all(), name="pulsed-record", context=contextvars.Context()
            )
        return answer

    async def _write_all(self) -> None:
        batch: list[tuple[R, asyncio.Future[bool]]] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                self._waiting = self._waiting[len(batch) :]
                await self._write(batch)
                batch = []
        finally:
            self._writing = None
            for _, answer in (*batch, *self._waiting):  # none, unless the loop is closing
                answer.cancel()

    def _next_batch(self) -> list[tuple[R, asyncio.Future[bool]]]:
        return next(
            batches(
                self._waiting,
                lambda waiting: self._size(waiting[0]),
                count=lambda waiting: self._count(waiting[0]),
            )
        )

    def _write_apart(self, waiting: tuple[R, asyncio.Future[bool]]) -> None:
        """Write a record in a task of its own, however long it takes."""
        task = asyncio.create_task(
            self._write([waiting], busy=True), name="pulsed-record", context=contextvars.Context()
        )
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)
        task.add_done_callback(lambda _: waiting[1].cancel())  # no effect, unless the loop ends

    async def _write(
        self, batch: Sequence[tuple[R, asyncio.Future[bool]]], *, busy: bool = False
    ) -> None:
        records = [record for record, _ in batch]
        try:
            held = await retry_through_outage(
                lambda: self._write_batch(records), self._what, busy=busy
            )
        except StorageBusy:  # one locked row must not hold up the others
            for each in batch:
                self._write_apart(each)
            return
        except Exception as error:  # noqa: BLE001 - raised in the waiting runs
            if len(batch) == 1 or concerns_everything(error):
                for _, answer in batch:
                    answer.set_exception(error)
                return
        else:
            for record, answer in batch:
                answer.set_result(record.lease in held)
            return
        # One refused record must not fail the others. Not inside of the except: each half's error
        # would have this one's traceback in its own.
        for half in halves(batch):
            await self._write(half)

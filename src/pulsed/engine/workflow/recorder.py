"""Writes checkpoints in batches.

While one batch is in flight the next one gathers, so a worker with many workflows needs few
transactions, and a single checkpoint is sent at once. A checkpoint is written even if its handler
no longer waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import TypeAlias

from pulsed.batches import batches, halves, text_size
from pulsed.engine.workflow.outage import retry_through_outage
from pulsed.errors import StorageBusy, concerns_everything
from pulsed.model.workflow import Record
from pulsed.store.base import Store

Waiting: TypeAlias = tuple[Record, asyncio.Future[bool]]


class Recorder:
    """Takes checkpoints and retries them until the database answers. One for each worker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._apart: set[asyncio.Task[None]] = set()

    def put(self, record: Record) -> asyncio.Future[bool]:
        """Queue a checkpoint; the future tells whether its run still held the lease."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, answer))
        if self._writing is None:
            # Without any job's context variables: it writes for all jobs.
            self._writing = asyncio.create_task(
                self._write_all(), name="pulsed-record", context=contextvars.Context()
            )
        return answer

    async def _write_all(self) -> None:
        batch: list[Waiting] = []
        try:
            while self._waiting:
                batch = next(batches(self._waiting, _size_of))
                self._waiting = self._waiting[len(batch) :]
                await self._write(batch)
                batch = []
        finally:
            self._writing = None
            for _, answer in (*batch, *self._waiting):  # none, unless the loop is closing
                answer.cancel()

    def _write_apart(self, waiting: Waiting) -> None:
        """Write a checkpoint in a task of its own, however long it takes."""
        task = asyncio.create_task(
            self._write([waiting], busy=True), name="pulsed-record", context=contextvars.Context()
        )
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)
        task.add_done_callback(lambda _: waiting[1].cancel())  # no effect, unless the loop ends

    async def _write(self, batch: Sequence[Waiting], *, busy: bool = False) -> None:
        records = [record for record, _ in batch]
        try:
            held = await retry_through_outage(
                lambda: self._store.workflows.record(records), "a checkpoint", busy=busy
            )
        except StorageBusy:  # one locked row must not hold up the others
            for each in batch:
                self._write_apart(each)
        except Exception as error:  # noqa: BLE001 - raised in the waiting runs
            if len(batch) > 1 and not concerns_everything(error):
                for half in halves(batch):  # one refused checkpoint must not fail the others
                    await self._write(half)
                return
            for _, answer in batch:
                answer.set_exception(error)
        else:
            for record, answer in batch:
                answer.set_result(record.lease in held)


def _size_of(waiting: Waiting) -> int:
    return text_size(waiting[0].checkpoint.value)

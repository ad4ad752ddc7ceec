"""What one run emits: queued in order, and written while the handler goes on.

At most one write of a run is in flight, and what is emitted meanwhile is the next one. So items
become visible in the order of their positions, and a reader misses none. The queue is bounded: a
handler that emits faster than the database writes waits.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from pulsed.batches import text_size
from pulsed.engine.workflow.outage import retry_through_outage
from pulsed.engine.workflow.shared import Workflows
from pulsed.errors import LeaseLost
from pulsed.model.job import Assignment
from pulsed.model.stream import Emission

T = TypeVar("T")

MOST_QUEUED = 500
"""Items of a run that wait to be written, and…"""
MOST_QUEUED_BYTES = 1024 * 1024
"""…bytes of them, unless one item is larger."""


class RunStream:
    """The stream of one run. For use in the event loop's thread only."""

    def __init__(self, assignment: Assignment, shared: Workflows) -> None:
        self._assignment = assignment
        self._store = shared.store
        self._emitter = shared.emitter
        self._queue: deque[str] = deque()
        self._bytes = 0
        self._run = self._next = 0
        """The number of this run, and the next item's position; 0 until they are read."""
        self._writing: asyncio.Task[None] | None = None
        self._written = asyncio.Event()
        self._error: Exception | None = None

    async def put(self, text: str) -> None:
        """Queue an item; waits for room. Raises if an earlier item could not be written."""
        while self._bytes + text_size(text) > MOST_QUEUED_BYTES or len(self._queue) >= MOST_QUEUED:
            if not self._queue:
                break
            await self._next_write()
        self._raise()
        self._queue.append(text)
        self._bytes += text_size(text)
        if self._writing is None:
            self._writing = asyncio.create_task(
                self._write_all(), name="pulsed-emit", context=contextvars.Context()
            )

    async def flush(self) -> None:
        """Wait until every item is stored. Raises if one could not be."""
        while self._writing is not None:
            await self._next_write()
        self._raise()

    async def _next_write(self) -> None:
        self._written.clear()
        await self._written.wait()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    async def _write_all(self) -> None:
        try:
            while self._queue and self._error is None:
                if not self._run:
                    await self._find_place()
                await self._write([self._queue.popleft() for _ in range(len(self._queue))])
                self._written.set()
        except Exception as error:  # noqa: BLE001 - raised by the run's next call
            self._error = error
        finally:
            self._writing = None
            self._queue.clear()
            self._written.set()

    async def _find_place(self) -> None:
        """Read where the stream goes on: earlier runs cannot write to it any more."""
        job_id = self._assignment.job_id
        newest = await retry_through_outage(
            lambda: self._store.streams.newest(job_id, limit=1), f"the stream of job {job_id}"
        )
        self._run = newest[-1].run + 1 if newest else 1
        self._next = newest[-1].position + 1 if newest else 1

    async def _write(self, values: list[str]) -> None:
        self._bytes = 0
        emission = Emission(self._assignment.lease, self._run, self._next, values)
        self._next += len(values)
        if not await self._emitter.put(emission):
            raise LeaseLost.of(self._assignment.job_id, self._assignment.topic)


def on_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread's event loop, and wait for what it returns.

    Without the context variables of this thread, which say that it blocks.
    """
    start = asyncio.run_coroutine_threadsafe
    return contextvars.Context().run(start, coroutine, loop).result()

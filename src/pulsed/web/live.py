"""Live pages: one poll per tick for all open tabs, and none while no tab is visible.

A tab holds an event stream, which sends a short summary after every tick. The tab then fetches its
live parts again, and what they read is shared by all tabs (``engine/shared_reads.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

import msgspec

from pulsed.engine.shared_reads import TICK
from pulsed.errors import StorageError

T = TypeVar("T")

log = logging.getLogger("pulsed.ui")

MOST_STREAMS = 200
LONGEST_STREAM = 15.0
"""Seconds after which a stream ends and the tab opens another one. A host application that stops
waits for open answers, and a proxy closes those that are silent for long."""


class Hub(Generic[T]):
    """Polls a summary every tick while streams are open, and sends it to all of them."""

    def __init__(self, read: Callable[[], Awaitable[T]], *, tick: float = TICK) -> None:
        self._read = read
        self._tick = tick
        self._changed = asyncio.Condition()
        self._version = 0
        self._latest: bytes | None = None
        self._polling: asyncio.Task[None] | None = None
        self.streams = 0
        """How many streams are open."""
        self.polls = 0
        """How many polls there were."""

    async def stream(self) -> AsyncGenerator[bytes]:
        """Yield the summary as server-sent events, now and whenever it has changed."""
        if self.streams >= MOST_STREAMS:
            yield b"event: full\ndata: {}\n\n"
            return
        self.streams += 1
        try:
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll())
            seen = 0
            end = asyncio.get_running_loop().time() + LONGEST_STREAM
            while True:
                try:
                    async with asyncio.timeout_at(end), self._changed:
                        await self._changed.wait_for(partial(self._is_newer, seen))
                except TimeoutError:
                    yield b"event: again\ndata: {}\n\n"
                    return
                seen = self._version
                yield b"event: summary\ndata: " + (self._latest or b"{}") + b"\n\n"
        finally:
            self.streams -= 1

    def _is_newer(self, seen: int) -> bool:
        return self._version > seen

    async def _poll(self) -> None:
        while self.streams:
            await self.tick()
            await asyncio.sleep(self._tick)

    async def tick(self) -> None:
        """Poll once."""
        self.polls += 1
        try:
            found = msgspec.json.encode(await self._read())
        except StorageError as error:
            log.warning("the dashboard cannot read the database: %s", error)
            found = b'{"unreachable": true}'
        async with self._changed:
            self._version += 1
            self._latest = found
            self._changed.notify_all()

    async def close(self) -> None:
        """Stop polling."""
        if self._polling is not None:
            self._polling.cancel()

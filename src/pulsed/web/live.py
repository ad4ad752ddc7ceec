"""Live pages: one poll per tick for all open tabs, and none while no tab is visible.

A tab holds an event stream, which sends a short summary after every tick. The tab then fetches its
live parts again. What fragments read is shared: tabs that ask for the same thing
within a tick get the same answer from one query.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from pulsed.errors import StorageError

T = TypeVar("T")

log = logging.getLogger("pulsed.ui")

TICK = 2.0
"""Seconds between two polls while a tab is open."""
MOST_STREAMS = 200
MOST_SHARED = 500
"""Answers that are kept for the length of a tick."""
KEEP_ALIVE = 15.0
"""Seconds after which a stream without news sends a comment, so that proxies keep it open."""


class _Answer(NamedTuple):
    """The answer of a read, or the read in flight, and until when it is shared."""

    until: float
    future: asyncio.Future[Any]


class Shared:
    """Answers that several requests share for the length of a tick. Older ones are dropped."""

    def __init__(self, seconds: float = TICK, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._answers: dict[Hashable, _Answer] = {}

    async def get(
        self, key: Hashable, read: Callable[[], Awaitable[T]], *, seconds: float | None = None
    ) -> T:
        """Return the answer of ``read``, at most a tick (or ``seconds``) old."""
        now = self._clock()
        found = self._answers.get(key)
        if found is not None and now < found.until:
            return cast("T", await asyncio.shield(found.future))
        self._make_room(now)
        task = asyncio.ensure_future(read())
        answer = self._answers[key] = _Answer(now + (seconds or self._seconds), task)
        try:
            return await asyncio.shield(task)
        except BaseException:
            if self._answers.get(key) is answer:
                del self._answers[key]
            raise

    def _make_room(self, now: float) -> None:
        """Drop what has expired: an answer may have megabytes of payloads."""
        for key in [each for each, answer in self._answers.items() if answer.until <= now]:
            del self._answers[key]
        if len(self._answers) >= MOST_SHARED:
            self._answers.clear()

    def __len__(self) -> int:
        """Return how many answers are kept."""
        return len(self._answers)

    def forget(self) -> None:
        """Drop all answers: something was changed, and the next page must show it."""
        self._answers.clear()


class Hub(Generic[T]):
    """Polls a summary while streams are open, and sends it to all of them when it differs."""

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
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE), self._changed:
                        await self._changed.wait_for(partial(self._is_newer, seen))
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
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

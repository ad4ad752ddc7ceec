"""Reads that callers share: one at a time for each key, and its answer stands for some seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

TICK = 2.0
"""Seconds for which an answer stands, unless told otherwise."""
MOST_ANSWERS = 500


class _Read(NamedTuple):
    """A read in flight, or its answer, and for how many seconds that stands."""

    task: asyncio.Task[tuple[Any, float]]
    """Returns the answer, and when it was read."""
    seconds: float

    def is_over(self, now: float) -> bool:
        """Whether it has to be read again."""
        if not self.task.done():
            return False
        if self.task.cancelled() or self.task.exception() is not None:
            return True
        return now - self.task.result()[1] >= self.seconds


class SharedReads:
    """The reads of one event loop. What has failed is read again by the next caller."""

    def __init__(self, seconds: float = TICK, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._reads: dict[Hashable, _Read] = {}

    async def get(
        self,
        key: Hashable,
        read: Callable[[], Coroutine[Any, Any, T]],
        *,
        seconds: float | None = None,
    ) -> T:
        """Return the answer of ``read``, perhaps of an earlier call.

        A read continues when its caller is cancelled: others may wait for it.
        """
        now = self._clock()
        found = self._reads.get(key)
        if found is None or found.is_over(now):
            self._make_room(now)
            task = asyncio.create_task(self._timed(read), name="pulsed-read")
            found = self._reads[key] = _Read(task, seconds or self._seconds)
        if not found.task.done():
            await asyncio.wait([found.task])
        answer: T = found.task.result()[0]
        return answer

    def forget(self) -> None:
        """Drop all answers: something was changed, and the next read must show it."""
        self._reads.clear()

    def __len__(self) -> int:
        """Return how many answers are kept."""
        return len(self._reads)

    def _make_room(self, now: float) -> None:
        """Drop what is over: an answer may have megabytes of payloads."""
        for key in [each for each, read in self._reads.items() if read.is_over(now)]:
            del self._reads[key]
        if len(self._reads) >= MOST_ANSWERS:
            self._reads.clear()

    async def _timed(self, read: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, float]:
        return await read(), self._clock()

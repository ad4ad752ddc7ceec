"""Reads that callers share: one at a time for each key, and its answer stands for some seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

TICK = 2.0
"""Seconds for which an answer stands, unless told otherwise."""
MOST_ANSWERS = 500


class SharedReads:
    """The reads of one event loop. What has failed is read again by the next caller."""

    def __init__(self, seconds: float = TICK, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._tasks: dict[Hashable, asyncio.Task[tuple[Any, float]]] = {}
        """Each returns the answer, and when it was read."""

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
        task = self._tasks.get(key)
        if task is None or self._is_over(task, seconds or self._seconds):
            if len(self._tasks) >= MOST_ANSWERS:
                self._tasks.clear()
            task = self._tasks[key] = asyncio.create_task(self._timed(read), name="pulsed-read")
        if not task.done():
            await asyncio.wait([task])
        answer: T = task.result()[0]
        return answer

    def forget(self) -> None:
        """Drop all answers: something was changed, and the next read must show it."""
        self._tasks.clear()

    async def _timed(self, read: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, float]:
        return await read(), self._clock()

    def _is_over(self, task: asyncio.Task[tuple[Any, float]], seconds: float) -> bool:
        if not task.done():
            return False
        if task.cancelled() or task.exception() is not None:
            return True
        return self._clock() - task.result()[1] >= seconds

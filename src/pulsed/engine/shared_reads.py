"""Reads that several readers share: who asks again within a tick gets the same answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")

TICK = 2.0
"""Seconds for which an answer is shared."""
MOST_SHARED = 500
"""Answers that are kept for the length of a tick."""


class Shared:
    """Answers that several requests share for the length of a tick."""

    def __init__(self, seconds: float = TICK, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._answers: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(
        self, key: Hashable, read: Callable[[], Awaitable[T]], *, seconds: float | None = None
    ) -> T:
        """Return the answer of ``read``, at most a tick (or ``seconds``) old."""
        now = self._clock()
        found = self._answers.get(key)
        if found is not None and now - found[0] < (seconds or self._seconds):
            return cast("T", await asyncio.shield(found[1]))
        if len(self._answers) >= MOST_SHARED:
            self._answers.clear()
        task = asyncio.ensure_future(read())
        self._answers[key] = (now, task)
        try:
            return await asyncio.shield(task)
        except BaseException:
            if self._answers.get(key) == (now, task):
                del self._answers[key]
            raise

    def forget(self) -> None:
        """Drop all answers: something was changed, and the next page must show it."""
        self._answers.clear()

"""A thread for the blocking calls of a step's transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class StepThread:
    """Runs blocking calls in a thread of its own, one after the other.

    The loop's default executor would risk a deadlock: a step that holds locks would wait for one
    of its threads while handlers, or calls that wait for these locks, occupy all of them.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held by the one transaction that may use the thread."""
        self._rest_until = 0.0
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="pulsed-step-tx")

    @property
    def rest(self) -> float:
        """Seconds until the next transaction may begin."""
        return max(self._rest_until - time.monotonic(), 0)

    def leave_alone_for(self, seconds: float) -> None:
        """Delay the next transaction by ``seconds``."""
        self._rest_until = time.monotonic() + seconds

    async def call(self, fn: Callable[..., T], *args: Any) -> T:
        """Return the result of a function called in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn, *args)

    async def open(self, fn: Callable[[], T], close: Callable[[T], object]) -> T:
        """Return what ``fn`` opens in the thread; if the caller is cancelled, it is closed."""
        opening = self._threads.submit(fn)
        try:
            return await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            self._threads.submit(_close_opened, opening, close)
            raise

    def end(self) -> None:
        """Stop the thread after its queued calls, without waiting for it."""
        self._threads.shutdown(wait=False)


def _close_opened(opening: Any, close: Callable[[Any], object]) -> None:
    if opening.exception() is None:
        close(opening.result())

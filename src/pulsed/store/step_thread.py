"""A thread for the blocking calls of a step's transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class StepThread:
    """Makes blocking calls, one after the other.

    Not on the loop's own threads: a step that holds locks must not wait for one of those, where
    handlers, or others who wait for these very locks, may sit on all of them.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held by the one transaction that may use the thread."""
        self._rest_until = 0.0
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="pulsed-step-tx")

    @property
    def rest(self) -> float:
        """Seconds until the next one may begin."""
        return max(self._rest_until - time.monotonic(), 0)

    def leave_alone_for(self, seconds: float) -> None:
        """Let the next one begin only after so long."""
        self._rest_until = time.monotonic() + seconds

    async def call(self, fn: Callable[..., T], *args: Any) -> T:
        """Call a function there."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn, *args)

    async def open(self, fn: Callable[[], T], close: Callable[[T], object]) -> T:
        """Open something there; if nobody wants it any more by then, it is closed at once."""
        opening = self._threads.submit(fn)
        try:
            return await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            self._threads.submit(_close_opened, opening, close)
            raise

    def end(self) -> None:
        """Let the thread go when it has done what it was given."""
        self._threads.shutdown(wait=False)


def _close_opened(opening: Any, close: Callable[[Any], object]) -> None:
    if opening.exception() is None:
        close(opening.result())

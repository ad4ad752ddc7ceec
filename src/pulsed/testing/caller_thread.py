"""Runs plain handlers in the thread that waits for the drain.

So they find what belongs to that thread: a Django test's transaction, an SQLite connection, mocks
in thread-local variables.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from pulsed.engine.worker.threads import Call, HandlerThreads


class CallerThread(HandlerThreads):
    """Threads for plain handlers that are a single one: whichever calls ``serve``."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def put(self, calls: Iterable[Call]) -> None:
        """Queue calls for the thread, each with a copy of the current context variables."""
        loop, variables = asyncio.get_running_loop(), contextvars.copy_context()
        for call in calls:
            self._calls.put(functools.partial(_run, call, variables.copy(), loop))

    def close(self) -> None:
        """Do nothing: the next worker of the drain uses the same thread."""

    def serve(self) -> None:
        """Run calls in this thread until ``finish``."""
        while (call := self._calls.get()) is not None:
            call()

    def finish(self) -> None:
        """Have ``serve`` return after the calls that are queued."""
        self._calls.put(None)


def _run(call: Call, variables: contextvars.Context, loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(variables.run(call))

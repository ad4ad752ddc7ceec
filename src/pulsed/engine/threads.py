"""Reused threads for plain (``def``) handlers.

Not ``concurrent.futures``: its threads are joined when the interpreter exits, so one handler that
never returns would keep a finished worker alive for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Call(NamedTuple):
    function: Callable[[], Any]
    context: contextvars.Context
    future: asyncio.Future[Any]


class HandlerThreads:
    """As many threads as were ever busy at once; each takes the next call when it is free."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in a thread, in a copy of the current context variables."""
        future = asyncio.get_running_loop().create_future()
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(
                target=self._serve, name=f"pulsed-handler-{self._threads}", daemon=True
            ).start()
        self._calls.put(_Call(function, contextvars.copy_context(), future))
        result, error = await future
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let idle threads end; a busy one ends after its call."""
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = 0

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.context.run(call.function)
            except BaseException as raised:  # noqa: BLE001 - goes to the run that waits for it
                error = raised
            try:
                call.future.get_loop().call_soon_threadsafe(
                    self._finish, call.future, result, error
                )
            except RuntimeError:  # the worker has gone; so can we
                return
            del call, result, error  # an idle thread must not keep a job's objects alive

    def _finish(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._busy -= 1
        if not future.done():
            # Not set_exception: a Future refuses StopIteration, and GeneratorExit thrown into a
            # coroutine ends it on the spot.
            future.set_result((result, error))

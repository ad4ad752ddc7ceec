"""Threads of a simulated process, which run in line: in the loop's one thread.

A function that blocks takes no simulated time itself; its result comes after a while, as if it had
taken so long. It must not wait for the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import Any

from pulsed.engine.worker.threads import Call, HandlerThreads

TAKES = 0.3
"""Seconds after which a plain handler has returned."""


class HandlersInLine(HandlerThreads):
    """Calls plain handlers one after the other, each with a copy of the context variables."""

    def put(self, calls: Iterable[Call]) -> None:
        loop, variables = asyncio.get_running_loop(), contextvars.copy_context()
        for call in calls:
            loop.call_soon(_call, loop, call, context=variables.copy())

    def close(self) -> None:
        """Do nothing: there is no thread."""


def _call(loop: asyncio.AbstractEventLoop, call: Call) -> None:
    loop.call_later(TAKES, without_loop(call))


def without_loop(function: Callable[[], Any]) -> Any:
    """Call a function as a thread does: no event loop runs in it."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return function()
    finally:
        asyncio._set_running_loop(loop)


class ThreadInLine:
    """In the place of ``threading.Thread``, for the function of a plain step."""

    def __init__(self, *, target: Callable[[], None], **_: Any) -> None:
        self._target = target

    def start(self) -> None:
        asyncio.get_running_loop().call_later(TAKES, without_loop, self._target)


class Threading:
    """In the place of the module."""

    Thread = ThreadInLine

"""One implementation for blocking and async callers.

Every public method is a coroutine function; its blocking form drives that coroutine by hand. That
works because in blocking mode no ``await`` in pulsed suspends: the store runs the statement on a
connection in the calling thread, and ``pause`` sleeps. There is no hidden event loop and no helper
thread, so blocking calls are cheap, survive a fork and can join the caller's transaction.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, TypeVar

from pulsed.errors import CalledInEventLoop, NoEventLoop

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_blocking: ContextVar[bool] = ContextVar("pulsed_blocking", default=False)


def is_blocking() -> bool:
    """Whether the current call came through a blocking method; any other needs asyncio."""
    return calling_loop() is None


def calling_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the current call; None if it came through a blocking method."""
    if _blocking.get():
        return None
    loop = asyncio._get_running_loop()  # noqa: SLF001 - see below
    if loop is None:
        raise NoEventLoop(
            "The async methods of pulsed need asyncio, which does not run in this thread. Under "
            "trio, call the blocking one in a thread: "
            "`await trio.to_thread.run_sync(send.enqueue, ...)`."
        )
    return loop


async def pause(seconds: float) -> None:
    """Sleep: in the thread for a blocking call, else in the event loop."""
    if is_blocking():
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop to block
    else:
        await asyncio.sleep(seconds)


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end in this thread, without an event loop."""
    token = _blocking.set(True)
    try:
        coroutine.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    finally:
        _blocking.reset(token)
        coroutine.close()
    raise AssertionError(f"{coroutine!r} suspended in blocking mode; this is a bug in pulsed.")


def blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """Make the blocking twin of the coroutine method ``a<name>``."""
    twin = method.__name__

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - see below
            refuse_in_event_loop(twin)
        return run_blocking(method(self, *args, **kwargs))

    call.__name__ = _blocking_name(twin)
    call.__qualname__ = call.__qualname__.removesuffix(twin) + call.__name__
    return call


def refuse_in_event_loop(twin: str) -> None:
    """Raise if this thread runs an event loop, which a blocking call would freeze."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented, and 20 times cheaper
        name = _blocking_name(twin)
        raise CalledInEventLoop(
            f"{name}() blocks, and an event loop is running in this thread. "
            f"Use `await {twin}(...)` here."
        )


def _blocking_name(twin: str) -> str:
    return twin.removeprefix("a").rstrip("_")  # of ``await_``: ``await`` is a keyword

"""The event loop of a process that is only a worker or a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` as ``asyncio.run`` does, on uvloop where that is installed."""
    with new_runner() as runner:
        return runner.run(main)


def new_runner() -> asyncio.Runner:
    """Return a runner on uvloop, where that is installed."""
    return asyncio.Runner(loop_factory=_uvloop())


async def ends_first(wanted: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Run both until one has ended, and cancel the other; return whether ``wanted`` has ended."""
    tasks = [asyncio.create_task(wanted), asyncio.create_task(other)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()
    return tasks[0] in done


def _uvloop() -> Any:
    try:
        import uvloop  # noqa: PLC0415 - an extra, and only workers and servers want it
    except ImportError:
        return None
    return uvloop.new_event_loop

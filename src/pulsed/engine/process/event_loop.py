"""The event loop of a process that is only a worker or a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` as ``asyncio.run`` does, on uvloop where that is installed."""
    with asyncio.Runner(loop_factory=_uvloop()) as runner:
        return runner.run(main)


def _uvloop() -> Any:
    try:
        import uvloop  # noqa: PLC0415 - an extra, and only workers and servers want it
    except ImportError:
        return None
    return uvloop.new_event_loop

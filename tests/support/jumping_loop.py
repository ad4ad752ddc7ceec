"""An event loop with a clock of its own: when it is idle, it jumps to the next timer.

What runs on it takes no time, and meets in the same order whenever it is run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumps(selectors.SelectSelector):
    """Moves the clock instead of waiting."""

    now = 0.0
    instant = 0.0
    """Seconds that every turn of the loop takes at least."""
    has_files = True
    """Whether there may be news from files or other threads."""

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everybody waits for somebody else, and no timer is set")
        self.now += max(timeout, self.instant)
        return super().select(0) if self.has_files else []


class JumpingLoop(asyncio.SelectorEventLoop):
    """Begins at zero."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def run_jumping(story: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, on a loop of its own."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(story)

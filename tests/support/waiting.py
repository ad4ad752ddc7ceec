"""Waiting for a condition that another thread, process or server brings about."""

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE = 60.0


def pauses() -> Iterator[float]:
    """Yield how long to sleep between two polls: short at first, since most things happen soon.

    Polling takes processor time from what is waited for: a process start takes 0.2 s.
    """
    pause = 0.001
    while True:
        yield pause
        pause = min(1.3 * pause, 0.01)


async def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Let others work until ``condition()`` is true; fail when that takes too long."""
    give_up_at = time.monotonic() + patience
    pause = pauses()
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        await asyncio.sleep(next(pause))


async def turns(number: int = 5) -> None:
    """Let tasks start, and what they start in turn."""
    for _ in range(number):
        await asyncio.sleep(0)

"""Waiting for a condition that another thread, process or server brings about."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0


async def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Let others work until ``condition()`` is true; fail when that takes too long."""
    give_up_at = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        await asyncio.sleep(0.001)

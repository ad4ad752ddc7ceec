"""Warns about due jobs that no live worker will claim, because none serves their queue."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from pulsed.engine.why import live, unserved_queue
from pulsed.store.base import Store

log = logging.getLogger("pulsed.upkeep")

CHECK_EVERY = 60.0
"""Seconds between two checks. A worker that starts has announced itself by then."""
REPEAT_AFTER = timedelta(minutes=10)
"""Time after which a warning about the same queue is repeated."""


class UnservedQueues:
    """Finds queues with due jobs and no live worker; warns about each every ``REPEAT_AFTER``."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._next_check = float("-inf")
        self._warned: dict[str, datetime] = {}

    async def tick(self) -> list[str]:
        """Check if the interval is over; returns the queues that were logged.

        A server makes this check by itself, and may not show a worker all queues.
        """
        if self._store.is_remote or self._clock() < self._next_check:
            return []
        self._next_check = self._clock() + CHECK_EVERY
        now = await self._store.now()
        living = live(await self._store.workers(), now)
        served = {queue for worker in living for queue in worker.queues}
        due = await self._store.due_queues(besides=sorted(served))
        fresh = [name for name in due if self._warned.get(name, now) <= now]
        for name in fresh:
            log.warning("%s", unserved_queue(name, due[name], living, now))
        self._warned = {name: self._warned[name] for name in due if name not in fresh}
        self._warned |= dict.fromkeys(fresh, now + REPEAT_AFTER)
        return fresh

"""Waiting for a database that is away: what a workflow has done must not depend on a blink."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pulsed.errors import StorageBusy, StorageFull, TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.store.log_throttle import level_of

T = TypeVar("T")

log = logging.getLogger("pulsed.worker")

PATIENCE = RetryPolicy(initial=0.5, max=5.0, jitter=0.2)


async def patiently(ask: Callable[[], Awaitable[T]], what: str, *, busy: bool = True) -> T:
    """Await ``ask()`` until the database answers; without ``busy``, unless it is StorageBusy.

    The store has retried already. A run that gave up here would lose an attempt, or the result of
    a step, to an outage; so it waits as the report of its outcome would, until it is told to stop.
    """
    failures = 0
    while True:
        try:
            return await ask()
        except (TransientStorageError, StorageFull) as error:
            if isinstance(error, StorageBusy) and not busy:
                raise
            failures += 1
            log.log(level_of(error), "%s waits for the database (%s)", what, error)
        await asyncio.sleep(PATIENCE.delay(failures))

"""Waits for a database that is away: a transient failure must not cost a workflow its progress."""

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

OUTAGE_BACKOFF = RetryPolicy(initial=0.5, max=5.0, jitter=0.2)


async def retry_through_outage(
    ask: Callable[[], Awaitable[T]], what: str, *, busy: bool = True
) -> T:
    """Retry ``ask()`` until the database answers; without ``busy``, raise ``StorageBusy``.

    The store has retried already. A run that gave up here would lose an attempt, or the result of
    a step, to an outage; so it retries as its report would, until the run is stopped.
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
        await asyncio.sleep(OUTAGE_BACKOFF.delay(failures))

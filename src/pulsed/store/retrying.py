"""Storage retry: a database that blinks is not a job that failed.

Only ``TransientStorageError`` is tried again. A cancelled task, a deadline and every other error
pass through at once. Verbs are idempotent, so a try whose answer was lost does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pulsed.backoff import RetryPolicy
from pulsed.errors import TransientStorageError
from pulsed.store.blocking import pause

T = TypeVar("T")

log = logging.getLogger("pulsed.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """How patient every store is."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dequeue_retry: RetryPolicy = field(default_factory=RetryPolicy.dequeue)


async def retrying(
    policy: RetryPolicy,
    attempt: Callable[[], Awaitable[T]],
    *,
    what: str,
    within: float | None = None,
) -> T:
    """Await ``attempt()`` until it succeeds, the policy gives up, or the time is over."""
    give_up_at = None if within is None else time.monotonic() + within
    failures = 0
    while True:
        try:
            return await attempt()
        except TransientStorageError as error:
            failures += 1
            delay = policy.delay(failures)
            too_late = give_up_at is not None and time.monotonic() + delay >= give_up_at
            if failures >= policy.max_attempts or too_late:
                raise
            log.warning("%s failed (%s); trying again in %.2f s", what, error, delay)
        await pause(delay)

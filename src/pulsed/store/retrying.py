"""Storage retry: a database that blinks is not a job that failed.

Only ``TransientStorageError`` is tried again. A cancelled task, a deadline and every other error
pass through at once. Verbs are idempotent, so a try whose answer was lost does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from pulsed.errors import StorageBusy, TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.store.blocking import pause
from pulsed.store.log_throttle import Throttle, level_of

T = TypeVar("T")

log = logging.getLogger("pulsed.store")


QUIET = 10.0
"""Seconds between two lines about retries, in one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """How patient every store is."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dequeue_retry: RetryPolicy = field(default_factory=RetryPolicy.dequeue)


class OwnRetry(NamedTuple):
    """What a worker has instead of its store's policies; None: as the store has it."""

    retry: RetryPolicy | None = None
    dequeue_retry: RetryPolicy | None = None


_STORES_OWN = OwnRetry()

_own: ContextVar[OwnRetry] = ContextVar("pulsed_own_retry", default=_STORES_OWN)
"""A worker's policies go with its tasks and threads, because its store is also the producers'."""


def use_own_retry(own: OwnRetry) -> None:
    """Retry by these policies for the rest of this task, and in all tasks that it starts."""
    _own.set(own)


def retry_of(options: RetryOptions) -> RetryPolicy:
    """Return how an operation is retried here."""
    return _own.get().retry or options.retry


def dequeue_retry_of(options: RetryOptions) -> RetryPolicy:
    """Return how a claim is retried here."""
    return _own.get().dequeue_retry or options.dequeue_retry


class Complaints:
    """Logs retries, but not each of them.

    While a database is away, every loop of a worker tries several times a second. One line tells
    that; the others are there for those who look at DEBUG.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = Throttle(QUIET, clock)

    def add(self, what: str, error: TransientStorageError, delay: float) -> None:
        """Log that ``what`` is tried again after ``delay`` seconds."""
        reason = str(error).removesuffix(".")
        # Most errors say themselves what has failed.
        told = reason if reason.startswith(what) else f"{what} failed ({reason})"
        level = level_of(error)
        if level < logging.WARNING or (kept_back := self._lines.add()) is None:
            log.debug("%s; trying again in %.2f s", told, delay)
            return
        more = f" ({kept_back:,} more retries since the last time)" if kept_back else ""
        log.log(level, "%s; trying again in %.2f s%s", told, delay, more)


complaints = Complaints()


async def retrying(
    policy: RetryPolicy,
    attempt: Callable[[], Awaitable[T]],
    *,
    what: str,
    within: float | None = None,
    busy: bool = True,
) -> T:
    """Await ``attempt()`` until it succeeds, the policy gives up, or the time is over.

    Without ``busy``, a database that answers but does not get through is not asked again.
    """
    give_up_at = None if within is None else time.monotonic() + within
    failures = 0
    while True:
        try:
            return await attempt()
        except TransientStorageError as error:
            if isinstance(error, StorageBusy) and not busy:
                raise
            failures += 1
            delay = policy.delay(failures)
            too_late = give_up_at is not None and time.monotonic() + delay >= give_up_at
            if failures >= policy.max_attempts or too_late:
                raise
            complaints.add(what, error, delay)
        await pause(delay)

"""Storage retry: a transient failure of the database is not a failure of the job.

Only ``TransientStorageError`` is retried. A cancelled task, a deadline and every other error pass
through at once. Verbs are idempotent, so retrying one whose answer was lost does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pulsed.errors import StorageBusy, TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.events import StorageRetried
from pulsed.store.blocking import pause
from pulsed.store.event_bus import Events
from pulsed.store.log_throttle import Throttle, level_of

if TYPE_CHECKING:
    from pulsed.store.retry_options import RetryOptions

T = TypeVar("T")

log = logging.getLogger("pulsed.store")


QUIET = 10.0
"""Seconds between two log lines about retries, in one process."""


class OwnRetry(NamedTuple):
    """A worker's own retry policies; None: its store's."""

    retry: RetryPolicy | None = None
    dequeue_retry: RetryPolicy | None = None


_STORES_OWN = OwnRetry()

_own: ContextVar[OwnRetry] = ContextVar("pulsed_own_retry", default=_STORES_OWN)
"""A worker's policies follow its tasks and threads, because producers may share its store."""


def use_own_retry(own: OwnRetry) -> None:
    """Use these policies for the rest of this task, and in all tasks that it starts."""
    _own.set(own)


@contextmanager
def own_retry(own: OwnRetry) -> Iterator[None]:
    """Use these policies inside of the block."""
    token = _own.set(own)
    try:
        yield
    finally:
        _own.reset(token)


def has_own_retry() -> bool:
    """Whether this task uses other policies than the store's."""
    return _own.get() != _STORES_OWN


def retry_of(options: RetryOptions) -> RetryPolicy:
    """Return the retry policy of an operation in this task."""
    return _own.get().retry or options.retry


def dequeue_retry_of(options: RetryOptions) -> RetryPolicy:
    """Return the retry policy of a claim in this task."""
    return _own.get().dequeue_retry or options.dequeue_retry


class RetryLog:
    """Logs retries, rate limited.

    While a database is down, every loop of a worker retries several times a second. One line is
    logged as a warning; the others only at DEBUG.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = Throttle(QUIET, clock)

    def add(self, what: str, error: TransientStorageError, delay: float) -> None:
        """Log that ``what`` is retried after ``delay`` seconds."""
        reason = str(error).removesuffix(".")
        # Most messages already name the operation that failed.
        told = reason if reason.startswith(what) else f"{what} failed ({reason})"
        level = level_of(error)
        if level < logging.WARNING or (kept_back := self._lines.add()) is None:
            log.debug("%s; trying again in %.2f s", told, delay)
            return
        more = f" ({kept_back:,} more retries since the last time)" if kept_back else ""
        log.log(level, "%s; trying again in %.2f s%s", told, delay, more)


retry_log = RetryLog()


class Retries:
    """Decides whether an attempt that failed is made again, and when."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        what: str,
        events: Events | None = None,
        give_up_at: float | None = None,
        busy: bool = True,
    ) -> None:
        self._policy = policy
        self._what = what
        self._events = events
        self._give_up_at = give_up_at
        """A monotonic time; None: the policy decides alone."""
        self._busy = busy
        """Whether StorageBusy (a lock or statement timeout) is retried."""
        self._failures = 0

    async def pause_after(self, error: TransientStorageError) -> None:
        """Pause before the next attempt; raises the error if the policy or time is exhausted."""
        if isinstance(error, StorageBusy) and not self._busy:
            raise error
        self._failures += 1
        delay = self._policy.delay(self._failures)
        give_up_at = self._give_up_at
        too_late = give_up_at is not None and time.monotonic() + delay >= give_up_at
        if self._failures >= self._policy.max_attempts or too_late:
            raise error
        retry_log.add(self._what, error, delay)
        events = self._events
        if events is not None and StorageRetried in events.wanted:
            kind, text = type(error).__name__, str(error)
            events.publish([StorageRetried(operation=self._what, error_type=kind, error=text)])
        await pause(delay)


async def retrying(
    policy: RetryPolicy,
    attempt: Callable[[], Awaitable[T]],
    *,
    what: str,
    events: Events | None = None,
    within: float | None = None,
    busy: bool = True,
) -> T:
    """Return what ``attempt()`` returns, retrying until the policy or ``within`` is exhausted.

    Retries are published on ``events``. Without ``busy``, StorageBusy is not retried.
    """
    give_up_at = None if within is None else time.monotonic() + within
    retries: Retries | None = None  # most attempts need none
    while True:
        try:
            return await attempt()
        except TransientStorageError as error:
            retries = retries or Retries(
                policy, what=what, events=events, give_up_at=give_up_at, busy=busy
            )
            await retries.pause_after(error)

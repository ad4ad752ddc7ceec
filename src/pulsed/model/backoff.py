"""How long to wait before trying again: a job's backoff and the storage retry policy.

A job's ``Backoff`` is data on its row, because SQL alone decides what happens after a failure
(a worker that died cannot decide). One formula covers every shape::

    delay(n) = min(cap, base · nᵖ · fⁿ⁻¹) · (1 ± jitter)        n = attempts so far
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import msgspec

from pulsed.errors import LONGEST_DELAY, ConfigError, InvalidOption, checked_seconds

LARGEST_EXPONENT = 40.0
"""e⁴⁰ s is seven billion years: enough to hit any cap, too little to overflow a float."""


def share() -> float:
    """Return a random number from 0 to below 1, which no fork repeats."""
    return int.from_bytes(os.urandom(4)) / 2**32


class Backoff(msgspec.Struct, frozen=True):
    """The wait between two attempts of a job; make one with a constructor below."""

    base: float
    power: float = 0.0
    factor: float = 1.0
    cap: float = 86_400.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        checked_seconds("Backoff base", self.base)
        checked_seconds("Backoff cap", self.cap)
        _within("Backoff power", self.power, 0, 10)
        _within("Backoff factor", self.factor, 1, 100)
        _within("Backoff jitter", self.jitter, 0, 1)

    @classmethod
    def quadratic(cls, base: float = 1, *, cap: float = 86_400, jitter: float = 0) -> Backoff:
        """1, 4, 9, 16 … times ``base`` seconds: the default."""
        return cls(base, power=2, cap=cap, jitter=jitter)

    @classmethod
    def linear(cls, step: float = 30, *, cap: float = 86_400, jitter: float = 0) -> Backoff:
        """Wait ``step`` seconds more each time: 30, 60, 90 and so on."""
        return cls(step, power=1, cap=cap, jitter=jitter)

    @classmethod
    def exponential(
        cls, base: float = 1, *, factor: float = 2, cap: float = 3_600, jitter: float = 0.1
    ) -> Backoff:
        """``factor`` times longer each time, up to ``cap``: 1, 2, 4, 8 …, give or take 10 %."""
        return cls(base, factor=factor, cap=cap, jitter=jitter)

    @classmethod
    def fixed(cls, seconds: float, *, jitter: float = 0) -> Backoff:
        """Wait the same time before every attempt."""
        return cls(seconds, cap=LONGEST_DELAY, jitter=jitter)

    def delay(self, attempts: int, random: Callable[[], float] = share) -> float:
        """Return the seconds to wait after ``attempts`` attempts."""
        if self.base <= 0:
            return 0.0
        exponent = (
            math.log(self.base)
            + self.power * math.log(max(attempts, 1))
            + (attempts - 1) * math.log(self.factor)
        )
        delay = min(self.cap, math.exp(min(exponent, LARGEST_EXPONENT)))
        return delay * (1 + self.jitter * (2 * random() - 1))


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and with which backoff, one database operation is retried.

    Independent of a job's own attempts: a handler never notices a storage retry.
    """

    max_attempts: int = 5
    initial: float = 0.1
    max: float = 5.0
    multiplier: float = 2.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        counts = isinstance(self.max_attempts, int) and not isinstance(self.max_attempts, bool)
        if not counts or not 1 <= self.max_attempts <= 1_000:
            raise InvalidOption(
                "RetryPolicy max_attempts counts the first try and must be 1..1000, "
                f"not {self.max_attempts!r}."
            )
        checked_seconds("RetryPolicy initial", self.initial)
        checked_seconds("RetryPolicy max", self.max)
        _within("RetryPolicy multiplier", self.multiplier, 1, 100)
        _within("RetryPolicy jitter", self.jitter, 0, 1)

    @classmethod
    def dequeue(cls) -> RetryPolicy:
        """Return the default policy of claims.

        Its backoff is longer and has more jitter, so that idle workers do not overload a database
        in trouble.
        """
        return cls(max_attempts=3, initial=0.5, max=10.0, multiplier=2.0, jitter=0.2)

    @classmethod
    def disabled(cls) -> RetryPolicy:
        """Return a policy without retries; in an app or a worker, claims are not retried either."""
        return _DISABLED

    def delay(self, failures: int, random: Callable[[], float] = share) -> float:
        """Return the seconds to wait after the ``failures``-th failure (1, 2, …)."""
        grown = self.initial * self.multiplier ** min(failures - 1, 64)
        return min(self.max, grown) * (1 + self.jitter * (2 * random() - 1))


def retry_policies(
    retry: RetryPolicy | None, attempts: int | None, dequeue: RetryPolicy | None
) -> tuple[RetryPolicy | None, RetryPolicy | None]:
    """Return the policies that options give for operations and for claims; None for a default.

    To disable the one for operations disables that of claims too, unless it is given.
    """
    if attempts is not None:
        if retry is not None:
            raise ConfigError("retry= and retry_attempts= both say how often to try; give one.")
        retry = RetryPolicy(max_attempts=attempts)
    return retry, _DISABLED if dequeue is None and retry is _DISABLED else dequeue


def _within(what: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidOption(f"{what} must be between {least:g} and {most:g}, not {value!r}.")


_DISABLED = RetryPolicy(max_attempts=1)
"""Compared by identity: another policy of one attempt does not disable retries of claims."""

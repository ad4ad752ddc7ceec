"""The time of a sandbox: it stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from pulsed.errors import InvalidOption
from pulsed.wording import parse_duration

Span: TypeAlias = float | timedelta | str
"""A length of time: seconds, a ``timedelta``, or a text like ``"7 days"`` or ``"1h 30m"``."""


class Clock:
    """The clock of a sandbox's database, which decides what is due, late or expired.

    It begins at ``start``, or now. Only ``advance``, ``move_to`` and a drain that skips time move
    it; the clock of your machine has no effect.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = datetime.now(UTC) if start is None else _checked(start)
        self._lock = threading.Lock()

    def __call__(self) -> datetime:
        """Return the current time."""
        return self._now

    @property
    def now(self) -> datetime:
        """The current time, in UTC."""
        return self._now

    def advance(self, span: Span) -> datetime:
        """Let time pass: ``clock.advance("7 days")``; returns the time after that."""
        with self._lock:
            self._now += checked_span(span)
            return self._now

    def move_to(self, instant: datetime) -> datetime:
        """Let time pass until ``instant``, which must not be in the past."""
        with self._lock:
            if _checked(instant) < self._now:
                raise InvalidOption(
                    f"A sandbox's clock does not go back: it is {self._now.isoformat()} there."
                )
            self._now = instant.astimezone(UTC)
            return self._now

    def after(self, moment: datetime | Span) -> datetime:
        """Return an instant: ``moment`` itself, or so long from now."""
        if isinstance(moment, datetime):
            return _checked(moment)
        return self._now + checked_span(moment)

    def __repr__(self) -> str:
        return f"<Clock {self._now.isoformat()}>"


def checked_span(span: Span) -> timedelta:
    """Return a length of time, or raise if it is none or negative."""
    seconds: float | None
    if isinstance(span, timedelta):
        seconds = span.total_seconds()
    else:
        seconds = parse_duration(span) if isinstance(span, str) else span
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InvalidOption(
            f"{span!r:.100} is no time to let pass: give seconds, a timedelta, or a text like "
            "'7 days', '90s' or '1h 30m'."
        )
    return timedelta(seconds=seconds)


def _checked(instant: datetime) -> datetime:
    if not isinstance(instant, datetime) or instant.tzinfo is None:
        raise InvalidOption(f"A clock needs a datetime with a time zone, not {instant!r:.100}.")
    return instant.astimezone(UTC)

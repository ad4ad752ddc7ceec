"""How long a finished job is kept before it is removed. ``engine/upkeep/pruner.py`` removes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias

import msgspec

from pulsed.errors import InvalidOption, checked_seconds
from pulsed.model.job import Status
from pulsed.wording import format_duration

Age: TypeAlias = timedelta | float | None
"""A timedelta or a number of seconds; None means forever."""

SHORTEST = 60.0
"""An enqueue or a report that is retried after a lost answer needs the row, to be recognised."""
LONGEST = 100 * 366 * 86_400.0
WEEK = timedelta(days=7)
MONTH = timedelta(days=30)
SHORTEST_STATS = 86_400.0
"""Statistics of the last day are kept by the minute in any case."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long finished jobs and statistics are kept; ``None`` keeps them for ever.

    A dead letter is work that was not done and waits for an operator, so none is removed
    unless you say when.
    """

    succeeded: Age = WEEK
    cancelled: Age = WEEK
    dead_lettered: Age = None
    stats: Age = MONTH
    """How long statistics are kept by the hour; see ``app.stats``."""

    def __post_init__(self) -> None:
        for name in ("succeeded", "cancelled", "dead_lettered"):
            checked_age(name, getattr(self, name), least=SHORTEST)
        checked_age("stats", self.stats, what_is_kept="statistics", least=SHORTEST_STATS)

    @classmethod
    def forever(cls) -> Retention:
        """Keep every job until you delete it."""
        return cls(succeeded=None, cancelled=None, dead_lettered=None, stats=None)

    @property
    def ages(self) -> dict[Status, float]:
        """The seconds that jobs of a status are kept after their end; for ever without an entry."""
        kept = {
            Status.SUCCEEDED: self.succeeded,
            Status.CANCELLED: self.cancelled,
            Status.DEAD_LETTERED: self.dead_lettered,
        }
        checked = {status: checked_age(status.lower(), age) for status, age in kept.items()}
        return {status: age for status, age in checked.items() if age is not None}

    @property
    def stats_age(self) -> float | None:
        """The seconds that statistics are kept by the hour; None: for ever."""
        return checked_age("stats", self.stats, what_is_kept="statistics")


def checked_age(
    what: str, value: Age, *, what_is_kept: str = "finished jobs", least: float = 0.0
) -> float | None:
    """Return the seconds of an age, or raise ``InvalidOption``."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    try:
        return checked_seconds(what, value, least=least, most=LONGEST)
    except InvalidOption as error:
        raise InvalidOption(
            f"How long to keep {what_is_kept}: {error} A timedelta will do as well, and None is "
            "for ever."
        ) from None


def checked_retention(value: Retention | None) -> Retention:
    """Return a policy; None is the default one."""
    if value is None:
        return Retention()
    if not isinstance(value, Retention):
        raise InvalidOption(
            "retention must be a Retention, such as Retention(succeeded=timedelta(days=7)), not "
            f"{value!r:.100}."
        )
    return value


def described(ages: Mapping[Status, float]) -> str:
    """Return a policy as text: ``SUCCEEDED 7 d, CANCELLED 12 h``."""
    parts = [f"{status} {format_duration(age)}" for status, age in ages.items()]
    return ", ".join(parts) or "everything forever"

"""How often runs may start: a rate, and the arithmetic of its permits (GCRA).

A rate is kept as one instant, the *theoretical arrival time*: when the run after the last one would
start if all came evenly spaced. A run may start ahead of it, by as much as the burst allows. So
starts need no history and no counter, and a rate that nobody uses needs no row.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import msgspec

from pulsed.errors import InvalidOption, checked_seconds
from pulsed.model.checked import checked_count

MOST_PERMITS = 1_000_000
"""The largest count and burst of a rate."""
SHORTEST_PER, LONGEST_PER = 0.001, 366 * 86_400.0
"""The shortest and the longest time that a rate counts in, in seconds."""
FASTEST = 100_000
"""Starts a second: an instant is exact to a microsecond."""
ROUNDED = 2e-6
"""Seconds by which an instant may be rounded up."""
COME_BACK = 0.1
"""Seconds whose permits a burst covers, if it is not given: workers claim more often than that."""


class Rate(msgspec.Struct, frozen=True):
    """At most ``count`` starts in ``per`` seconds on average, and up to ``burst`` of them at once.

    In any window of that length, at most ``count + burst`` runs start. Without ``burst`` they start
    evenly spaced, as far as the rate is so low that workers can keep to that.
    """

    count: int
    per: float | timedelta = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        per = self.per.total_seconds() if isinstance(self.per, timedelta) else self.per
        checked = checked_seconds("Rate per", per, least=SHORTEST_PER, most=LONGEST_PER)
        msgspec.structs.force_setattr(self, "per", checked)
        checked_count("Rate count", self.count, 1, MOST_PERMITS)
        if self.burst is not None:
            checked_count("Rate burst", self.burst, 1, MOST_PERMITS)
        if self.count / checked > FASTEST:
            raise InvalidOption(
                f"{self.count:,} in {checked:g} s are too many for a rate: at most {FASTEST:,} "
                "a second."
            )

    @property
    def seconds(self) -> float:
        """The time that it counts in, in seconds."""
        return float(self.per)  # type: ignore[arg-type]  # see __post_init__

    @property
    def interval(self) -> float:
        """Seconds between two starts that are evenly spaced."""
        return self.seconds / self.count

    @property
    def at_once(self) -> int:
        """How many runs may start at the same time after a pause."""
        return self.burst or max(1, math.floor(COME_BACK / self.interval))

    def permits(self, tat: datetime | None, now: datetime) -> int:
        """Return how many runs may start now."""
        ahead = self._ahead(tat, now)
        return max(0, math.floor(self.at_once - ahead / self.interval + 1e-6))

    def wait(self, tat: datetime | None, now: datetime) -> float:
        """Return the seconds until a run may start; 0 if one may now."""
        wait = self._ahead(tat, now) - (self.at_once - 1) * self.interval
        return max(0.0, wait)

    def after(self, tat: datetime | None, now: datetime, started: int) -> datetime:
        """Return the theoretical arrival time once ``started`` runs have started now."""
        ahead = self._ahead(tat, now) + started * self.interval
        return now + timedelta(microseconds=math.ceil(ahead * 1e6 - 1e-3))

    def _ahead(self, tat: datetime | None, now: datetime) -> float:
        """Return by how many seconds the starts so far are ahead of even spacing.

        They cannot be by more than a burst. If they seem to be, the clock was set back, or the rate
        was another one: then it begins anew.
        """
        ahead = 0.0 if tat is None else (tat - now).total_seconds()
        return ahead if 0 < ahead <= self.at_once * self.interval + ROUNDED else 0.0

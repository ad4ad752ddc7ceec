"""What the watchdogs' ticks say about outages, and which expired leases may be reaped. Pure.

An expired lease is the sign of a dead worker only if a living one could have sent a heartbeat. Each
poll of a watchdog leaves a *tick*, with the instant of the tick before it: in the *gap* between the
two, no process is known to have reached the database. A gap of more than a third of a lease can
have made that lease expire while its worker was alive, and earns it a *grace*, time to send a
heartbeat before it is reaped. A shorter gap cannot, because a worker sends a heartbeat every third
of a lease. docs/adr/0011 has the whole argument.

Every watchdog inserts its own tick and decides by that and by the ticks it has read. So it does not
matter which of several wakes first, and one that is frozen in its transaction blocks no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from pulsed.model.timetable import EPOCH

BEATS_PER_LEASE = 3

MOST_SLACK = timedelta(seconds=5)
"""The most by which a grace exceeds the heartbeat interval: workers retry failed heartbeats at
least that often."""

MOST_GRACES = 3
"""Gaps since its expiry for which a lease gets a grace. More of them are not outages but watchdogs
that poll rarely, and must not keep a dead worker's job for ever."""

CLOCK_STEP = timedelta(seconds=1)
"""A tick that is further in the future was made before the clock was set back."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One poll of a watchdog."""

    id: UUID
    previous: datetime | None
    """The poll before it, by any watchdog; None if unknown."""
    at: datetime

    @property
    def gap(self) -> timedelta:
        """The time before it in which no watchdog polled."""
        return timedelta.max if self.previous is None else self.at - self.previous


def harmless_gap(lease: timedelta) -> timedelta:
    """Return the longest gap in which no lease of a living worker expires."""
    return lease / BEATS_PER_LEASE


def grace(lease: timedelta) -> timedelta:
    """Return how long after a gap a worker may need to send a heartbeat."""
    return lease / BEATS_PER_LEASE + min(MOST_SLACK, lease / BEATS_PER_LEASE)


@dataclass(frozen=True, slots=True)
class Ticks:
    """The ticks that one watchdog has read and, as the last one, its own."""

    ticks: tuple[Tick, ...]
    now: datetime
    stale: tuple[UUID, ...] = ()
    """Ticks to remove: no decision depends on them any more."""
    set_back: bool = False
    """Whether the clock has been set back since the last tick."""

    @classmethod
    def with_new(cls, found: Iterable[Tick], now: datetime, clock: datetime) -> Ticks:
        """Return the ticks found, with one added for this poll.

        ``now`` is the instant of the poll, ``clock`` the time at which the ticks were read, which
        is later if the transaction had to wait.
        """
        known = [tick for tick in found if tick.at <= now]
        future = [tick.id for tick in found if tick.at > clock + CLOCK_STEP]
        previous = max((tick.at for tick in known), default=None)
        own = Tick(uuid4(), None if future else previous, now)
        kept = _telling([*known, own])
        ids = {tick.id for tick in kept}
        stale = [tick.id for tick in known if tick.id not in ids]
        return cls(tuple(kept), now, (*stale, *future), set_back=bool(future))

    @classmethod
    def known(cls, found: Iterable[Tick], now: datetime) -> Ticks:
        """Return the ticks found, without adding one."""
        return cls(tuple(_telling(tick for tick in found if tick.at <= now)), now)

    @property
    def own(self) -> Tick:
        """The tick of this poll."""
        return self.ticks[-1]

    def reaped_before(self, lease: timedelta) -> datetime:
        """Return the instant before which a lease of this length must have ended to be reaped."""
        harmless = harmless_gap(lease)
        ends = [tick.at for tick in reversed(self.ticks) if tick.gap > harmless]
        if not ends or ends[0] + grace(lease) <= self.now:
            return self.now
        return ends[MOST_GRACES] if len(ends) > MOST_GRACES else EPOCH


def _telling(ticks: Iterable[Tick]) -> list[Tick]:
    """Return the ticks that ``reaped_before`` can depend on, oldest first.

    Of ticks that ended the same gap, only the last; and none with ``MOST_GRACES + 1`` later ones
    whose gaps are at least as long. The last of all is always kept.
    """
    ordered = sorted(ticks, key=lambda tick: tick.at)
    last_of = {tick.previous: tick for tick in ordered}
    kept: list[Tick] = []
    for tick in reversed(ordered):
        longer = sum(later.gap >= tick.gap for later in kept)
        if last_of[tick.previous] is tick and longer <= MOST_GRACES:
            kept.append(tick)
    return kept[::-1]

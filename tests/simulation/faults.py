"""The faults of a run: what goes wrong at which call or message. A list, so it can shrink."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What happens at a storage call, or at a message between a client and a server."""

    REFUSED = "refused"
    """The connection is lost before the commit, or before the message has arrived."""
    UNANSWERED = "unanswered"
    """It is lost after that: the caller cannot know."""
    SLOW = "slow"
    DIES_BEFORE = "dies before"
    """The caller's or sender's process is killed before the commit, or the message."""
    DIES_AFTER = "dies after"
    FREEZES = "freezes"
    """Its process is stopped after that, and goes on later."""
    OUTAGE = "outage"
    """No call of any process gets through for some seconds; or no message of this connection."""


class Fault(NamedTuple):
    """One fault."""

    call: int
    """The number of the call or message, counted over all processes of the run, from 1."""
    kind: Kind
    seconds: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.seconds:g} s" if self.seconds else ""
        return f"call {self.call}: {self.kind}{lasting}"


SECONDS: dict[Kind, tuple[float, ...]] = {
    Kind.SLOW: (0.3, 2.0, 7.0),
    Kind.FREEZES: (0.5, 4.0, 9.0, 13.0),
    Kind.OUTAGE: (0.5, 2.0, 8.0),
}
WEIGHTS = {
    Kind.REFUSED: 3,
    Kind.UNANSWERED: 5,
    Kind.SLOW: 3,
    Kind.DIES_BEFORE: 2,
    Kind.DIES_AFTER: 3,
    Kind.FREEZES: 4,
    Kind.OUTAGE: 1,
}
HOW_MANY = (0, 1, 2, 4, 8, 16)
"""Faults of a run; with servers there are more calls, and twice as many faults."""
DELAYS = (0.0, 0.001, 0.001, 0.003, 0.003, 0.01, 0.03, 0.15)
"""Seconds that a call or a message takes, on either side of its commit."""
_BITS = (1 << 64) - 1


CALLS = 180
"""Calls in which faults happen, about as many as a storm makes; with servers, twice as many."""


def planned(chance: random.Random, *, servers: int) -> list[Fault]:
    """Draw the faults of a run, in their order."""
    times = 2 if servers else 1
    number = times * chance.choice(HOW_MANY)
    return sorted(_drawn(chance, times * CALLS) for _ in range(number))


def _drawn(chance: random.Random, calls: int) -> Fault:
    (kind,) = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
    return Fault(chance.randint(1, calls), kind, chance.choice(SECONDS.get(kind, (0.0,))))


class Event(NamedTuple):
    """A call or a message: its fault, if it has one, and its delays."""

    number: int
    kind: Kind | None
    seconds: float
    before: float
    after: float


class Plan:
    """Numbers the calls and messages of a run, and knows what happens at each.

    Delays depend on the seed and the number only, so a shorter list of faults changes no delay
    before the first fault that is gone.
    """

    def __init__(self, seed: int, faults: Sequence[Fault]) -> None:
        self._seed = seed * 1_000_003
        self._faults = {fault.call: fault for fault in faults}
        self.struck: list[Fault] = []
        self.calls = 0
        self.is_calm = False

    def next(self) -> Event:
        """Count a call or a message."""
        self.calls = number = self.calls + 1
        fault = None if self.is_calm else self._faults.get(number)
        chance = self._chance()
        before, after = DELAYS[chance & 7], DELAYS[chance >> 3 & 7]
        if fault is None:
            return Event(number, None, 0.0, before, after)
        self.struck.append(fault)
        return Event(number, fault.kind, fault.seconds, before, after)

    def delay(self) -> float:
        """Return a delay for something that is not counted."""
        return DELAYS[self._chance() >> 6 & 7]

    def _chance(self) -> int:
        """Return bits that depend on the seed and the number of the last call (splitmix64)."""
        bits = (self._seed + self.calls * 0x9E3779B97F4A7C15) & _BITS
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _BITS
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _BITS
        return bits >> 31

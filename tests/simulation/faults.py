"""The faults of a run: what goes wrong at which storage call. A list, so it can shrink."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What happens at a call."""

    REFUSED = "refused"
    """The connection is lost before the commit."""
    UNANSWERED = "unanswered"
    """It is lost after the commit: the caller cannot know."""
    SLOW = "slow"
    DIES_BEFORE = "dies before"
    """The caller's process is killed before the commit."""
    DIES_AFTER = "dies after"
    FREEZES = "freezes"
    """The caller's process is stopped after the commit, and goes on later."""
    OUTAGE = "outage"
    """No call of any process gets through for some seconds."""


class Fault(NamedTuple):
    """One fault."""

    call: int
    """The number of the call, counted over all processes of the run, from 1."""
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


def planned(chance: random.Random, calls: int) -> list[Fault]:
    """Draw the faults of a run that makes about so many calls, in their order."""
    return sorted(_drawn(chance, calls) for _ in range(chance.choice(HOW_MANY)))


def _drawn(chance: random.Random, calls: int) -> Fault:
    (kind,) = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
    return Fault(chance.randint(1, calls), kind, chance.choice(SECONDS.get(kind, (0.0,))))

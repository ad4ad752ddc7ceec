"""Where in a queue the next claim may begin.

The claim index has the due jobs of a queue, best first. Some of its entries only cost time: jobs of
topics that nobody here handles, and entries of jobs that have long been claimed but that PostgreSQL
must keep, because some session still looks at an old snapshot. So a store remembers, for each
priority, how far it has just seen that nothing is left for its topics, and begins the next claim
there.

What appears below a floor would be missed: a transaction may take long to commit a job that was due
when it began, and a claim of somebody else may be rolled back. Therefore

- a floor stays ``SLACK`` behind the time of the claim that set it: what commits within that time
  is seen at once;
- every now and then a claim *looks*, which is to say that it ignores the floors: each
  ``LOOK_EVERY`` seconds, and also when there is nothing to do above them; but so rarely that
  looking takes no more than a twentieth of the time, however long the stretch that it walks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pulsed.model.timetable import EPOCH
from pulsed.store.sql.jobs import LOWEST_ID

SLACK = 0.25
"""Seconds that a floor stays behind the time of its claim."""

LOOK_EVERY = 0.8
"""Seconds after which the next claim looks; less than a poll, so that every poll may."""

LOOK_SHARE = 20
"""A look waits until it has been this many times its own duration since the last one."""

LONG_LOOK = 0.05
"""Seconds after which it is worth to find out why a first look took so long."""

MANY = 10_000
"""Due jobs at the head of a queue: if most of them are not for us, a long walk is explained."""

BELIEVED = 0.25
"""Seconds of a first look that are believed at most: the second one then comes after five."""

NEVER = 1e9
"""The age in seconds of what did not happen."""


@dataclass(slots=True)
class Floor:
    """How far one priority is done."""

    at: Any = EPOCH
    id: Any = LOWEST_ID
    """The last job claimed: its instant and its id, as the engine's driver has them…"""
    claimed: float | None = None
    """…and when that was."""
    walked: float | None = None
    """When everything that was due had been seen."""


class Level(NamedTuple):
    """A priority to claim from, and where to begin.

    That is behind the job ``at`` and ``id``, but no later than ``claimed`` seconds ago; and no
    earlier than ``walked`` seconds ago.
    """

    priority: int
    at: Any
    id: Any
    claimed: float
    walked: float


class Floors:
    """The floors of one queue for one set of topics, by priority."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.by_priority: dict[int, Floor] = {}
        self.looked: float | None = None
        self.look_took = 0.0
        self.last_took = 0.0

    def walk(self) -> Walk:
        """Begin a claim."""
        return Walk(self, self.clock())

    def forget(self) -> None:
        """Let the next claim look, because the last one failed and nobody knows how far it got."""
        self.looked = None


class Walk:
    """One claim's way through the priorities of a queue."""

    def __init__(self, floors: Floors, began: float) -> None:
        self._floors = floors
        self._began = began
        self._look_began: float | None = None
        self.took = 0.0
        """Seconds that the look has taken."""
        self.is_surprising = False
        """It was a first look, and took long: a long walk, or a moment in which nothing moved?"""

    @property
    def must_look(self) -> bool:
        """Whether the last look is too long ago."""
        return self._since_look() >= max(LOOK_EVERY, LOOK_SHARE * self._floors.look_took)

    @property
    def may_look(self) -> bool:
        """Whether a look is affordable, if there is nothing else to do."""
        return self._since_look() >= LOOK_SHARE * self._floors.look_took

    def begin_look(self) -> None:
        """Start the clock: what is asked from now on is the look."""
        self._look_began = self._floors.clock()

    def look(self, priorities: Iterable[int]) -> None:
        """Forget the floors. These priorities, and those known before, are to be claimed from."""
        known = self._floors.by_priority
        self._floors.by_priority = {priority: Floor() for priority in {*known, *priorities}}

    def levels(self) -> list[Level]:
        """Return the known priorities, highest first."""
        floors = self._floors.by_priority
        return [self.level(priority) for priority in sorted(floors, reverse=True)]

    def level(self, priority: int) -> Level:
        """Return a priority with its floor."""
        floor = self._floors.by_priority.get(priority) or Floor()
        return Level(
            priority, floor.at, floor.id, self._age(floor.claimed), self._age(floor.walked)
        )

    def _age(self, instant: float | None) -> float:
        return NEVER if instant is None else max(0.0, self._began - instant) + SLACK

    def claimed(
        self, visited: Iterable[int], last: tuple[int, Any, Any] | None, *, full: bool
    ) -> None:
        """Raise the floors of the priorities visited.

        ``last`` is the worst job claimed: priority, instant and id. In a full batch there may be
        more behind it; otherwise everything that is due has been seen.
        """
        floors = self._floors.by_priority
        if last is not None:
            floor = floors.setdefault(last[0], Floor())
            floor.at, floor.id, floor.claimed = last[1], last[2], self._began
        for priority in visited:
            if not (full and last is not None and priority <= last[0]):
                floors.setdefault(priority, Floor()).walked = self._began
        if self._look_began is not None:
            self.took = self._floors.clock() - self._look_began

    def end_look(self) -> None:
        """Note how long the look has ``took``, which decides when the next one may be."""
        floors, took = self._floors, max(0.0, self.took)
        floors.looked = self._began
        self.is_surprising = floors.last_took == 0.0 and took > LONG_LOOK
        # Of two looks the shorter: a busy loop or a network that stood still is no long walk.
        floors.look_took = min(took, floors.last_took)
        floors.last_took = took

    def was_long(self) -> None:
        """Believe a surprising look: there is a reason for it."""
        self._floors.look_took = min(self._floors.last_took, BELIEVED)

    def _since_look(self) -> float:
        looked = self._floors.looked
        if looked is None or self._began < looked:  # a test may turn its clock back
            return math.inf
        return self._began - looked

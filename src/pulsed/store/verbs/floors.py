"""Floors: where in a queue the next claim may begin its scan.

The claim index has the due jobs of a queue, best first. Some of its entries only cost time: jobs of
topics that this worker does not handle, and entries of jobs claimed long ago that PostgreSQL must
keep, because some session still holds an old snapshot. So a store keeps a *floor* for each
priority, a watermark below which it found nothing left for its topics, and begins the next claim
there.

A job that appears below a floor would be missed: a transaction may take long to commit a job that
was due when it began, and another worker's claim may be rolled back. Therefore

- a floor stays ``SLACK`` behind the time of the claim that set it: what commits within that time
  is found by the next claim;
- from time to time a claim is a *full scan*, which ignores the floors: every
  ``FULL_SCAN_INTERVAL`` seconds, and also when nothing is due above them; but so rarely that full
  scans take no more than a twentieth of the time, however many index entries they visit. A worker
  that is given jobs one by one has those first: its full scan is put off to the next claim, once.
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

FULL_SCAN_INTERVAL = 0.8
"""Seconds after which the next claim is a full scan; less than the polling interval, so that every
poll may be one."""

FULL_SCAN_SHARE = 20
"""The time between two full scans is at least this many times the duration of one."""

LONG_FULL_SCAN = 0.05
"""Seconds after which it is worth finding out why a first full scan took so long."""

MANY = 10_000
"""Due jobs at the head of a queue: if most are of other topics, that explains a long scan."""

BELIEVED = 0.25
"""Seconds that a first full scan counts for at most: the second one then comes after five."""

NEVER = 1e9
"""The age in seconds of an event that has not happened."""


@dataclass(slots=True)
class Floor:
    """The watermark of one priority: how far claims have scanned it."""

    at: Any = EPOCH
    id: Any = LOWEST_ID
    """The last job claimed: its due time and its id, as the engine's driver has them…"""
    claimed: float | None = None
    """…and when it was claimed."""
    walked: float | None = None
    """When a claim last scanned everything that was due."""


class Level(NamedTuple):
    """A priority to claim from, and where its scan begins.

    That is after the job ``at`` and ``id``, but no later than ``claimed`` seconds ago; and no
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
        self.scanned_at: float | None = None
        self.saw_limited = False
        """Whether the last full scan found that the queue has jobs with a limit."""
        self.full_scan_took = 0.0
        self.last_took = 0.0
        self.is_governed = False
        """Whether a control governs the queue, as far as claims have seen."""
        self.found_few = False
        """Whether the last claim has found jobs, but fewer than it asked for. Then those above the
        floors come before a full scan that is due. Not if there may be none, because then that is
        only one statement more; and not if there are many, because then it makes no difference."""

    def walk(self) -> Walk:
        """Begin a claim."""
        return Walk(self, self.clock())

    def forget(self) -> None:
        """Make the next claim a full scan: the last one failed, and how far it got is unknown."""
        self.scanned_at = None
        self.found_few = False


class Walk:
    """One claim's scan of the priorities of a queue."""

    def __init__(self, floors: Floors, began: float) -> None:
        self._floors = floors
        self._began = began
        self.is_full_scan = False
        """Whether this claim ignores the floors."""
        self._full_scan_began = began
        self._levels_took = 0.0
        self.took = 0.0
        """Seconds that the full scan has taken."""
        self.is_surprising = False
        """It was the first one and took long: either many index entries, or a transient stall."""

    @property
    def must_scan_fully(self) -> bool:
        """Whether the last full scan was too long ago."""
        return self._since_full_scan() >= max(
            FULL_SCAN_INTERVAL, FULL_SCAN_SHARE * self._floors.full_scan_took
        )

    @property
    def may_scan_fully(self) -> bool:
        """Whether a full scan is affordable, if nothing is due above the floors."""
        return self._since_full_scan() >= FULL_SCAN_SHARE * self._floors.full_scan_took

    def begin_full_scan(self) -> None:
        """Ignore the floors, and start to time the full scan."""
        self.is_full_scan = True
        self._full_scan_began = self._floors.clock()

    def levels_are_read(self) -> None:
        """Time the first statement of the full scan, which begins where the second one does."""
        self._levels_took = self._floors.clock() - self._full_scan_began

    def reset_floors(self, priorities: Iterable[int]) -> None:
        """Reset the floors of these priorities and of those known before."""
        known = self._floors.by_priority
        self._floors.by_priority = {priority: Floor() for priority in {*known, *priorities}}

    def levels(self) -> list[Level]:
        """Return the known priorities, highest first."""
        floors = self._floors.by_priority
        return [self.level(priority) for priority in sorted(floors, reverse=True)]

    def level(self, priority: int) -> Level:
        """Return a priority with its floor."""
        floor, began = self._floors.by_priority.get(priority) or Floor(), self._began
        claimed, walked = floor.claimed, floor.walked
        return Level(
            priority,
            floor.at,
            floor.id,
            NEVER if claimed is None else max(0.0, began - claimed) + SLACK,
            NEVER if walked is None else max(0.0, began - walked) + SLACK,
        )

    def claimed(
        self, visited: Iterable[int], last: tuple[int, Any, Any] | None, *, full: bool
    ) -> None:
        """Raise the floors of the priorities visited.

        ``last`` is the worst job claimed: priority, due time and id. After a full batch more may be
        due behind it; otherwise the claim has scanned everything that is due.
        """
        if last is not None:
            floor = self._floor(last[0])
            floor.at, floor.id, floor.claimed = last[1], last[2], self._began
        for priority in visited:
            if not (full and last is not None and priority <= last[0]):
                self._floor(priority).walked = self._began
        if self.is_full_scan:
            self.took = self._floors.clock() - self._full_scan_began

    def _floor(self, priority: int) -> Floor:
        floors = self._floors.by_priority
        floor = floors.get(priority)
        if floor is None:
            floor = floors[priority] = Floor()
        return floor

    def claimed_by_age(
        self, visited: Iterable[int], lasts: Iterable[tuple[int, Any, Any]], *, full: bool
    ) -> None:
        """Raise the floors where waiting raises priorities; ``lasts`` has the last of each.

        A full batch may have left better priorities for aged jobs of worse ones: all have more.
        """
        for last in lasts:
            self.claimed((), last, full=True)
        self.claimed(() if full else visited, None, full=full)

    def end_full_scan(self, round_trip: float = 0.0) -> None:
        """Store how long the full scan ``took``, which decides when the next one may be.

        Each of its two statements also made a round trip to the database.
        """
        levels = max(0.0, self._levels_took - round_trip)
        claiming = max(0.0, self.took - self._levels_took - round_trip)
        floors, took = self._floors, levels + claiming
        is_first_and_long = floors.last_took == 0.0 and took > LONG_FULL_SCAN
        floors.scanned_at = self._began
        # The shorter of the last two: a busy event loop or a network stall is no long scan.
        floors.full_scan_took = min(took, floors.last_took)
        floors.last_took = took
        if is_first_and_long and min(levels, claiming) >= took / 4:  # both passed dead entries
            self.was_long()
        else:
            self.is_surprising = is_first_and_long

    def was_long(self) -> None:
        """Count the duration of a surprising full scan: it really was long."""
        self._floors.full_scan_took = min(self._floors.last_took, BELIEVED)

    def _since_full_scan(self) -> float:
        scanned_at = self._floors.scanned_at
        if scanned_at is None or self._began < scanned_at:  # a test may turn its clock back
            return math.inf
        return self._began - scanned_at

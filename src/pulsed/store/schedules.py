"""What a store can do with schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pulsed.model.audit import Operator
from pulsed.model.job import (
    JobRow,
    NewJob,
)
from pulsed.model.schedule import (
    Overlap,
    Plan,
    ScheduleFilter,
    ScheduleKey,
    ScheduleRow,
    ScheduleSpec,
    Version,
)

SCHEDULE_PAGE = 1_000
"""Schedules that are listed at a time."""


EVERY_SCHEDULE = ScheduleFilter()


class Put(NamedTuple):
    """A schedule after it was declared, and what that did: created, changed or unchanged."""

    row: ScheduleRow
    effect: str


class Due(NamedTuple):
    """The schedules that are due, when the next one will be, and the instant that decided it."""

    rows: list[ScheduleRow]
    next_run_at: datetime | None
    now: datetime


class Fire(NamedTuple):
    """What is to happen with a due schedule: its plan, and the jobs of the occurrences in it."""

    row: ScheduleRow
    plan: Plan
    jobs: list[NewJob]
    overlap: Overlap


class ScheduleStore(ABC):
    """Where schedules live."""

    @abstractmethod
    async def put(
        self,
        app: str,
        name: str,
        spec: ScheduleSpec,
        *,
        declared: bool = False,
        seen: Version | None = None,
        by: Operator | None = None,
    ) -> Put:
        """Create a schedule or change it; one that says the same already is left alone.

        With ``seen``, only that version of it is changed: raises ScheduleChanged if somebody has
        changed or deleted it meanwhile.
        """

    @abstractmethod
    async def declare(
        self, app: str, specs: Mapping[str, ScheduleSpec], *, by: Operator | None = None
    ) -> dict[str, str]:
        """Put the schedules that a program declares, in a few transactions.

        Returns what that did to each, by name: created, changed or unchanged.
        """

    @abstractmethod
    async def get(self, app: str, name: str) -> ScheduleRow | None:
        """Read a schedule."""

    @abstractmethod
    async def find(self, schedule_id: UUID) -> ScheduleRow | None:
        """Read a schedule by its id."""

    @abstractmethod
    async def list_page(
        self,
        where: ScheduleFilter = EVERY_SCHEDULE,
        *,
        limit: int = SCHEDULE_PAGE,
        after: ScheduleKey | None = None,
    ) -> list[ScheduleRow]:
        """Read a page of schedules, by app and name; ``after`` is the key before its first."""

    async def each(self, where: ScheduleFilter = EVERY_SCHEDULE) -> AsyncIterator[ScheduleRow]:
        """Go through schedules, by app and name, reading a page at a time."""
        after: ScheduleKey | None = None
        while True:
            rows = await self.list_page(where, limit=SCHEDULE_PAGE, after=after)
            for row in rows:
                yield row
            if len(rows) < SCHEDULE_PAGE:
                return
            after = rows[-1].key

    @abstractmethod
    async def pause(self, app: str, name: str, *, by: Operator | None = None) -> ScheduleRow | None:
        """Stop firing; None if there is no such schedule."""

    @abstractmethod
    async def resume(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        """Go on with the next occurrence to come; also after an error."""

    @abstractmethod
    async def delete(self, app: str, name: str, *, by: Operator | None = None) -> bool:
        """Remove a schedule; its jobs stay. False if there was none."""

    @abstractmethod
    async def prune(self, age: float, *, limit: int, by: Operator | None = None) -> int:
        """Remove schedules that were put by hand and have been done for ``age`` seconds.

        One of whose jobs any is left stays, and so does one that a program declares. Returns how
        many were removed, ``limit`` at the most.
        """

    @abstractmethod
    async def run_now(
        self, app: str, name: str, job: NewJob, *, by: Operator | None = None
    ) -> None:
        """Insert the job of a schedule out of turn, unless its id exists already."""

    @abstractmethod
    async def due(self, limit: int, *, skip: int = 0) -> Due:
        """Read the schedules whose cursor is due, the longest waiting first.

        ``skip`` of those that are due are left to others: the next one to wait for is behind them.
        """

    @abstractmethod
    async def fire(self, fires: Sequence[Fire]) -> list[NewJob]:
        """Move cursors and insert jobs in one transaction, for those nobody else has fired.

        Returns the jobs inserted.
        """

    @abstractmethod
    async def park(self, row: ScheduleRow, reason: str) -> None:
        """Put a schedule that cannot be fired into its error state, unless it changed meanwhile."""

    @abstractmethod
    async def fires(
        self,
        schedule_id: UUID,
        *,
        limit: int = 50,
        before: datetime | None = None,
        before_id: UUID | None = None,
    ) -> list[JobRow]:
        """Read the jobs that a schedule made, the latest ``moment`` first.

        With ``before``, only those of an earlier moment; with ``before_id`` also those of the very
        same one that come behind this job.
        """

"""The store's interface for schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pulsed.model.audit import Operator
from pulsed.model.job import JobRow, NewJob, Status
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
"""Schedules in one page of a listing."""


EVERY_SCHEDULE = ScheduleFilter()


class Put(NamedTuple):
    """A schedule after a put, and the effect: created, changed or unchanged."""

    row: ScheduleRow
    effect: str


class Due(NamedTuple):
    """The schedules that are due, when the next one will be, and the database's time."""

    rows: list[ScheduleRow]
    next_run_at: datetime | None
    now: datetime


class Fire(NamedTuple):
    """A due schedule to fire: its plan, and the jobs of the occurrences in the plan."""

    row: ScheduleRow
    plan: Plan
    jobs: list[NewJob]
    overlap: Overlap


class FireMark(NamedTuple):
    """A job that a schedule made, and how it is."""

    id: UUID
    status: Status
    moment: datetime
    """Its occurrence; of a run out of turn, its submission."""


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
        """Create or change a schedule; an identical one is not written again.

        With ``seen``, only that version is changed: raises ScheduleChanged if another caller has
        changed or deleted it meanwhile.
        """

    @abstractmethod
    async def declare(
        self, app: str, specs: Mapping[str, ScheduleSpec], *, by: Operator | None = None
    ) -> dict[str, str]:
        """Put the schedules that a program declares, in a few transactions.

        Returns the effect on each, by name: created, changed or unchanged.
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
        """Read a page of schedules, by app and name; ``after`` is the previous page's last key."""

    async def each(self, where: ScheduleFilter = EVERY_SCHEDULE) -> AsyncIterator[ScheduleRow]:
        """Iterate over schedules, by app and name, reading a page at a time."""
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
        """Fire again from the next occurrence on; also after an error."""

    @abstractmethod
    async def delete(self, app: str, name: str, *, by: Operator | None = None) -> bool:
        """Remove a schedule; its jobs stay. False if there was none."""

    @abstractmethod
    async def prune(self, age: float, *, limit: int, by: Operator | None = None) -> int:
        """Remove up to ``limit`` undeclared schedules that have been done for ``age`` seconds.

        A schedule stays while any of its jobs exists, or while a program declares it. Returns how
        many were removed.
        """

    @abstractmethod
    async def run_now(
        self, app: str, name: str, job: NewJob, *, by: Operator | None = None
    ) -> None:
        """Insert a job of a schedule outside its plan, unless the job's id already exists."""

    @abstractmethod
    async def due(self, limit: int, *, skip: int = 0) -> Due:
        """Read the schedules whose cursor is due, the longest waiting first.

        The first ``skip`` schedules are left to other processes: ``next_run_at`` ignores them, and
        no rows are read if no other is due.
        """

    @abstractmethod
    async def fire(self, fires: Sequence[Fire]) -> list[NewJob]:
        """Advance cursors and insert jobs in one transaction; returns the jobs inserted.

        Schedules that another process has fired meanwhile are skipped.
        """

    @abstractmethod
    async def set_error(self, row: ScheduleRow, reason: str) -> None:
        """Put a schedule that cannot fire into its error state, unless it changed meanwhile."""

    async def last_fires(self, ids: Sequence[UUID], *, limit: int) -> dict[UUID, list[FireMark]]:
        """Read the last fires of several schedules, the latest first."""
        return {
            each: [
                FireMark(row.id, row.status, row.moment)
                for row in await self.fires(each, limit=limit)
            ]
            for each in ids
        }

    @abstractmethod
    async def fires(
        self,
        schedule_id: UUID,
        *,
        limit: int = 50,
        before: datetime | None = None,
        before_id: UUID | None = None,
    ) -> list[JobRow]:
        """Read the jobs that a schedule created, the latest ``moment`` first.

        With ``before``, only those of an earlier moment; with ``before_id``, also those of the same
        moment that follow this job.
        """

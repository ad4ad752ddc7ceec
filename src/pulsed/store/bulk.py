"""The store's interface for bulk operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from uuid import UUID

from pulsed.model.audit import Operator
from pulsed.model.bulk import BulkAct, BulkRow, Skip
from pulsed.model.job import JobFilter, Status


class BulkStore(ABC):
    """Where bulk operations live: acts on all jobs that match a filter, in batches."""

    @abstractmethod
    async def start(
        self, bulk_id: UUID, act: BulkAct, where: JobFilter, *, by: Operator
    ) -> BulkRow:
        """Store an operation, for any process to perform; a known id is the same one again.

        Jobs that are submitted later are not part of it. ``where`` has a condition, and names only
        statuses that allow the act.
        """

    @abstractmethod
    async def advance(self, performer: UUID, bulk_id: UUID | None = None) -> BulkRow | None:
        """Perform the next batch of an operation, of any or of this one; returns how far it is.

        None: there is nothing to do, or other processes do it. One that performed a batch has the
        operation for a few seconds.
        """

    @abstractmethod
    async def get(self, bulk_id: UUID) -> BulkRow | None:
        """Read an operation."""

    @abstractmethod
    async def list(self, *, limit: int) -> Sequence[BulkRow]:
        """Read the latest operations, newest first."""

    @abstractmethod
    async def skips(self, bulk_id: UUID) -> Sequence[Skip]:
        """Read the jobs that an operation left as they are, up to a bound, newest first."""

    @abstractmethod
    async def stop(self, bulk_id: UUID, *, by: Operator) -> BulkRow | None:
        """End an operation; what it has done stays done. Returns it, if it exists."""

    @abstractmethod
    async def change(
        self, ids: Sequence[UUID], act: BulkAct, *, by: Operator | None = None
    ) -> Mapping[UUID, tuple[bool, Status]]:
        """Reschedule, reprioritise or move jobs that have not started.

        Returns, for each job that exists, whether it was changed, and its status.
        """

"""The store's interface for streams: items that runs emit, and that other processes read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from uuid import UUID

from pulsed.model.job import Lease
from pulsed.model.stream import Emission, StreamItem, StreamPage


class StreamStore(ABC):
    """Where the streams of jobs are."""

    @abstractmethod
    async def emit(self, emissions: Sequence[Emission]) -> set[Lease]:
        """Append items. Returns the leases still held; those of the others were not written.

        An item whose position is taken is the same one again, from an unacknowledged try. Only the
        newest items of a job are kept.
        """

    @abstractmethod
    async def read(self, job_id: UUID, *, after: int = 0, limit: int) -> StreamPage:
        """Read the items after a position, oldest first, and the job's status."""

    @abstractmethod
    async def newest(self, job_id: UUID, *, limit: int) -> Sequence[StreamItem]:
        """Read the newest items of a job, oldest first."""

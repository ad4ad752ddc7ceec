"""What a store can do for workflows: checkpoints, children, signals, and steps that write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple
from uuid import UUID

from pulsed.errors import TransientStorageError
from pulsed.model.job import (
    Lease,
    NewJob,
    Status,
)
from pulsed.model.step import Checkpoint
from pulsed.model.workflow import Ended, History, Record, Signal


class Signalled(NamedTuple):
    """Whether a signal is stored, and the status its job had; None: there is no such job."""

    stored: bool
    status: Status | None


class CommitUnknown(TransientStorageError):
    """A step's COMMIT was sent, and its answer is lost: ask ``was_committed``."""


class Transaction(ABC):
    """A transaction of the jobs' database, in a step's hands."""

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The driver's own connection: asyncpg or sqlite3, psycopg for a plain function."""

    @property
    def limit(self) -> float | None:
        """How many seconds the step may take, because everybody else waits for it; None: any."""
        return None

    @abstractmethod
    async def commit(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint and commit both, if the lease is still held; else LeaseLost.

        Left without this, the transaction is rolled back. CommitUnknown says that it may or may not
        have been committed; any other TransientStorageError, that nothing was written.
        """

    @abstractmethod
    async def was_committed(self, checkpoint: Checkpoint) -> bool:
        """Ask the database about a commit whose answer was lost, when the transaction is left."""

    async def was_lost(self, error: Exception) -> bool:  # noqa: ARG002 - most cannot be lost
        """Whether a step raised this because the database ended the transaction's session."""
        return False

    async def revoke(self) -> None:  # noqa: B027 - most keep nobody waiting
        """Let others write who wait for a step whose time is over; it cannot write any more."""


class WorkflowStore(ABC):
    """Where workflows keep what they have done."""

    @abstractmethod
    async def history(self, job_id: UUID, *, skip: int = 0, limit: int | None = None) -> History:
        """Read the checkpoints of a job in the order of their calls: all of them, or a page."""

    @abstractmethod
    async def record(self, records: Sequence[Record]) -> set[Lease]:
        """Write checkpoints. Returns the leases that were held; the others' were not written.

        What is stored already stays as it is, unless it is OPEN.
        """

    @abstractmethod
    async def add_children(self, lease: Lease, jobs: Sequence[NewJob]) -> None:
        """Insert the children of a running job; those that exist are left alone.

        Raises LeaseLost if the run is no longer the job's.
        """

    @abstractmethod
    async def outcomes(self, ids: Sequence[UUID]) -> dict[UUID, Ended]:
        """Read how far jobs are; those that do not exist are missing from the answer."""

    @abstractmethod
    async def watch(self, lease: Lease, job_id: UUID) -> Ended | None:
        """Read how far another job is, and have its end wake the run that is going to wait for it.

        None: there is no such job. Raises LeaseLost if the run is no longer its job's.
        """

    @abstractmethod
    async def signal(self, signal: Signal) -> Signalled:
        """Store a signal, and wake the job if it waits for it. A job that has ended takes none."""

    @abstractmethod
    async def take_signal(
        self, lease: Lease, name: str, checkpoint: Checkpoint
    ) -> Checkpoint | None:
        """Consume the oldest signal of a name, as the value of a checkpoint, in one transaction.

        If there is none and the checkpoint's ``until`` has passed, the time-out is stored instead.
        Returns what is stored, or None if there is nothing yet. Raises LeaseLost if the run is no
        longer the job's.
        """

    @abstractmethod
    async def cascade(self, *, limit: int = 500) -> int:
        """Cancel the living children of jobs that failed or were cancelled, one level down.

        Cancel and settle do so already, for the first ten thousand; this is for the rest, and for
        what they left when a process died. Returns how many parents it looked after: call it until
        that is 0, which it also is while others hold what is left. Any number of processes may.
        """

    @abstractmethod
    def transaction(self, lease: Lease, *, plain: bool) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for a step's own writes; ``plain`` for a function that blocks.

        Raises StorageError where that is impossible: behind a server, in memory.
        """

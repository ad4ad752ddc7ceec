"""The store's interface for workflows: checkpoints, children, signals, step transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple
from uuid import UUID

from pulsed.errors import TransientStorageError
from pulsed.model.job import Lease, NewJob, Status
from pulsed.model.step import Checkpoint
from pulsed.model.workflow import History, JobOutcome, Record, Signal


class Signalled(NamedTuple):
    """Whether a signal was stored, and the status of its job; None: there is no such job."""

    stored: bool
    status: Status | None


class CommitUnknown(TransientStorageError):
    """A step's COMMIT was sent, but its answer is lost: ask ``was_committed``."""


class Transaction(ABC):
    """A transaction in the jobs' database, for a step's own writes."""

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The driver's own connection: asyncpg or sqlite3, psycopg for a plain function."""

    @property
    def limit(self) -> float | None:
        """How many seconds the step may take, because all other writers wait; None: no limit."""
        return None

    @abstractmethod
    async def commit(self, checkpoint: Checkpoint) -> None:
        """Commit the step's writes and the checkpoint; raises LeaseLost if the lease is lost.

        Without this call, the transaction is rolled back. CommitUnknown means that it may or may
        not have been committed; any other TransientStorageError, that nothing was written.
        """

    @abstractmethod
    async def was_committed(self, checkpoint: Checkpoint) -> bool:
        """Whether a commit whose answer was lost took effect; call it after the transaction."""

    async def was_lost(self, error: Exception) -> bool:  # noqa: ARG002 - most cannot be lost
        """Whether a step raised this error because the database ended its session."""
        return False

    async def revoke(self) -> None:  # noqa: B027 - most block no other writer
        """Release the locks of a step that exceeded its limit; it cannot write any more."""


class WorkflowStore(ABC):
    """Where workflows keep their checkpoints, children and signals."""

    @abstractmethod
    async def history(self, job_id: UUID, *, skip: int = 0, limit: int | None = None) -> History:
        """Read the checkpoints of a job in call order: all of them, or a page."""

    @abstractmethod
    async def record(self, records: Sequence[Record]) -> set[Lease]:
        """Write checkpoints. Returns the leases still held; those of the others were not written.

        A stored checkpoint is not overwritten, unless it is OPEN.
        """

    @abstractmethod
    async def add_children(self, lease: Lease, jobs: Sequence[NewJob]) -> None:
        """Insert the children of a running job, skipping ids that already exist.

        Raises LeaseLost if the run no longer holds the job's lease.
        """

    @abstractmethod
    async def outcomes(self, ids: Sequence[UUID]) -> dict[UUID, JobOutcome]:
        """Read the status and outcome of jobs; ids that do not exist are missing."""

    @abstractmethod
    async def watch(self, lease: Lease, job_id: UUID) -> JobOutcome | None:
        """Read another job's outcome, and have its end wake the run that is about to wait for it.

        None: there is no such job. Raises LeaseLost if the run no longer holds its lease.
        """

    @abstractmethod
    async def signal(self, signal: Signal) -> Signalled:
        """Store a signal, and wake the job if it waits for it. A job that has ended refuses it."""

    @abstractmethod
    async def take_signal(
        self, lease: Lease, name: str, checkpoint: Checkpoint
    ) -> Checkpoint | None:
        """Consume the oldest signal of a name, as the value of a checkpoint, in one transaction.

        If there is none and the checkpoint's ``until`` has passed, the time-out is stored instead.
        Returns the stored checkpoint, or None if there is nothing yet. Raises LeaseLost if the run
        no longer holds the job's lease.
        """

    @abstractmethod
    async def cascade(self, *, limit: int = 500) -> int:
        """Cancel the unfinished children of jobs that failed or were cancelled, one level down.

        Cancel and settle already do this for the first ten thousand; this is for the rest, and for
        those left when a process died. Returns how many parents it processed: call it until that
        is 0, which it also is while other sessions lock the rest. Concurrent calls are safe.
        """

    @abstractmethod
    def transaction(self, lease: Lease, *, plain: bool) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for a step's own writes; ``plain`` for a function that blocks.

        Raises StorageError where that is impossible: behind a server, in memory.
        """

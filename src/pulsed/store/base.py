"""What a store can do, whatever it is made of.

A verb is a whole transition of the state machine in one transaction, takes lists first, and is
idempotent under its lease or its client-made id: after a lost connection the same call may be made
again. All verbs are coroutines; ``store.blocking`` runs them in threads without a loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pulsed.model.audit import AuditEntry, Operator
from pulsed.model.job import (
    Assignment,
    Failure,
    JobFilter,
    JobPlace,
    JobRow,
    Lease,
    NewJob,
    Status,
    TopicPolicy,
    WorkerInfo,
)
from pulsed.model.outcome import Beat, Report
from pulsed.model.page import Counts, Page
from pulsed.store.schedules import ScheduleStore
from pulsed.store.workflows import WorkflowStore

SCHEDULES = ",schedules"
"""What to listen for besides queues: a schedule was added or changed. No queue has a comma."""


CANCELS = ",cancels"
"""Likewise: running jobs were asked to stop."""


class Reaped(NamedTuple):
    """A job whose worker went silent, and where it went."""

    job_id: UUID
    topic: str
    status: Status
    worker_id: UUID


class WatchdogTick(NamedTuple):
    """What one look of the watchdog did."""

    reaped: list[Reaped]
    in_grace: bool
    """Some expired leases were left alone, because their workers may have been cut off."""


class Pruned(NamedTuple):
    """What one prune removed, and how far it came."""

    removed: dict[Status, int]
    reached: dict[Status, datetime]
    """When the last of them had ended; where the next batch may begin."""

    @property
    def total(self) -> int:
        """How many jobs were removed."""
        return sum(self.removed.values())


class Partly(NamedTuple):
    """What came of reports of which some could not be decided."""

    accepted: set[Lease]
    locked: set[Lease]
    """Another session has locked their rows, or rows that have to change with them."""


class Audit(NamedTuple):
    """How many jobs break what must always hold, and when a watchdog last looked."""

    running: int
    leaseless: int
    """RUNNING without a lease, or with one and not RUNNING."""
    overspent: int
    """With more attempts than allowed."""
    overdue: int
    """RUNNING under a lease that expired so long ago that a watchdog should have seen it."""
    last_tick: datetime | None
    in_grace: bool
    reasonless: int = 0
    """WAITING without saying for what."""
    overslept: int = 0
    """WAITING for what is there already: nobody woke them."""
    untold: int = 0
    """Ended without success, and somebody should have told their children by now."""


class Backlog(NamedTuple):
    """The due jobs of one topic in one queue."""

    queue: str
    topic: str
    due: int
    oldest: datetime
    at_least: bool = False
    """There may be more: only so many jobs were read."""


class Submitter(ABC):
    """Where new jobs go."""

    @abstractmethod
    async def submit(self, jobs: Sequence[NewJob]) -> int:
        """Insert jobs; ids that exist already are left alone. Returns how many were new."""


class Store(Submitter):
    """Where jobs live."""

    schedules: ScheduleStore
    workflows: WorkflowStore

    doubtful_claims: int = 0
    """How many tries of a claim ended without an answer: each may have leased jobs."""

    is_remote: bool = False
    """Whether others may go on while we cannot reach it: a network lies between, not a database
    that is away for everybody."""

    # -- producers ------------------------------------------------------------------------------

    @abstractmethod
    def joined(self, connection: Any) -> Submitter:
        """Return what submits inside the caller's own transaction, without retries."""

    # -- workers --------------------------------------------------------------------------------

    @abstractmethod
    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> list[Assignment]:
        """Lease up to ``limit`` due jobs of a queue, best first, counting an attempt for each."""

    async def await_jobs(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        topics: Sequence[TopicPolicy],
        limit: int,
        *,
        seconds: float,
    ) -> list[Assignment]:
        """Lease the next jobs that arrive in queues which were just found empty.

        That saves a round trip to a store that is far away. Others return at once, with nothing.
        """
        del worker_id, queues, topics, limit, seconds
        return []

    def withdraw(self, worker_id: UUID) -> None:
        """Let ``await_jobs`` return: this worker claims nothing more."""

    @abstractmethod
    async def beat(
        self, leases: Sequence[Lease], *, within: float | None = None
    ) -> dict[Lease, Beat]:
        """Extend leases; answers for each of them. ``within`` bounds the storage retries."""

    @abstractmethod
    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> set[Lease]:
        """End runs. Returns the leases whose report was accepted; the others were lost.

        ``within`` bounds the time spent on storage retries.
        """

    async def settle_free(self, reports: Sequence[Report]) -> Partly:
        """End runs like ``settle``, but leave out those whose rows somebody else has locked.

        For when ``settle`` was StorageBusy. It waits for no row; a store without such locks has
        nothing to leave out.
        """
        return Partly(await self.settle(reports), set())

    @abstractmethod
    async def held(self, worker_id: UUID, *, asked_to_stop: bool = False) -> list[Lease]:
        """List the leases that a worker holds, or only those of jobs that were asked to stop."""

    @abstractmethod
    async def set_progress(self, lease: Lease, progress: str) -> bool:
        """Store a run's progress (JSON text); False if the lease is lost."""

    @abstractmethod
    async def announce(self, worker: WorkerInfo) -> None:
        """Write or refresh a worker's presence row."""

    @abstractmethod
    async def retire(self, worker_id: UUID) -> None:
        """Remove a worker's presence row."""

    # -- upkeep ---------------------------------------------------------------------------------

    @abstractmethod
    async def watchdog(self, *, limit: int = 500) -> WatchdogTick:
        """Put jobs whose lease expired on the retry path, ``limit`` at the most.

        A lease that expired while nobody is known to have reached the database is left alone for
        a while, so that a worker which lived through the same outage can beat first.
        """

    @abstractmethod
    async def take_turn(self, *, length: float) -> bool:
        """Take the turn at pruning for ``length`` seconds; False if somebody has it."""

    @abstractmethod
    async def prune(
        self,
        ages: Mapping[Status, float],
        *,
        limit: int,
        since: Mapping[Status, datetime] | None = None,
        by: Operator | None = None,
    ) -> Pruned:
        """Remove jobs that ended more than so many seconds ago, ``limit`` at the most.

        Their failures go with them; of a status, those that ended first go first. With ``since``,
        what ended before that is not looked for again; without it, the audit log is trimmed, too.
        Any number of processes may prune at once; the turn is there so that they do not.
        """

    # -- operators ------------------------------------------------------------------------------

    @abstractmethod
    async def prunable(self, ages: Mapping[Status, float]) -> Counts:
        """Count what a prune without a limit would remove."""

    @abstractmethod
    async def get(self, ids: Sequence[UUID]) -> dict[UUID, JobRow]:
        """Read jobs by id; those that do not exist are missing from the answer."""

    async def places(self, ids: Sequence[UUID], *, urgent: bool = False) -> dict[UUID, JobPlace]:
        """Read where jobs belong, without their payloads; those that do not exist are missing.

        ``urgent`` is for a read that a heartbeat waits for.
        """
        del urgent
        rows = await self.get(ids)
        return {key: JobPlace(row.topic, row.queue, row.parent_id) for key, row in rows.items()}

    @abstractmethod
    async def list_jobs(
        self, where: JobFilter, *, limit: int = 100, before: UUID | None = None
    ) -> Page[JobRow]:
        """Read jobs, newest id first. ``before`` is what the page before calls ``next``.

        A page may have fewer jobs than ``limit`` though there are more: where no index helps, a
        search ends after so many jobs, and the page is cut.
        """

    @abstractmethod
    async def counts(self, where: JobFilter) -> Counts:
        """Count jobs by status, up to a bound; every status is a key."""

    @abstractmethod
    async def failures(
        self, job_id: UUID, *, after: int = 0, limit: int | None = None
    ) -> list[Failure]:
        """Read the failed attempts of a job, oldest first.

        ``after`` is the lease token of the last one of the page before.
        """

    @abstractmethod
    async def cancel(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, Status]:
        """Cancel waiting jobs and ask running ones to stop. Returns each job's status now.

        A RUNNING answer means the request was recorded; a terminal one other than CANCELLED
        means that it came too late. Jobs that do not exist are missing from the answer.

        ``by``, here and in other verbs, is the operator whose act this is: it is recorded in the
        audit log, in the same transaction. What workers do by themselves has none.
        """

    @abstractmethod
    async def replay(
        self, ids: Sequence[UUID], *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        """Send dead-lettered and cancelled jobs back to PENDING with fresh attempts.

        A workflow goes on from its checkpoints: what failed in it is tried again, and so are the
        children of a fan-out that did not succeed. ``fresh`` starts it from the beginning, with
        children of its own. Returns, for each job that exists, whether it was replayed, and its
        status now.
        """

    @abstractmethod
    async def delete(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        """Remove jobs that are not RUNNING, with their failures.

        Returns, for each job that existed, whether it was removed, and the status it had.
        """

    @abstractmethod
    async def audit_log(
        self,
        *,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> list[AuditEntry]:
        """Read what operators did, the newest first; ``actor`` also finds a claimed name."""

    @abstractmethod
    async def workers(self) -> list[WorkerInfo]:
        """Read the presence rows."""

    async def worker(self, worker_id: UUID) -> WorkerInfo | None:
        """Read the presence row of one worker."""
        found = [each for each in await self.workers() if each.id == worker_id]
        return found[0] if found else None

    @abstractmethod
    async def audit(self, *, slack: float) -> Audit:
        """Count the jobs that break an invariant.

        Looks at the running jobs, the newest and those that wait without a deadline, up to a number
        of each. A lease is overdue when its own length and ``slack`` seconds have passed since its
        end.
        """

    @abstractmethod
    async def backlog(self) -> list[Backlog]:
        """Count the jobs that are due, by queue and topic, the longest waiting first.

        Reads the heads of the queues, so of a long one the numbers are lower bounds.
        """

    async def due_queues(self, *, besides: Sequence[str]) -> dict[str, datetime]:
        """Find the queues that have due jobs, but for some, and since when the oldest is due.

        Reads a few index entries for each queue. Behind a server the answer is empty: the server
        checks by itself.
        """
        del besides
        return {}

    @abstractmethod
    async def now(self) -> datetime:
        """Read the only clock that decides."""

    # -- life -----------------------------------------------------------------------------------

    @abstractmethod
    def listen(
        self, queues: Sequence[str], wake: Callable[[], None]
    ) -> AbstractAsyncContextManager[Listener]:
        """Call ``wake`` in this loop when jobs may have arrived; a hint, polling is the truth."""

    @abstractmethod
    async def check(self) -> Mapping[str, str]:
        """Say what a doctor wants to know about the database: version, settings, schema."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give back what belongs to the running loop, and the blocking connections."""


class Listener(ABC):
    """The state of a wake-up subscription."""

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """Whether hints arrive just now; without them, jobs start at the next poll."""

    def hear(self, queues: Iterable[str]) -> None:  # noqa: B027 - most wake for all queues
        """Wake for more queues from now on, without a moment in which nothing is heard."""

    def forget(self, queues: Iterable[str]) -> None:  # noqa: B027 - as above
        """Wake for these queues no more: nobody waits for their jobs."""

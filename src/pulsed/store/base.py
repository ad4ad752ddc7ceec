"""What a store can do, whatever it is made of.

A verb is a whole transition of the state machine in one transaction, takes lists first, and is
idempotent under its lease or its client-made id: after a lost connection the same call may be made
again. All verbs are coroutines; ``store.blocking`` runs them in threads without a loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pulsed.errors import TransientStorageError
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
from pulsed.model.schedule import (
    Overlap,
    Plan,
    ScheduleFilter,
    ScheduleKey,
    ScheduleRow,
    ScheduleSpec,
    Version,
)
from pulsed.model.step import Checkpoint
from pulsed.model.workflow import Ended, History, Record, Signal

SCHEDULES = ",schedules"
"""What to listen for besides queues: a schedule was added or changed. No queue has a comma."""

SCHEDULE_PAGE = 1_000
"""Schedules that are listed at a time."""

EVERY_SCHEDULE = ScheduleFilter()

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


class Put(NamedTuple):
    """A schedule after it was declared, and what that did: created, changed or unchanged."""

    row: ScheduleRow
    effect: str


class Signalled(NamedTuple):
    """Whether a signal is stored, and the status its job had; None: there is no such job."""

    stored: bool
    status: Status | None


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


class Store(ABC):
    """Where jobs live."""

    doubtful_claims: int = 0
    """How many tries of a claim ended without an answer: each may have leased jobs."""

    is_remote: bool = False
    """Whether others may go on while we cannot reach it: a network lies between, not a database
    that is away for everybody."""

    # -- producers ------------------------------------------------------------------------------

    @abstractmethod
    async def submit(self, jobs: Sequence[NewJob]) -> int:
        """Insert jobs; ids that exist already are left alone. Returns how many were new."""

    @abstractmethod
    def joined(self, connection: Any) -> Store:
        """Return this store inside the caller's own transaction: submits only, no retry."""

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

    def withdraw(self, worker_id: UUID) -> None:  # noqa: B027 - nothing to do where nobody awaits
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

    # -- workflows ------------------------------------------------------------------------------

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
    def transaction(self, lease: Lease, *, plain: bool) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for a step's own writes; ``plain`` for a function that blocks.

        Raises StorageError where that is impossible: behind a server, in memory.
        """

    @abstractmethod
    async def cascade(self, *, limit: int = 500) -> int:
        """Cancel the living children of jobs that failed or were cancelled, one level down.

        Cancel and settle do so already, for the first ten thousand; this is for the rest, and for
        what they left when a process died. Returns how many parents it looked after: call it until
        that is 0, which it also is while others hold what is left. Any number of processes may.
        """

    # -- schedules ------------------------------------------------------------------------------

    @abstractmethod
    async def put_schedule(
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
    async def declare_schedules(
        self, app: str, specs: Mapping[str, ScheduleSpec], *, by: Operator | None = None
    ) -> dict[str, str]:
        """Put the schedules that a program declares, in a few transactions.

        Returns what that did to each, by name: created, changed or unchanged.
        """

    @abstractmethod
    async def get_schedule(self, app: str, name: str) -> ScheduleRow | None:
        """Read a schedule."""

    @abstractmethod
    async def find_schedule(self, schedule_id: UUID) -> ScheduleRow | None:
        """Read a schedule by its id."""

    @abstractmethod
    async def list_schedules(
        self,
        where: ScheduleFilter = EVERY_SCHEDULE,
        *,
        limit: int = SCHEDULE_PAGE,
        after: ScheduleKey | None = None,
    ) -> list[ScheduleRow]:
        """Read a page of schedules, by app and name; ``after`` is the key before its first."""

    async def each_schedule(
        self, where: ScheduleFilter = EVERY_SCHEDULE
    ) -> AsyncIterator[ScheduleRow]:
        """Go through schedules, by app and name, reading a page at a time."""
        after: ScheduleKey | None = None
        while True:
            rows = await self.list_schedules(where, limit=SCHEDULE_PAGE, after=after)
            for row in rows:
                yield row
            if len(rows) < SCHEDULE_PAGE:
                return
            after = rows[-1].key

    @abstractmethod
    async def pause_schedule(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        """Stop firing; None if there is no such schedule."""

    @abstractmethod
    async def resume_schedule(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        """Go on with the next occurrence to come; also after an error."""

    @abstractmethod
    async def delete_schedule(self, app: str, name: str, *, by: Operator | None = None) -> bool:
        """Remove a schedule; its jobs stay. False if there was none."""

    @abstractmethod
    async def prune_schedules(self, age: float, *, limit: int, by: Operator | None = None) -> int:
        """Remove schedules that were put by hand and have been done for ``age`` seconds.

        One of whose jobs any is left stays, and so does one that a program declares. Returns how
        many were removed, ``limit`` at the most.
        """

    @abstractmethod
    async def run_schedule(
        self, app: str, name: str, job: NewJob, *, by: Operator | None = None
    ) -> None:
        """Insert the job of a schedule out of turn, unless its id exists already."""

    @abstractmethod
    async def due_schedules(self, limit: int, *, skip: int = 0) -> Due:
        """Read the schedules whose cursor is due, the longest waiting first.

        ``skip`` of those that are due are left to others: the next one to wait for is behind them.
        """

    @abstractmethod
    async def fire(self, fires: Sequence[Fire]) -> list[NewJob]:
        """Move cursors and insert jobs in one transaction, for those nobody else has fired.

        Returns the jobs inserted.
        """

    @abstractmethod
    async def park_schedule(self, row: ScheduleRow, reason: str) -> None:
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

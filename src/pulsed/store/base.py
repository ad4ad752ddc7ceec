"""The store's interface, whatever database is behind it.

A verb is a whole transition of the state machine in one transaction. It takes a batch where it can,
and is idempotent under its lease or its client-made id: after a lost connection, the caller may
repeat the call. All verbs are coroutines; ``store.blocking`` runs them in threads without a loop.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any
from uuid import UUID

from pulsed.model.audit import AuditEntry, AuditKey, Operator
from pulsed.model.events import ListenerChanged
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
    WorkerRequest,
)
from pulsed.model.job_batch import GatheredJobs
from pulsed.model.outcome import Beat, Report, Successes
from pulsed.model.page import Counts, GroupedCounts, Page
from pulsed.store.blocking import calling_loop
from pulsed.store.bulk import BulkStore
from pulsed.store.controls import ControlStore
from pulsed.store.event_bus import Events
from pulsed.store.listener import Listener, Wake
from pulsed.store.per_loop import PerLoop
from pulsed.store.results import (
    Accepted,
    Assignments,
    Audit,
    Backlog,
    Expired,
    Partly,
    Pruned,
    Running,
    Submitted,
    WatchdogTick,
)
from pulsed.store.rollups import RollupStore
from pulsed.store.schedules import ScheduleStore
from pulsed.store.streams import StreamStore
from pulsed.store.submit_group import SubmitGroup, may_be_contended
from pulsed.store.submitter import Submitter
from pulsed.store.workflows import WorkflowStore


class Store(Submitter):
    """Where jobs live."""

    schedules: ScheduleStore
    workflows: WorkflowStore
    rollups: RollupStore
    controls: ControlStore
    bulk: BulkStore
    streams: StreamStore

    events: Events
    """The bus for what happens in this store, and in whatever works with it. A store makes its
    own; an app replaces it before the first use."""

    doubtful_claims: int = 0
    """How many claim attempts ended without an answer: each may have leased jobs."""

    is_remote: bool = False
    """Whether the store is behind a server. If this process cannot reach it, others still may;
    a database that is down is down for every process."""

    def publish_listening(self, *, connected: bool) -> None:
        """Publish that notifications arrive again, or no longer."""
        if ListenerChanged in self.events.wanted:
            self.events.publish([ListenerChanged(connected=connected)])

    # -- producers ------------------------------------------------------------------------------

    @functools.cached_property
    def _groups(self) -> PerLoop[SubmitGroup]:
        return PerLoop()

    @functools.cached_property
    def _contended_groups(self) -> PerLoop[SubmitGroup]:
        return PerLoop()

    def submit_together(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, Submitted]:
        """Insert one job, in one transaction with those of concurrent calls in this event loop."""
        loop = calling_loop()
        if loop is None:
            return self.submit(jobs)
        if may_be_contended(jobs):
            return self._contended_groups.of(loop, self._new_contended_group).submit(jobs)
        return self._groups.of(loop, self._new_group).submit(jobs)

    def _new_group(self) -> SubmitGroup:
        return SubmitGroup(self.submit)

    def _new_contended_group(self) -> SubmitGroup:
        return SubmitGroup(self.submit, self._submit_unless_locked)

    def _submit_unless_locked(self, jobs: GatheredJobs) -> Coroutine[Any, Any, Submitted]:
        """Insert jobs; raises StorageBusy if that would wait long for transactions of others."""
        return self.submit(jobs)

    @abstractmethod
    def joined(self, connection: Any) -> Submitter:
        """Return a submitter inside the caller's own transaction, without retries.

        It takes a connection of a driver; ``store/connections`` finds that of other libraries.
        """

    def hint_soon(self, jobs: Sequence[NewJob]) -> None:
        """Notify the listeners of jobs that a caller has committed, without waiting for it."""

    # -- workers --------------------------------------------------------------------------------

    @abstractmethod
    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Assignments:
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
        """Lease the next jobs that arrive in queues which the last claim found empty.

        This long poll saves a round trip to a remote store. Other stores return an empty list at
        once.
        """
        del worker_id, queues, topics, limit, seconds
        return []

    def withdraw(self, worker_id: UUID) -> None:
        """Make ``await_jobs`` return: this worker claims nothing more."""

    @abstractmethod
    async def beat(
        self, leases: Sequence[Lease], *, within: float | None = None
    ) -> dict[Lease, Beat]:
        """Extend leases; returns an answer for each. ``within`` bounds the storage retries."""

    @abstractmethod
    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> Accepted:
        """End runs. Returns the leases whose report was accepted; the others were lost.

        ``within`` bounds the time spent on storage retries.
        """

    async def settle_successes(self, runs: Successes) -> bool:
        """End successful runs of jobs that no other job waits for; returns whether all were ended.

        If not, some may have been: ``settle`` with a report of each says which. A store that has
        nothing faster than that leaves everything to it.
        """
        del runs
        return False

    async def settle_free(self, reports: Sequence[Report]) -> Partly:
        """End runs like ``settle``, but skip those whose rows another session has locked.

        For use after ``settle`` raised StorageBusy. It waits for no row lock; a store without row
        locks skips nothing.
        """
        return Partly(await self.settle(reports), set())

    @abstractmethod
    async def held(self, worker_id: UUID, *, asked_to_stop: bool = False) -> list[Lease]:
        """List a worker's leases, or only those of jobs whose cancellation was requested."""

    @abstractmethod
    async def set_progress(self, lease: Lease, progress: str) -> bool:
        """Store a run's progress (JSON text); False if the lease is lost."""

    @abstractmethod
    async def announce(self, worker: WorkerInfo) -> WorkerRequest | None:
        """Write or refresh a worker's presence row; returns what was asked of the worker."""

    @abstractmethod
    async def retire(self, worker_id: UUID) -> None:
        """Remove a worker's presence row."""

    # -- upkeep ---------------------------------------------------------------------------------

    @abstractmethod
    async def watchdog(self, *, limit: int = 500) -> WatchdogTick:
        """Put up to ``limit`` jobs whose lease expired on the retry path.

        A lease that expired while no process is known to have reached the database gets a grace
        period, so that a worker which survived the same outage can send a heartbeat first.
        """

    @abstractmethod
    async def expire(self, *, limit: int = 500) -> list[Expired]:
        """End up to ``limit`` jobs that have expired and were never started.

        No claim starts them any more, whether or not this has been called.
        """

    @abstractmethod
    async def take_turn(self, *, length: float) -> bool:
        """Take the pruning turn for ``length`` seconds; False if another process has it."""

    @abstractmethod
    async def prune(
        self,
        ages: Mapping[Status, float],
        *,
        limit: int,
        since: Mapping[Status, datetime] | None = None,
        by: Operator | None = None,
    ) -> Pruned:
        """Remove up to ``limit`` jobs that ended more than their status's age in seconds ago.

        Their failures go with them; within a status, the first that ended go first. ``since``
        holds the watermarks: jobs that ended before them are not scanned again. Without it, the
        audit log is trimmed, too. Concurrent prunes are safe; the turn only avoids the waste.
        """

    # -- operators ------------------------------------------------------------------------------

    @abstractmethod
    async def prunable(self, ages: Mapping[Status, float]) -> Counts:
        """Count what a prune without a limit would remove."""

    @abstractmethod
    async def get(self, ids: Sequence[UUID]) -> dict[UUID, JobRow]:
        """Read jobs by id; ids that do not exist are missing from the result."""

    async def places(self, ids: Sequence[UUID], *, urgent: bool = False) -> dict[UUID, JobPlace]:
        """Read the topic, queue and parent of jobs; ids that do not exist are missing.

        ``urgent`` is for a read that a heartbeat waits for.
        """
        del urgent
        rows = await self.get(ids)
        return {key: JobPlace(row.topic, row.queue, row.parent_id) for key, row in rows.items()}

    @abstractmethod
    async def list_jobs(
        self, where: JobFilter, *, limit: int = 100, before: UUID | None = None
    ) -> Page[JobRow]:
        """Read jobs, newest id first. ``before`` is the previous page's ``next``.

        A page may have fewer jobs than ``limit`` although there are more: where no index helps,
        the scan stops after a number of rows, and the page is cut.
        """

    @abstractmethod
    async def counts(self, where: JobFilter) -> Counts:
        """Count jobs by status, up to a bound; every status is a key."""

    @abstractmethod
    async def counts_by(self, where: JobFilter, by: Sequence[str]) -> GroupedCounts:
        """Count jobs by some of ``GROUPED_BY``, up to a bound, the largest groups first."""

    @abstractmethod
    async def failures(
        self, job_id: UUID, *, after: int = 0, before: int | None = None, limit: int | None = None
    ) -> list[Failure]:
        """Read the failed attempts of a job, oldest first; with ``before``, newest first.

        ``after`` or ``before`` is the lease token of the previous page's last failure. Every token
        of a job is below its next one, so ``lease_token + 1`` begins with the newest.
        """

    @abstractmethod
    async def cancel(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, Status]:
        """Cancel waiting jobs and request that running ones stop. Returns each job's status now.

        RUNNING means that the request was recorded; a terminal status other than CANCELLED, that
        it came too late. Jobs that do not exist are missing from the result.

        ``by``, here and in other verbs, is the operator who acts: the act is recorded in the
        audit log, in the same transaction. It is None for what workers do by themselves.
        """

    @abstractmethod
    async def replay(
        self, ids: Sequence[UUID], *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        """Send dead-lettered and cancelled jobs back to PENDING with fresh attempts.

        A workflow resumes from its checkpoints: its failed steps are retried, and so are the
        children of a fan-out that did not succeed. ``fresh`` starts it from the beginning, with
        new children. Returns, for each job that exists, whether it was replayed, and its status
        now.
        """

    @abstractmethod
    async def edit_and_replay(
        self, job_id: UUID, payload: str, *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        """Replace the payload (JSON text) of a dead-lettered or cancelled job, and replay it.

        Both happen or neither does. Answers like ``replay``.
        """

    @abstractmethod
    async def delete(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        """Remove jobs that are not RUNNING, with their failures.

        Returns, for each job that existed, whether it was removed, and the status it had.
        """

    @abstractmethod
    async def expedite(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        """Make jobs due now that wait for their time: delayed ones, retries, sleeping workflows.

        A job that waits for a signal, for another job or for its children goes on waiting.
        Returns, for each job that exists, whether it is due now, and its status.
        """

    @abstractmethod
    async def audit_log(
        self,
        *,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
        before: AuditKey | None = None,
        actor: str | None = None,
    ) -> list[AuditEntry]:
        """Read what operators did, newest first; ``actor`` also matches a claimed name.

        ``before`` is the key of the previous page's last entry.
        """

    @abstractmethod
    async def workers(self) -> list[WorkerInfo]:
        """Read the presence rows."""

    async def worker(self, worker_id: UUID) -> WorkerInfo | None:
        """Read the presence row of one worker."""
        found = [each for each in await self.workers() if each.id == worker_id]
        return found[0] if found else None

    @abstractmethod
    async def ask_workers(
        self, ids: Sequence[UUID], request: WorkerRequest, *, by: Operator | None = None
    ) -> list[WorkerInfo]:
        """Ask workers to drain or to stop; returns those that there are."""

    @abstractmethod
    async def audit(self, *, slack: float) -> Audit:
        """Count the jobs that break an invariant.

        Scans the running jobs, the newest jobs and those that wait without a deadline, up to a
        limit for each. A lease is overdue when its own length plus ``slack`` seconds have passed
        since it expired.
        """

    @abstractmethod
    async def backlog(self) -> list[Backlog]:
        """Count the jobs that are due, by queue and topic, the longest waiting first.

        Reads only the heads of the queues, so for a long queue the counts are lower bounds.
        """

    @abstractmethod
    async def running(self) -> list[Running]:
        """Count the jobs that are running, by queue and topic, the busiest first.

        Reads the jobs with a lease, of which there are at most as many as workers have slots.
        """

    async def due_queues(self, *, besides: Sequence[str]) -> dict[str, datetime]:
        """Return the queues that have due jobs, without ``besides``, and when the oldest was due.

        Reads a few index entries for each queue. Behind a server the result is empty: the server
        runs this check itself.
        """
        del besides
        return {}

    @abstractmethod
    async def now(self) -> datetime:
        """Return the database's time: the only clock that decides what is due or expired."""

    async def check_ready(self) -> None:
        """Raise unless the database answers, with a schema that this code can work with."""
        await self.now()

    # -- life -----------------------------------------------------------------------------------

    @abstractmethod
    def listen(self, queues: Sequence[str], wake: Wake) -> AbstractAsyncContextManager[Listener]:
        """Call ``wake`` in this loop when jobs may have arrived, with their queues if known.

        ``queues`` and what ``wake`` is called with may contain ``SCHEDULES`` and ``CANCELS``, too.
        A notification may be lost or spurious (a "hint"): polling finds every job without it.
        """

    @abstractmethod
    async def check(self) -> Mapping[str, str]:
        """Return the facts that ``doctor`` checks: the database's version, settings, schema."""

    def thread_ends(self) -> None:
        """Close what the calling thread, one of pulsed's own, has opened: it is about to end."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the running loop's connections and the blocking ones."""

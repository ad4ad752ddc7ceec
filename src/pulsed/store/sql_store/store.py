"""The verbs over any SQL engine: dispatch, storage retries, the schema check on first use."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from pulsed.errors import TransientStorageError
from pulsed.model.audit import AuditEntry, AuditKey, Operator, of_ages
from pulsed.model.job import (
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
from pulsed.model.job_batch import GatheredJobs, JobBatch
from pulsed.model.outcome import Beat, Report, Successes
from pulsed.model.page import Counts, GroupedCounts, Page
from pulsed.store import migrations
from pulsed.store.base import Store
from pulsed.store.event_bus import Events
from pulsed.store.listener import CANCELS
from pulsed.store.results import (
    Accepted,
    Assignments,
    Audit,
    Backlog,
    Expired,
    Pruned,
    Running,
    Submitted,
    WatchdogTick,
)
from pulsed.store.retry_options import RetryOptions
from pulsed.store.retrying import Retries, retry_of
from pulsed.store.sql.jobs import SOON
from pulsed.store.sql_store import acts
from pulsed.store.sql_store.bulk import SqlBulk
from pulsed.store.sql_store.claims import SqlClaims
from pulsed.store.sql_store.controls import SqlControls
from pulsed.store.sql_store.governed import GovernedRuns
from pulsed.store.sql_store.limited import LimitedRuns
from pulsed.store.sql_store.rollups import SqlRollups
from pulsed.store.sql_store.schedules import SqlSchedules
from pulsed.store.sql_store.streams import SqlStreams
from pulsed.store.sql_store.workflows import SqlWorkflows
from pulsed.store.verbs import (
    audit,
    expiry,
    heartbeat,
    operators,
    reads,
    retention,
    search,
    settle,
    submit,
    watchdog,
    workers,
    workflows,
)
from pulsed.store.verbs.audit import ActResult
from pulsed.store.verbs.effects import Effects, Settled
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Verb, adrive
from pulsed.store.verbs.workflows import Cascaded
from pulsed.store.workflows import Transaction

T = TypeVar("T")

LOCK_WAIT = 0.1
"""Seconds for which jobs of several callers wait for the transaction of another session."""

MOST_ROUNDS = 20
"""Cascade batches that run right after a cancel or settle; upkeep does the rest."""

CASCADE = 500
"""Children in one cascade batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(RetryOptions):
    """The options of both engines."""

    migrate: bool = True
    """Create or update the tables on first use; otherwise a missing one is an error."""


class SqlStore(Store):
    """A store made of verbs; an engine only adds how to run one."""

    def __init__(
        self,
        engine: Engine,
        options: StoreOptions,
        *,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.engine = engine
        self.dialect = engine.dialect
        self.options = options
        self.clock = clock
        """A test's clock; None: the engine's."""
        self.events = Events()
        self.workflows = SqlWorkflows(self)
        self.schedules = SqlSchedules(self)
        self.rollups = SqlRollups(self)
        self.controls = SqlControls(self)
        self.bulk = SqlBulk(self)
        self.streams = SqlStreams(self)
        self.governed = GovernedRuns()
        self._schema_is_good = False
        self.limited = LimitedRuns(self.seconds)
        self.claims = SqlClaims(self)

    @abstractmethod
    async def perform(self, verb: Verb[T]) -> T:
        """Run a verb once, in its own transaction, turning driver errors into StorageError."""

    async def hint(self, queues: set[str]) -> None:
        """Notify the listeners of these queues; polling makes up for a lost notification."""

    @abstractmethod
    def owe_hint(self, queues: set[str]) -> None:
        """Notify the listeners of these queues soon, whatever the thread or loop of the caller."""

    def hint_soon(self, jobs: Sequence[NewJob]) -> None:
        if queues := queues_due(jobs):
            self.owe_hint(queues)

    def run(self, verb: Verb[T], *, within: float | None = None) -> Coroutine[Any, Any, T]:
        """Run a verb, retrying transient failures of the database."""
        if verb.urgent:
            verb.within = within
        if not self._schema_is_good:
            return self._run_first(verb, within)
        return self._retried(verb, within=within)

    async def _run_first(self, verb: Verb[T], within: float | None) -> T:
        await self._make_schema_good()
        return await self._retried(verb, within=within)

    async def _retried(self, verb: Verb[T], *, within: float | None = None) -> T:
        give_up_at = None if within is None else time.monotonic() + within
        retries: Retries | None = None  # most verbs need none
        while True:
            try:
                return await self.perform(verb)
            except TransientStorageError as error:
                retries = retries or self._retries(verb, give_up_at)
                await retries.pause_after(error)
                verb.is_retried = True

    def _retries(self, verb: Verb[Any], give_up_at: float | None) -> Retries:
        return Retries(
            retry_of(self.options),
            what=verb.action,
            events=self.events,
            give_up_at=give_up_at,
            busy=not verb.short_lock_wait and verb.lock_wait is None,
        )

    async def act(
        self, verb: Verb[T], by: Operator | None, act: str, done: Callable[[T], ActResult]
    ) -> T:
        """Run a verb, recording it in the audit log if an operator acts."""
        return await self.run(audit.audited(self.engine, verb, by, act, done))

    # -- schema ---------------------------------------------------------------------------------

    async def _make_schema_good(self) -> None:
        applied = await self.applied_migrations()
        if self.options.migrate and migrations.is_behind(applied, self.dialect.engine):
            await self.migrate()
            applied = await self.applied_migrations()
        migrations.check_schema(applied, self.dialect.engine)
        self._schema_is_good = True

    async def check_ready(self) -> None:
        migrations.check_schema(await self.applied_migrations(), self.dialect.engine)

    async def applied_migrations(self) -> list[migrations.Applied]:
        """Read the migrations that were applied to the database."""
        return await self._retried(migrations.read_applied(self.dialect))

    async def migrate(self) -> list[migrations.Migration]:
        """Bring the schema up to date; returns the migrations applied."""
        return await self._retried(migrations.migrate(self.dialect))

    # -- verbs ----------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, Submitted]:
        verb = submit.submit(self.engine, jobs)
        if type(jobs) is GatheredJobs:
            return self._submit_gathered(jobs, verb)
        return self._submit(jobs, verb)

    def _submit_unless_locked(self, jobs: GatheredJobs) -> Coroutine[Any, Any, Submitted]:
        verb = submit.submit(self.engine, jobs, lock_wait=LOCK_WAIT)
        return self._submit_gathered(jobs, verb)

    async def _submit_gathered(self, jobs: GatheredJobs, verb: Verb[Submitted]) -> Submitted:
        try:
            return await self._submit(jobs, verb)
        finally:
            jobs.may_be_stored = verb.is_retried

    async def _submit(self, jobs: Sequence[NewJob], verb: Verb[Submitted]) -> Submitted:
        """Insert jobs by a verb, and notify the listeners of their queues."""
        if not jobs:
            return Submitted(0)
        submitted = await self.run(verb)
        await self.hint_at(jobs)
        return submitted

    async def hint_at(self, jobs: Sequence[NewJob]) -> None:
        """Notify the listeners of new jobs that are due soon."""
        await self.hint_some(queues_due(jobs))

    async def hint_some(self, queues: Collection[str]) -> None:
        """Notify the listeners of these queues, if there are any."""
        if queues:
            await self.hint(set(queues))

    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Assignments:
        if not self._schema_is_good:
            await self._make_schema_good()
        return await self.claims.claim(worker_id, queue, topics, limit)

    def seconds(self) -> float:
        """Return a monotonic time in seconds; only differences have a meaning."""
        return time.monotonic() if self.clock is None else self.clock().timestamp()

    async def beat(
        self, leases: Sequence[Lease], *, within: float | None = None
    ) -> dict[Lease, Beat]:
        if not leases:
            return {}
        return await self.run(heartbeat.beat(self.engine, leases), within=within)

    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> Accepted:
        async def end(verb: Verb[Settled]) -> Settled:
            settled = await self.run(verb, within=within)
            await self.follow(settled.effects)
            return settled

        accepted = await adrive(settle.settle(self.engine, reports), end)
        await self.hint_freed(reports)
        return accepted

    async def settle_successes(self, runs: Successes) -> bool:
        are_all = await self.run(settle.settle_columns(self.engine, runs))
        if are_all:  # else a settle of the same runs follows, and does this
            ended = runs.job_ids
            await self.hint_some(self.governed.ended(ended) | self.limited.ended(ended))
        return are_all

    async def hint_freed(self, reports: Sequence[Report]) -> None:
        """Notify the listeners of queues in which ended runs have made room."""
        governed = self.governed.ended(report.lease.job_id for report in reports)
        limited = self.limited.ended(report.lease.job_id for report in reports)
        await self.hint_some(governed | limited)

    async def follow(self, told: Effects) -> None:
        """Notify listeners and cascade after jobs have ended.

        Nothing is lost if the process dies first: polling and upkeep do the same.
        """
        await self.hint_some(told.queues)
        if told.cascades:
            await self.tell_children()

    async def tell_children(self) -> None:
        """Cancel the children of ended parents, skipping rows that another session has locked."""
        for _ in range(MOST_ROUNDS):
            if not (await self.cascade_once(CASCADE)).told:
                return

    async def held(self, worker_id: UUID, *, asked_to_stop: bool = False) -> list[Lease]:
        return await self.run(heartbeat.held(self.engine, worker_id, asked_to_stop=asked_to_stop))

    async def set_progress(self, lease: Lease, progress: str) -> bool:
        return await self.run(heartbeat.set_progress(self.engine, lease, progress))

    async def announce(self, worker: WorkerInfo) -> WorkerRequest | None:
        return await self.run(workers.announce(self.engine, worker))

    async def retire(self, worker_id: UUID) -> None:
        await self.run(workers.retire(self.engine, worker_id))

    async def watchdog(self, *, limit: int = 500) -> WatchdogTick:
        verb = watchdog.watchdog(self.engine, limit)
        ticked, told = await self.run(verb)
        await self.follow(told)
        return ticked

    async def expire(self, *, limit: int = 500) -> list[Expired]:
        ended, told = await self.run(expiry.expire(self.engine, limit))
        await self.follow(told)
        return ended

    async def take_turn(self, *, length: float) -> bool:
        return await self.run(retention.take_turn(self.engine, length))

    async def prune(
        self,
        ages: Mapping[Status, float],
        *,
        limit: int,
        since: Mapping[Status, datetime] | None = None,
        by: Operator | None = None,
    ) -> Pruned:
        verb = retention.prune(self.engine, ages, limit, since or {})
        return await self.act(
            verb, by, "prune jobs", lambda pruned: ActResult(pruned.total, of_ages(ages))
        )

    async def prunable(self, ages: Mapping[Status, float]) -> Counts:
        return await self.run(retention.prunable(self.engine, ages))

    async def get(self, ids: Sequence[UUID]) -> dict[UUID, JobRow]:
        return await self.run(reads.get(self.engine, ids)) if ids else {}

    async def places(self, ids: Sequence[UUID], *, urgent: bool = False) -> dict[UUID, JobPlace]:
        if not ids:
            return {}
        return await self.run(reads.places(self.engine, ids, urgent=urgent))

    async def list_jobs(
        self, where: JobFilter, *, limit: int = 100, before: UUID | None = None
    ) -> Page[JobRow]:
        return await self.run(search.list_jobs(self.engine, where, limit, before))

    async def counts(self, where: JobFilter) -> Counts:
        return await self.run(search.counts(self.engine, where))

    async def counts_by(self, where: JobFilter, by: Sequence[str]) -> GroupedCounts:
        return await self.run(search.counts_by(self.engine, where, by))

    async def failures(
        self, job_id: UUID, *, after: int = 0, before: int | None = None, limit: int | None = None
    ) -> list[Failure]:
        return await self.run(reads.failures(self.engine, job_id, after, before, limit))

    async def cancel(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, Status]:
        return await acts.cancel(self, ids, by)

    async def replay(
        self, ids: Sequence[UUID], *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        if ids and fresh:
            await self.tell_children()  # the old children; the replay creates new ones
        replay = partial(operators.replay, self.engine, fresh=fresh)
        return await acts.change(self, ids, replay, by, "retry jobs")

    async def edit_and_replay(
        self, job_id: UUID, payload: str, *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        if fresh:
            await self.tell_children()
        replay = partial(operators.replay, self.engine, fresh=fresh, payload=payload)
        return await acts.change(self, [job_id], replay, by, "edit and retry job")

    async def delete(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        delete = partial(operators.delete, self.engine)
        return await acts.change(self, ids, delete, by, "delete jobs")

    async def expedite(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        expedite = partial(operators.expedite, self.engine)
        return await acts.change(self, ids, expedite, by, "run jobs now")

    async def audit_log(
        self,
        *,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
        before: AuditKey | None = None,
        actor: str | None = None,
    ) -> list[AuditEntry]:
        verb = audit.read(
            self.engine, limit=limit, since=since, until=until, before=before, actor=actor
        )
        return await self.run(verb)

    async def ask_workers(
        self, ids: Sequence[UUID], request: WorkerRequest, *, by: Operator | None = None
    ) -> list[WorkerInfo]:
        def done(asked: list[WorkerInfo]) -> ActResult:
            return ActResult(len(asked), ", ".join(f"{each.host}:{each.pid}" for each in asked))

        verb = workers.ask_workers(self.engine, ids, request)
        asked = await self.act(verb, by, f"{request} worker", done)
        await self.hint_some({CANCELS} if asked else set())
        return asked

    async def workers(self) -> list[WorkerInfo]:
        return await self.run(workers.workers(self.engine))

    async def worker(self, worker_id: UUID) -> WorkerInfo | None:
        found = await self.run(workers.worker(self.engine, worker_id))
        return found[0] if found else None

    async def audit(self, *, slack: float) -> Audit:
        return await self.run(reads.audit(self.engine, slack))

    async def backlog(self) -> list[Backlog]:
        return await self.run(reads.backlog(self.engine))

    async def running(self) -> list[Running]:
        return await self.run(reads.running(self.engine))

    async def due_queues(self, *, besides: Sequence[str]) -> dict[str, datetime]:
        return await self.run(reads.due_queues(self.engine, besides))

    async def now(self) -> datetime:
        return await self.run(reads.now(self.engine))

    @abstractmethod
    def step_transaction(
        self, lease: Lease, *, plain: bool
    ) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for a step's own writes; ``plain`` for a function that blocks."""

    async def cascade_once(self, limit: int) -> Cascaded:
        """Cancel up to ``limit`` children of ended parents, one level down."""
        done = await self.run(workflows.cascade(self.engine, limit))
        await self.hint_some(done.effects.queues | ({CANCELS} if done.told else set()))
        return done


def queues_due(jobs: Sequence[NewJob]) -> set[str]:
    """Return the queues of the jobs that are due soon."""
    due = set()
    # No comprehension and no ``kinds_of``, which are calls of their own.
    for job in [jobs.template] if type(jobs) is JobBatch else jobs:
        if job.delay < SOON:
            due.add(job.queue)
    return due

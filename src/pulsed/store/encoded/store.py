"""The store behind a codec: user data is encoded on its way in and decoded on its way out.

Only the verbs that carry user data are here. ``passed_on`` names those that carry none, or that
pass envelopes on as they are; they are the inner store's. A verb that is in neither is refused, so
that a new one cannot leak by being forgotten.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, cast
from uuid import UUID

from pulsed.handler.envelope import TextCodec
from pulsed.model.audit import Operator
from pulsed.model.job import (
    Assignment,
    Failure,
    JobFilter,
    JobRow,
    Lease,
    NewJob,
    Status,
    TopicPolicy,
)
from pulsed.model.outcome import Report, Successes
from pulsed.model.page import Page
from pulsed.model.rollup import ErrorRollup, Rollup
from pulsed.model.schedule import ScheduleFilter, ScheduleKey, ScheduleRow, ScheduleSpec, Version
from pulsed.model.step import Checkpoint
from pulsed.model.stream import Emission, StreamItem, StreamPage
from pulsed.model.workflow import History, JobOutcome, Record, Signal
from pulsed.store.base import Store
from pulsed.store.encoded.data import UserData
from pulsed.store.results import Accepted, Assignments, Partly, Submitted
from pulsed.store.rollups import RollupStore
from pulsed.store.schedules import EVERY_SCHEDULE, SCHEDULE_PAGE, Put, ScheduleStore
from pulsed.store.streams import StreamStore
from pulsed.store.submitter import Submitter
from pulsed.store.workflows import Signalled, Transaction, WorkflowStore

HIDDEN = "(encrypted)"
"""The message of an error in the statistics, which all who may read those can see."""

S = TypeVar("S")


def encoded(store: Store, codec: TextCodec) -> Store:
    """Return a store whose user data is in envelopes, for a process that has the codec."""
    return cast("Store", EncodedStore(store, UserData(codec)))


def bare(store: Store) -> Store:
    """Return the store below a codec, or the store itself if there is none."""
    around: Any = store
    return around._inner if isinstance(around, EncodedStore) else store  # noqa: SLF001 - its own


@cache
def members(interface: type) -> frozenset[str]:
    """Return what a store of this kind has: its verbs, the stores in it, its other attributes."""
    names = {*vars(interface), *inspect.get_annotations(interface)}
    return frozenset(name for name in names if not name.startswith("_"))


class _Around(Generic[S]):
    """A store around another one, which does what is safe to pass on."""

    interface: ClassVar[type]
    passed_on: ClassVar[frozenset[str]]

    def __init__(self, inner: S, data: UserData) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_data", data)

    _inner: S
    _data: UserData

    def __getattr__(self, name: str) -> Any:
        if name in members(self.interface) and name not in self.passed_on:
            raise AttributeError(f"{name} may carry user data, and is not available with a codec.")
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


class EncodedStore(_Around[Store]):
    """The verbs of a store that carry user data."""

    interface = Store
    passed_on = frozenset(
        {
            "aclose", "announce", "ask_workers", "audit", "audit_log", "backlog", "beat",
            "bulk", "cancel", "check", "check_ready", "controls", "counts", "counts_by",
            "delete", "doubtful_claims", "due_queues", "events", "expedite", "expire", "held",
            "hint_soon", "is_remote", "listen", "now", "places", "prunable",
            "prune", "publish_listening", "replay", "retire", "running", "take_turn",
            "thread_ends", "watchdog", "withdraw", "worker", "workers",
        }
    )  # fmt: skip

    @property
    def schedules(self) -> EncodedSchedules:
        """Its schedules."""
        return EncodedSchedules(self._inner.schedules, self._data)

    @property
    def workflows(self) -> EncodedWorkflows:
        """Its workflows."""
        return EncodedWorkflows(self._inner.workflows, self._data)

    @property
    def rollups(self) -> EncodedRollups:
        """Its statistics."""
        return EncodedRollups(self._inner.rollups, self._data)

    @property
    def streams(self) -> EncodedStreams:
        """The streams of its jobs."""
        return EncodedStreams(self._inner.streams, self._data)

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        return await self._inner.submit(self._data.new_jobs(jobs))

    def submit_together(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, Submitted]:
        return self._inner.submit_together(self._data.new_jobs(jobs))

    def joined(self, connection: Any) -> Submitter:
        return cast("Submitter", EncodedSubmitter(self._inner.joined(connection), self._data))

    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Assignments:
        claimed = await self._inner.claim(worker_id, queue, topics, limit)
        claimed[:] = self._data.assignments(claimed)
        return claimed

    async def await_jobs(self, *args: Any, **options: Any) -> list[Assignment]:
        return self._data.assignments(await self._inner.await_jobs(*args, **options))

    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> Accepted:
        return await self._inner.settle(self._data.reports(reports), within=within)

    async def settle_successes(self, runs: Successes) -> bool:
        del runs  # the results of single reports are encoded; one that cannot be fails its job
        return False

    async def settle_free(self, reports: Sequence[Report]) -> Partly:
        return await self._inner.settle_free(self._data.reports(reports))

    async def set_progress(self, lease: Lease, progress: str) -> bool:
        stored = self._data.value("progress", lease.job_id, progress)
        return await self._inner.set_progress(lease, stored)

    async def get(self, ids: Sequence[UUID]) -> dict[UUID, JobRow]:
        rows = await self._inner.get(ids)
        return {job_id: self._data.row(row) for job_id, row in rows.items()}

    async def list_jobs(
        self, where: JobFilter, *, limit: int = 100, before: UUID | None = None
    ) -> Page[JobRow]:
        page = await self._inner.list_jobs(where, limit=limit, before=before)
        page[:] = map(self._data.row, page)
        return page

    async def failures(
        self, job_id: UUID, *, after: int = 0, before: int | None = None, limit: int | None = None
    ) -> list[Failure]:
        found = await self._inner.failures(job_id, after=after, before=before, limit=limit)
        return [self._data.failure(each) for each in found]

    async def edit_and_replay(
        self, job_id: UUID, payload: str, *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        place = (await self._inner.places([job_id])).get(job_id)
        if place is None:
            return {}
        stored = self._data.payload(place.topic, payload)
        return await self._inner.edit_and_replay(job_id, stored, fresh=fresh, by=by)


class EncodedSubmitter(_Around[Submitter]):
    """New jobs in the caller's own transaction."""

    interface = Submitter
    passed_on = frozenset()

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        return await self._inner.submit(self._data.new_jobs(jobs))


class EncodedWorkflows(_Around[WorkflowStore]):
    """The verbs of workflows that carry user data."""

    interface = WorkflowStore
    passed_on = frozenset({"cascade"})

    async def history(self, job_id: UUID, *, skip: int = 0, limit: int | None = None) -> History:
        found = await self._inner.history(job_id, skip=skip, limit=limit)
        steps = [self._data.checkpoint_in(job_id, each) for each in found.checkpoints]
        return found._replace(checkpoints=steps)

    async def record(self, records: Sequence[Record]) -> set[Lease]:
        stored = [
            each._replace(checkpoint=self._data.checkpoint(each.lease.job_id, each.checkpoint))
            for each in records
        ]
        return await self._inner.record(stored)

    async def add_children(self, lease: Lease, jobs: Sequence[NewJob]) -> None:
        await self._inner.add_children(lease, self._data.new_jobs(jobs))

    async def outcomes(self, ids: Sequence[UUID]) -> dict[UUID, JobOutcome]:
        found = await self._inner.outcomes(ids)
        return {job_id: self._data.outcome(each) for job_id, each in found.items()}

    async def watch(self, lease: Lease, job_id: UUID) -> JobOutcome | None:
        found = await self._inner.watch(lease, job_id)
        return None if found is None else self._data.outcome(found)

    async def signal(self, signal: Signal) -> Signalled:
        stored = self._data.value("signal", signal.job_id, signal.payload)
        sent = Signal(id=signal.id, job_id=signal.job_id, name=signal.name, payload=stored)
        return await self._inner.signal(sent)

    async def take_signal(
        self, lease: Lease, name: str, checkpoint: Checkpoint
    ) -> Checkpoint | None:
        found = await self._inner.take_signal(lease, name, checkpoint)
        return None if found is None else self._data.checkpoint_in(lease.job_id, found)

    def transaction(self, lease: Lease, *, plain: bool) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction(lease, plain=plain)

    @asynccontextmanager
    async def _transaction(self, lease: Lease, *, plain: bool) -> AsyncIterator[Transaction]:
        async with self._inner.transaction(lease, plain=plain) as inner:
            yield cast("Transaction", EncodedTransaction(inner, self._data, lease.job_id))


class EncodedStreams(_Around[StreamStore]):
    """Streams, whose items are user data."""

    interface = StreamStore
    passed_on = frozenset()

    async def emit(self, emissions: Sequence[Emission]) -> set[Lease]:
        encode = self._data.value
        stored = [
            each._replace(values=[encode("item", each.lease.job_id, text) for text in each.values])
            for each in emissions
        ]
        return await self._inner.emit(stored)

    async def read(self, job_id: UUID, *, after: int = 0, limit: int) -> StreamPage:
        page = await self._inner.read(job_id, after=after, limit=limit)
        return page._replace(items=self._shown(job_id, page.items))

    async def newest(self, job_id: UUID, *, limit: int) -> Sequence[StreamItem]:
        return self._shown(job_id, await self._inner.newest(job_id, limit=limit))

    def _shown(self, job_id: UUID, items: Sequence[StreamItem]) -> Sequence[StreamItem]:
        return [self._data.item_in(job_id, item) for item in items]


class EncodedTransaction(_Around[Transaction]):
    """A step's own transaction, whose checkpoint is encoded."""

    interface = Transaction
    passed_on = frozenset({"connection", "limit", "revoke", "was_committed", "was_lost"})

    def __init__(self, inner: Transaction, data: UserData, job_id: UUID) -> None:
        super().__init__(inner, data)
        object.__setattr__(self, "_job_id", job_id)

    _job_id: UUID

    async def commit(self, checkpoint: Checkpoint) -> None:
        await self._inner.commit(self._data.checkpoint(self._job_id, checkpoint))


class EncodedSchedules(_Around[ScheduleStore]):
    """The verbs of schedules that carry the arguments of their jobs.

    ``due`` and ``fire`` are not here: whoever fires a schedule copies its envelope into its jobs,
    with or without the codec, as a server does.
    """

    interface = ScheduleStore
    passed_on = frozenset({"delete", "due", "fire", "last_fires", "prune", "set_error"})

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
        stored = self._data.spec(spec, await self._inner.get(app, name))
        put = await self._inner.put(app, name, stored, declared=declared, seen=seen, by=by)
        return put._replace(row=self._data.schedule(put.row))

    async def declare(
        self, app: str, specs: Mapping[str, ScheduleSpec], *, by: Operator | None = None
    ) -> dict[str, str]:
        there = {row.name: row async for row in self._inner.each(ScheduleFilter(app=app))}
        stored = {name: self._data.spec(spec, there.get(name)) for name, spec in specs.items()}
        return await self._inner.declare(app, stored, by=by)

    async def get(self, app: str, name: str) -> ScheduleRow | None:
        return self._shown(await self._inner.get(app, name))

    async def find(self, schedule_id: UUID) -> ScheduleRow | None:
        return self._shown(await self._inner.find(schedule_id))

    async def list_page(
        self,
        where: ScheduleFilter = EVERY_SCHEDULE,
        *,
        limit: int = SCHEDULE_PAGE,
        after: ScheduleKey | None = None,
    ) -> list[ScheduleRow]:
        rows = await self._inner.list_page(where, limit=limit, after=after)
        return [self._data.schedule(row) for row in rows]

    async def each(self, where: ScheduleFilter = EVERY_SCHEDULE) -> AsyncIterator[ScheduleRow]:
        async for row in self._inner.each(where):
            yield self._data.schedule(row)

    async def pause(self, app: str, name: str, *, by: Operator | None = None) -> ScheduleRow | None:
        return self._shown(await self._inner.pause(app, name, by=by))

    async def resume(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        return self._shown(await self._inner.resume(app, name, by=by))

    async def run_now(
        self, app: str, name: str, job: NewJob, *, by: Operator | None = None
    ) -> None:
        [stored] = self._data.new_jobs([job])
        await self._inner.run_now(app, name, stored, by=by)

    async def fires(
        self,
        schedule_id: UUID,
        *,
        limit: int = 50,
        before: datetime | None = None,
        before_id: UUID | None = None,
    ) -> list[JobRow]:
        found = await self._inner.fires(
            schedule_id, limit=limit, before=before, before_id=before_id
        )
        return [self._data.row(row) for row in found]

    def _shown(self, row: ScheduleRow | None) -> ScheduleRow | None:
        return None if row is None else self._data.schedule(row)


class EncodedRollups(_Around[RollupStore]):
    """Statistics: the kind of an error is kept, and its message is not."""

    interface = RollupStore
    passed_on = frozenset({"errors", "fold", "series", "totals"})

    async def record(
        self, recorder: UUID, rollups: Sequence[Rollup], errors: Sequence[ErrorRollup] = ()
    ) -> datetime:
        hidden = [replace(each, message=HIDDEN) for each in errors]
        return await self._inner.record(recorder, rollups, hidden)

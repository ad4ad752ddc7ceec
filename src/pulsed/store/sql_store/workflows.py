"""Workflows over any SQL engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from uuid import UUID

from pulsed.model.job import Lease, NewJob
from pulsed.model.step import Checkpoint
from pulsed.model.workflow import History, JobOutcome, Record, Signal
from pulsed.store.verbs import checkpoints, workflows
from pulsed.store.workflows import Signalled, Transaction, WorkflowStore

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore


class SqlWorkflows(WorkflowStore):
    """The workflows of a store made of verbs."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def history(self, job_id: UUID, *, skip: int = 0, limit: int | None = None) -> History:
        return await self._store.run(checkpoints.history(self._store.engine, job_id, skip, limit))

    async def record(self, records: Sequence[Record]) -> set[Lease]:
        if not records:
            return set()
        return await self._store.run(checkpoints.record(self._store.engine, records))

    async def add_children(self, lease: Lease, jobs: Sequence[NewJob]) -> None:
        if not jobs:
            return
        verb = workflows.add_children(self._store.engine, lease, jobs)
        await self._store.run(verb)
        await self._store.hint_at(jobs)

    async def outcomes(self, ids: Sequence[UUID]) -> dict[UUID, JobOutcome]:
        return await self._store.run(workflows.outcomes(self._store.engine, ids)) if ids else {}

    async def watch(self, lease: Lease, job_id: UUID) -> JobOutcome | None:
        await self._store.run(workflows.about_to_wait(self._store.engine, lease, job_id))
        return await self._store.run(workflows.watch(self._store.engine, job_id))

    async def signal(self, signal: Signal) -> Signalled:
        answer, queues = await self._store.run(workflows.signal(self._store.engine, signal))
        await self._store.hint_some(queues)
        return answer

    async def take_signal(
        self, lease: Lease, name: str, checkpoint: Checkpoint
    ) -> Checkpoint | None:
        verb = workflows.take_signal(self._store.engine, lease, name, checkpoint)
        return await self._store.run(verb)

    async def cascade(self, *, limit: int = 500) -> int:
        return (await self._store.cascade_once(limit)).parents

    def transaction(self, lease: Lease, *, plain: bool) -> AbstractAsyncContextManager[Transaction]:
        return self._store.step_transaction(lease, plain=plain)

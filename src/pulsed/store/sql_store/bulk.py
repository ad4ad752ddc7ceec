"""Bulk operations over any SQL engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from pulsed.errors import StorageBusy, StorageRefused
from pulsed.model.audit import Operator
from pulsed.model.bulk import LONGEST_LIST, BulkAct, BulkRow, BulkState, Skip
from pulsed.model.job import JobFilter, Status
from pulsed.store.base import CANCELS
from pulsed.store.bulk import BulkStore
from pulsed.store.sql_store import acts
from pulsed.store.verbs import bulk as verbs
from pulsed.store.verbs import operators
from pulsed.store.verbs.audit import ActResult

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore

MOST_REFUSALS = 3
"""Tries of a batch that the database refuses: another job may take a key at the same moment."""


class SqlBulk(BulkStore):
    """The bulk operations of a store made of verbs."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def start(
        self, bulk_id: UUID, act: BulkAct, where: JobFilter, *, by: Operator
    ) -> BulkRow:
        counts = await self._store.counts(where)
        verb = verbs.start(
            self._store.engine,
            bulk_id,
            act,
            where,
            by,
            total=sum(counts.values()),
            is_at_least=bool(counts.at_least),
        )
        return await self._store.run(verb)

    async def advance(self, performer: UUID, bulk_id: UUID | None = None) -> BulkRow | None:
        verb = verbs.next_batch(self._store.engine, performer, bulk_id, verbs.BATCH)
        batch = await self._store.run(verb)
        if batch is None:
            return None
        if batch.act.fresh:
            await self._store.tell_children()  # the old children; the replay creates new ones
        try:
            done = await self._perform(batch, performer)
        except StorageBusy:  # another process is performing it
            return None
        except StorageRefused as error:
            failed = verbs.end(self._store.engine, batch.row.id, BulkState.FAILED, str(error))
            return (await self._store.run(failed))[1]
        if done is None:
            return None
        await self._store.hint_some(done.queues)
        await self._store.follow(done.told)
        if done.has_asked:
            await self._store.hint({CANCELS})
        return done.row

    async def _perform(self, batch: verbs.Batch, performer: UUID) -> verbs.Performed | None:
        """Act on a batch, around locked rows if they stay locked."""
        perform = partial(verbs.perform, self._store.engine, batch, performer)
        refused = 0
        while True:
            try:
                return await self._store.run(perform())
            except StorageBusy:
                return await self._store.run(perform(around_locks=True))
            except StorageRefused:
                refused += 1
                if refused == MOST_REFUSALS:
                    raise

    async def get(self, bulk_id: UUID) -> BulkRow | None:
        return await self._store.run(verbs.get(self._store.engine, bulk_id))

    async def list(self, *, limit: int) -> Sequence[BulkRow]:
        return await self._store.run(verbs.newest(self._store.engine, min(limit, LONGEST_LIST)))

    async def skips(self, bulk_id: UUID) -> Sequence[Skip]:
        return await self._store.run(verbs.skips(self._store.engine, bulk_id))

    async def stop(self, bulk_id: UUID, *, by: Operator) -> BulkRow | None:
        verb = verbs.end(self._store.engine, bulk_id, BulkState.STOPPED)
        ended = await self._store.act(
            verb, by, "stop bulk operation", lambda done: ActResult(int(done[0]), str(bulk_id))
        )
        return ended[1]

    async def change(
        self, ids: Sequence[UUID], act: BulkAct, *, by: Operator | None = None
    ) -> Mapping[UUID, tuple[bool, Status]]:
        change = partial(operators.change, self._store.engine, act=act)
        return await acts.change(self._store, ids, change, by, verbs.audit_name(act.kind))

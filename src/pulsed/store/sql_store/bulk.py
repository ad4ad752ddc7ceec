"""Bulk operations over any SQL engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from pulsed.errors import PulsedError, StorageBusy, StorageError, concerns_everything
from pulsed.model.audit import Operator
from pulsed.model.bulk import LONGEST_LIST, BulkAct, BulkRow, BulkState, Skip
from pulsed.model.job import JobFilter, Status
from pulsed.store.bulk import BulkStore
from pulsed.store.listener import CANCELS
from pulsed.store.sql_store import acts
from pulsed.store.verbs import bulk as verbs
from pulsed.store.verbs import operators
from pulsed.store.verbs.audit import ActResult

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore

log = logging.getLogger("pulsed.bulk")

MOST_FAILURES = 3
"""Tries of a batch that fails: another job may take a key at the same moment."""


class _BatchFailed(Exception):
    """A batch that failed at every try, for a reason that concerns its operation alone."""

    def __init__(self, bulk_id: UUID, error: Exception) -> None:
        super().__init__(bulk_id)
        self.bulk_id = bulk_id
        self.error = error


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
        try:
            done = await self._next(performer, bulk_id)
        except StorageBusy:  # another process is performing it
            return None
        except _BatchFailed as failed:
            return await self._fail(failed)
        if done is None:
            return None
        await self._store.hint_some(done.queues)
        await self._store.follow(done.told)
        if done.has_asked:
            await self._store.hint({CANCELS})
        return done.row

    async def _next(self, performer: UUID, bulk_id: UUID | None) -> verbs.Performed | None:
        """Find the next batch and act on it; raises ``_BatchFailed`` if that fails every time."""
        failures = 0
        while True:
            try:
                return await self._try(performer, bulk_id)
            except Exception as error:
                if concerns_everything(error):
                    raise
                failures += 1
                # From here on for this operation only: it is the one to blame, and it must not
                # stay the first, or no other would be performed any more.
                bulk_id = bulk_id or await self._first(performer)
                if bulk_id is None:
                    raise
                if failures == MOST_FAILURES:
                    raise _BatchFailed(bulk_id, error) from error

    async def _first(self, performer: UUID) -> UUID | None:
        row = await self._store.run(verbs.first_in_line(self._store.engine, performer))
        return None if row is None else row.id

    async def _try(self, performer: UUID, bulk_id: UUID | None) -> verbs.Performed | None:
        """Act on the next batch, around locked rows if they stay locked."""
        engine = self._store.engine
        batch = await self._store.run(verbs.next_batch(engine, performer, bulk_id, verbs.BATCH))
        if batch is None:
            return None
        if batch.act.fresh:
            await self._store.tell_children()  # the old children; the replay creates new ones
        perform = partial(verbs.perform, engine, batch, performer)
        try:
            return await self._store.run(perform())
        except StorageBusy:
            return await self._store.run(perform(around_locks=True))

    async def _fail(self, failed: _BatchFailed) -> BulkRow | None:
        """End an operation whose batch cannot be performed, with the error for people to see."""
        error = failed.error
        if not isinstance(error, StorageError):
            log.error("bulk operation %s has failed", failed.bulk_id, exc_info=error)
        name = "" if isinstance(error, PulsedError) else f"{type(error).__name__}: "
        text = f"{name}{error}"
        verb = verbs.end(self._store.engine, failed.bulk_id, BulkState.FAILED, text)
        return (await self._store.run(verb))[1]

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

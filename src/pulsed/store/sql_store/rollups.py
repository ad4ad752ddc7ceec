"""Statistics over any SQL engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pulsed.model.rollup import By, ErrorRollup, Errors, Rollup, SeriesRows, Totals
from pulsed.store.rollups import RollupStore
from pulsed.store.verbs import rollups as verbs
from pulsed.store.verbs.rollups import Chosen

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore


class SqlRollups(RollupStore):
    """The statistics of a store made of verbs."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def record(
        self, recorder: UUID, rollups: Sequence[Rollup], errors: Sequence[ErrorRollup] = ()
    ) -> datetime:
        return await self._store.run(verbs.record(self._store.engine, recorder, rollups, errors))

    async def series(
        self,
        since: datetime,
        until: datetime | None = None,
        step: int | None = None,
        *,
        queue: str | None = None,
        topic: str | None = None,
        by: Collection[By] = (),
    ) -> SeriesRows:
        chosen = Chosen(since, until, queue, topic)
        return await self._store.run(verbs.series(self._store.engine, chosen, step, by))

    async def totals(
        self,
        since: datetime,
        until: datetime | None = None,
        *,
        queue: str | None = None,
        topic: str | None = None,
    ) -> Totals:
        chosen = Chosen(since, until, queue, topic)
        return await self._store.run(verbs.totals(self._store.engine, chosen))

    async def errors(
        self,
        since: datetime,
        until: datetime | None = None,
        *,
        limit: int,
        queue: str | None = None,
        topic: str | None = None,
    ) -> Errors:
        chosen = Chosen(since, until, queue, topic)
        return await self._store.run(verbs.errors(self._store.engine, chosen, limit))

    async def fold(self, *, keep: float | None, limit: int) -> int:
        return await self._store.run(verbs.fold(self._store.engine, keep, limit))

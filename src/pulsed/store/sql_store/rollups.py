"""Statistics over any SQL engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from pulsed.model.rollup import By, ErrorRollup, Errors, Rollup, RollupFilter, SeriesRows, Totals
from pulsed.store.rollups import RollupStore
from pulsed.store.verbs import rollups as verbs

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
        self, where: RollupFilter, step: int | None = None, *, by: Collection[By] = ()
    ) -> SeriesRows:
        return await self._store.run(verbs.series(self._store.engine, where, step, by))

    async def totals(self, where: RollupFilter) -> Totals:
        return await self._store.run(verbs.totals(self._store.engine, where))

    async def errors(self, where: RollupFilter, *, limit: int) -> Errors:
        return await self._store.run(verbs.errors(self._store.engine, where, limit))

    async def fold(self, *, keep: float | None, limit: int) -> int:
        return await self._store.run(verbs.fold(self._store.engine, keep, limit))

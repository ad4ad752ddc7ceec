"""Streams over any SQL engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pulsed.model.job import Lease
from pulsed.model.stream import Emission, StreamItem, StreamPage
from pulsed.store.streams import StreamStore
from pulsed.store.verbs import streams

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore


class SqlStreams(StreamStore):
    """The streams of a store made of verbs."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def emit(self, emissions: Sequence[Emission]) -> set[Lease]:
        if not emissions:
            return set()
        engine = self._store.engine
        held = await self._store.run(streams.emit(engine, emissions))
        long = [e.lease.job_id for e in emissions if e.reaches_trim and e.lease in held]
        if long:
            await self._store.run(streams.trim_streams(engine, long))
        return held

    async def read(self, job_id: UUID, *, after: int = 0, limit: int) -> StreamPage:
        return await self._store.run(streams.read_stream(self._store.engine, job_id, after, limit))

    async def newest(self, job_id: UUID, *, limit: int) -> Sequence[StreamItem]:
        return await self._store.run(streams.newest_items(self._store.engine, job_id, limit))

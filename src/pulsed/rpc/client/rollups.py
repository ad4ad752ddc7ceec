"""The verbs of statistics over the network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pulsed.errors import ServerTooOld
from pulsed.model.rollup import (
    By,
    ErrorRollup,
    Errors,
    Range,
    Rollup,
    RollupFilter,
    SeriesRows,
    Totals,
)
from pulsed.rpc.client.connection import ServerConnection
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import rollups as to
from pulsed.rpc.messages import values
from pulsed.store.rollups import RollupStore


class RemoteRollups(RollupStore):
    """Statistics whose store is behind a server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def record(
        self, recorder: UUID, rollups: Sequence[Rollup], errors: Sequence[ErrorRollup] = ()
    ) -> datetime:
        request = pb.RecordStatsRequest(
            recorder=str(recorder),
            rollups=map(to.rollup_message, rollups),
            errors=map(to.error_message, errors),
        )
        return values.instant((await self._connection.call("RecordStats", request)).now)

    async def series(
        self, where: RollupFilter, step: int | None = None, *, by: Collection[By] = ()
    ) -> SeriesRows:
        request = pb.GetSeriesRequest(
            **_chosen(where),
            step_seconds=step or 0,
            by_queue="queue" in by,
            by_topic="topic" in by,
        )
        answer = await self._connection.call("GetSeries", request)
        begin, end = values.instant(answer.since), values.instant(answer.until)
        found = Range(begin, end, answer.step_seconds, answer.span_seconds)
        return SeriesRows(found, [to.rollup_of(each) for each in answer.rollups], answer.cut)

    async def totals(self, where: RollupFilter) -> Totals:
        request = pb.GetTotalsRequest(**_chosen(where))
        answer = await self._connection.call("GetTotals", request)
        return Totals(map(to.rollup_of, answer.rollups), is_cut=answer.cut)

    async def errors(self, where: RollupFilter, *, limit: int) -> Errors:
        request = pb.ListErrorsRequest(**_chosen(where), limit=limit)
        answer = await self._connection.call("ListErrors", request)
        return Errors(map(to.error_of, answer.errors), is_cut=answer.cut)

    async def fold(self, *, keep: float | None, limit: int) -> int:
        request = pb.FoldStatsRequest(keep_seconds=keep, limit=limit)
        try:
            answer = await self._connection.upkeep("FoldStats", request)
        except ServerTooOld:  # it has no statistics
            return 0
        return 0 if answer is None else int(answer.rows)


def _chosen(where: RollupFilter) -> dict[str, Any]:
    since, until = values.stamp(where.since), values.maybe_stamp(where.until)
    return {"since": since, "until": until, "queue": where.queue, "topic": where.topic}

"""The verbs of bulk operations over the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from pulsed.errors import ServerTooOld
from pulsed.model.audit import Operator
from pulsed.model.bulk import BulkAct, BulkRow, Skip
from pulsed.model.job import JobFilter, Status
from pulsed.rpc.client.connection import ServerConnection
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import audit as to_audit
from pulsed.rpc.messages import bulk as to
from pulsed.rpc.messages import jobs as to_jobs
from pulsed.rpc.messages import results, values
from pulsed.store.bulk import BulkStore


class RemoteBulk(BulkStore):
    """Bulk operations whose store is behind a server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def start(
        self, bulk_id: UUID, act: BulkAct, where: JobFilter, *, by: Operator
    ) -> BulkRow:
        request = pb.StartBulkRequest(
            id=str(bulk_id),
            act=to.act_message(act),
            where=to_jobs.filter_message(where),
            conditions=where.conditions,
            operator=to_audit.operator_message(by),
        )
        return to.bulk_of(await self._connection.call("StartBulk", request))

    async def advance(self, performer: UUID, bulk_id: UUID | None = None) -> BulkRow | None:
        request = pb.AdvanceBulkRequest(performer=str(performer), id=values.maybe_text(bulk_id))
        if bulk_id is not None:
            return to.maybe_bulk_of(await self._connection.call("AdvanceBulk", request))
        try:
            answer = await self._connection.upkeep("AdvanceBulk", request)
        except ServerTooOld:  # it has no bulk operations
            return None
        return None if answer is None else to.maybe_bulk_of(answer)

    async def get(self, bulk_id: UUID) -> BulkRow | None:
        request = pb.BulkId(id=str(bulk_id))
        return to.maybe_bulk_of(await self._connection.call("GetBulk", request))

    async def list(self, *, limit: int) -> Sequence[BulkRow]:
        answer = await self._connection.call("ListBulk", pb.ListBulkRequest(limit=limit))
        return [to.bulk_of(message) for message in answer.operations]

    async def skips(self, bulk_id: UUID) -> Sequence[Skip]:
        answer = await self._connection.call("ListBulkSkips", pb.BulkId(id=str(bulk_id)))
        return [to.skip_of(message) for message in answer.skips]

    async def stop(self, bulk_id: UUID, *, by: Operator) -> BulkRow | None:
        request = pb.BulkId(id=str(bulk_id), operator=to_audit.operator_message(by))
        return to.maybe_bulk_of(await self._connection.call("StopBulk", request))

    async def change(
        self, ids: Sequence[UUID], act: BulkAct, *, by: Operator | None = None
    ) -> Mapping[UUID, tuple[bool, Status]]:
        if not ids:
            return {}
        request = pb.ChangeJobsRequest(
            job_ids=map(str, ids),
            act=to.act_message(act),
            operator=to_audit.operator_message(by),
        )
        return results.acts_of(await self._connection.call("ChangeJobs", request))

"""Streams over the network."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pulsed.model.job import Lease
from pulsed.model.stream import Emission, StreamItem, StreamPage
from pulsed.rpc.client.connection import ServerConnection
from pulsed.rpc.client.workflows import parts
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to_jobs
from pulsed.rpc.messages import streams as to
from pulsed.store.streams import StreamStore


class RemoteStreams(StreamStore):
    """Streams whose store is behind a server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def emit(self, emissions: Sequence[Emission]) -> set[Lease]:
        accepted: list[bool] = []
        for part in parts(map(to.emission_message, emissions)):
            answer = await self._connection.call("Emit", pb.EmitRequest(emissions=part))
            accepted += answer.accepted
        pairs = zip(emissions, accepted, strict=True)
        return {emission.lease for emission, held in pairs if held}

    async def read(self, job_id: UUID, *, after: int = 0, limit: int) -> StreamPage:
        request = pb.ReadStreamRequest(job_id=str(job_id), after=after, limit=limit)
        answer = await self._connection.call("ReadStream", request)
        status = to_jobs.STATUSES[answer.status] if answer.status else None
        return StreamPage([to.item_of(message) for message in answer.items], status)

    async def newest(self, job_id: UUID, *, limit: int) -> Sequence[StreamItem]:
        request = pb.ReadStreamRequest(job_id=str(job_id), limit=limit, newest=True)
        answer = await self._connection.call("ReadStream", request)
        return [to.item_of(message) for message in answer.items]

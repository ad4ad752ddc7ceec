"""The methods that write and read the streams of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from pulsed.handler.options import checked_count
from pulsed.model.stream import LAST_POSITION, StreamItem
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to_jobs
from pulsed.rpc.messages import streams as to
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.checks.streams import emission
from pulsed.rpc.server.services.backend import LARGEST_PAGE, Backend
from pulsed.rpc.server.sized_page import SizedPage

MOST_NEWEST = 100
"""Items that are read at once without knowing their size."""


class StreamService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._scopes = backend.scopes
        self._converted = backend.converted
        self._check_batch = backend.check_batch

    async def emit(self, request: pb.EmitRequest, caller: Caller) -> pb.EmitResponse:
        self._check_batch(range(sum(len(each.values) for each in request.emissions)))
        emissions = await self._converted(emission, request.emissions, request, caller)
        await self._scopes.check_leases([each.lease for each in emissions], caller)
        held = await self._store.streams.emit(emissions)
        return pb.EmitResponse(accepted=[each.lease in held for each in emissions])

    async def read_stream(
        self, request: pb.ReadStreamRequest, caller: Caller
    ) -> pb.ReadStreamResponse:
        job_id = checks.job_id_of(request.job_id)
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        after = checked_count("after", request.after, 0, LAST_POSITION)
        await self._scopes.check_readable([job_id], caller)
        if request.newest:
            return pb.ReadStreamResponse(items=await self._newest(job_id, limit))
        items = SizedPage(to.item_message, limit=limit)
        answer = pb.ReadStreamResponse()

        async def read(count: int, last: StreamItem | None) -> Sequence[StreamItem]:
            since = after if last is None else last.position
            page = await self._store.streams.read(job_id, after=since, limit=count)
            if page.status is not None:
                answer.status = to_jobs.STATUS_NUMBERS[page.status]
            return page.items

        await items.fill_from(read)
        answer.items.extend(items.messages)
        return answer

    async def _newest(self, job_id: UUID, limit: int) -> list[pb.StreamItem]:
        """Return the newest items that fit into an answer, oldest first."""
        items = SizedPage(to.item_message, limit=min(limit, MOST_NEWEST))
        found = await self._store.streams.newest(job_id, limit=min(limit, MOST_NEWEST))
        items.fill(reversed(found))
        return items.messages[::-1]

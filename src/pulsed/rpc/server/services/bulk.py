"""The methods with which operators act on all jobs that match a filter."""

from __future__ import annotations

from uuid import UUID

from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_count
from pulsed.model.bulk import LONGEST_LIST, BulkRow
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import bulk as to
from pulsed.rpc.messages import results
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.server.access import Caller, denied
from pulsed.rpc.server.checks import bulk as bulk_checks
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.services.backend import Backend, operator_of


class BulkService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._scopes = backend.scopes
        self._converted = backend.converted

    async def start_bulk(self, request: pb.StartBulkRequest, caller: Caller) -> pb.Bulk:
        bulk_id = checks.job_id_of(request.id)
        act = bulk_checks.act(request.act, caller)
        where = bulk_checks.chosen(request, act, caller)
        row = await self._store.bulk.start(bulk_id, act, where, by=operator_of(request, caller))
        _check_scope(row, caller)
        return to.bulk_message(row)

    async def advance_bulk(self, request: pb.AdvanceBulkRequest, caller: Caller) -> pb.MaybeBulk:
        performer = checks.job_id_of(request.performer)
        bulk_id = checks.job_id_of(request.id) if request.id else None
        if bulk_id is not None:
            await self._read(bulk_id, caller)
        elif caller.is_limited:
            raise denied(f"{caller.name} is limited to some jobs: name the operation.")
        return to.maybe_bulk_message(await self._store.bulk.advance(performer, bulk_id))

    async def get_bulk(self, request: pb.BulkId, caller: Caller) -> pb.MaybeBulk:
        return to.maybe_bulk_message(await self._read(checks.job_id_of(request.id), caller))

    async def list_bulk(self, request: pb.ListBulkRequest, caller: Caller) -> pb.ListBulkResponse:
        limit = checked_count("limit", request.limit, 1, LONGEST_LIST)
        # Those of others are left out, so a limited caller may get fewer than there are.
        wanted = LONGEST_LIST if caller.is_limited else limit
        rows = await self._store.bulk.list(limit=wanted)
        own = [row for row in rows if _is_own(row, caller)]
        return pb.ListBulkResponse(operations=map(to.bulk_message, own[:limit]))

    async def list_bulk_skips(self, request: pb.BulkId, caller: Caller) -> pb.ListBulkSkipsResponse:
        bulk_id = checks.job_id_of(request.id)
        await self._read(bulk_id, caller)
        skips = await self._store.bulk.skips(bulk_id)
        return pb.ListBulkSkipsResponse(skips=map(to.skip_message, skips))

    async def stop_bulk(self, request: pb.BulkId, caller: Caller) -> pb.MaybeBulk:
        bulk_id = checks.job_id_of(request.id)
        await self._read(bulk_id, caller)
        by = operator_of(request, caller)
        return to.maybe_bulk_message(await self._store.bulk.stop(bulk_id, by=by))

    async def change_jobs(self, request: pb.ChangeJobsRequest, caller: Caller) -> pb.JobActs:
        ids = await self._converted(checks.job_id_of, request.job_ids, request, caller)
        act = bulk_checks.act(request.act, caller)
        if not act.changes_jobs:
            raise InvalidOption(f"{act.kind} is no change of jobs that wait.")
        await self._scopes.check_readable(ids, caller)
        by = operator_of(request, caller)
        return results.acts_message(await self._store.bulk.change(ids, act, by=by))

    async def _read(self, bulk_id: UUID, caller: Caller) -> BulkRow | None:
        row = await self._store.bulk.get(bulk_id)
        if row is not None:
            _check_scope(row, caller)
        return row


def _check_scope(row: BulkRow, caller: Caller) -> None:
    if not _is_own(row, caller):
        raise denied(f"{caller.name} may not use bulk operation {row.id}.")


def _is_own(row: BulkRow, caller: Caller) -> bool:
    """Whether an operation is about jobs that the caller may use."""
    if not caller.is_limited:
        return True
    try:
        caller.check_filter(row.where)
    except (Refusal, InvalidOption):
        return False
    return True

"""The methods of running workflows, and of callers that send signals to them."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from pulsed.engine.enqueuing import publish_enqueued
from pulsed.handler.options import checked_name
from pulsed.model.job import Lease, NewJob
from pulsed.model.step import Checkpoint
from pulsed.model.workflow import Record
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import values
from pulsed.rpc.messages import workflows as to_workflow
from pulsed.rpc.messages.contract import LARGEST_ANSWER
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.checks.workflows import check_family, checked_checkpoint
from pulsed.rpc.server.json_text import checked_json
from pulsed.rpc.server.services.backend import Backend
from pulsed.rpc.server.sized_page import SizedPage

OUTCOMES_AT_A_TIME = 500
"""Jobs whose outcomes are read between two checks whether the answer is full."""


class WorkflowService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._scopes = backend.scopes
        self._converted = backend.converted

    async def checkpoint(
        self, request: pb.CheckpointRequest, caller: Caller
    ) -> pb.CheckpointResponse:
        records = await self._converted(_record, request.records, request, caller)
        leases = [record.lease for record in records]
        await self._scopes.check_leases(leases, caller)
        held = await self._store.workflows.record(records)
        return pb.CheckpointResponse(accepted=[lease in held for lease in leases])

    async def get_history(
        self, request: pb.GetHistoryRequest, caller: Caller
    ) -> pb.GetHistoryResponse:
        job_id = checks.job_id_of(request.job_id)
        await self._scopes.check_readable([job_id], caller)
        steps = SizedPage(to_workflow.checkpoint_message, limit=max(0, request.limit) or None)
        answer = pb.GetHistoryResponse()
        while count := steps.wanted:
            skip = max(0, request.skip) + len(steps.messages)
            history = await self._store.workflows.history(job_id, skip=skip, limit=count)
            if steps.messages and history.generation != answer.generation:
                steps.is_cut = True  # the client asks for the rest and finds the new generation
                break
            answer.generation = history.generation
            answer.now.CopyFrom(values.stamp(history.now))
            steps.fill(history.checkpoints)
            if len(history.checkpoints) < count:
                break
        answer.checkpoints.extend(steps.messages)
        answer.cut = steps.is_cut
        return answer

    async def fan_out(self, request: pb.FanOutRequest, caller: Caller) -> pb.FanOutResponse:
        lease = checks.lease(request.lease)
        jobs = await self._converted(partial(_child, lease), request.jobs, request, caller)
        await self._scopes.check_new(jobs, caller)
        await self._scopes.check_leases([lease], caller)
        await self._store.workflows.add_children(lease, jobs)
        publish_enqueued(self._store.events, jobs)
        return pb.FanOutResponse()

    async def get_outcomes(
        self, request: pb.GetOutcomesRequest, caller: Caller
    ) -> pb.GetOutcomesResponse:
        ids = await self._converted(checks.job_id_of, request.job_ids, request, caller)
        answer = pb.GetOutcomesResponse()
        size = 0
        while ids:
            some, ids = ids[:OUTCOMES_AT_A_TIME], ids[OUTCOMES_AT_A_TIME:]
            await self._scopes.check_readable(some, caller)
            for job_id, ended in (await self._store.workflows.outcomes(some)).items():
                message = to_workflow.job_outcome_message(ended)
                size += message.ByteSize()
                if size > LARGEST_ANSWER and answer.outcomes:
                    answer.left_off.append(str(job_id))
                else:
                    answer.outcomes.append(message)
            if size > LARGEST_ANSWER:
                break
        answer.left_off.extend(map(str, ids))
        return answer

    async def watch(self, request: pb.WatchRequest, caller: Caller) -> pb.WatchResponse:
        lease = checks.lease(request.lease)
        job_id = checks.job_id_of(request.job_id)
        await self._scopes.check_leases([lease], caller)
        await self._scopes.check_readable([job_id], caller)
        ended = await self._store.workflows.watch(lease, job_id)
        outcome = None if ended is None else to_workflow.job_outcome_message(ended)
        return pb.WatchResponse(outcome=outcome)

    async def signal(self, request: pb.SignalRequest, caller: Caller) -> pb.SignalResponse:
        signal = checks.converted(to_workflow.signal_of, request)
        checked_name("name of the signal", signal.name)
        checked_json(f"The payload of signal {signal.name!r}", signal.payload)
        await self._scopes.check_readable([signal.job_id], caller)
        stored, status = await self._store.workflows.signal(signal)
        number = None if status is None else to.STATUS_NUMBERS[status]
        return pb.SignalResponse(stored=stored, status=number)

    async def take_signal(
        self, request: pb.TakeSignalRequest, caller: Caller
    ) -> pb.TakeSignalResponse:
        lease = checks.lease(request.lease)
        name = checked_name("name of the signal", request.name)
        checkpoint = _checkpoint(request.checkpoint)
        await self._scopes.check_leases([lease], caller)
        taken = await self._store.workflows.take_signal(lease, name, checkpoint)
        message = None if taken is None else to_workflow.checkpoint_message(taken)
        return pb.TakeSignalResponse(checkpoint=message)


def _record(message: Any) -> Record:
    """Return a checkpoint and the lease under which it is written."""
    return Record(checks.lease(message.lease), _checkpoint(message.checkpoint))


def _checkpoint(message: Any) -> Checkpoint:
    """Return the checkpoint of a message, if it can be stored."""
    checkpoint: Checkpoint = checks.converted(to_workflow.checkpoint_of, message)
    return checked_checkpoint(checkpoint)


def _child(lease: Lease, message: Any) -> NewJob:
    """Return a child of a run, if it can be stored; its parent is always the lease's job."""
    job = checks.new_job(message)
    check_family(job.parent_step)
    return msgspec.structs.replace(job, parent_id=lease.job_id)

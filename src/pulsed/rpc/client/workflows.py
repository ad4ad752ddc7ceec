"""The workflow verbs over the network.

Checkpoints, children, histories and outcomes may be large, so they are sent and received in parts.
Each part that is sent is a transaction of its own, and may be retried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from google.protobuf.message import Message

from pulsed.batches import batches
from pulsed.errors import StorageError
from pulsed.model.job import Lease, NewJob
from pulsed.model.step import Checkpoint
from pulsed.model.workflow import History, JobOutcome, Record, Signal
from pulsed.rpc.client.connection import ServerConnection
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import values
from pulsed.rpc.messages import workflows as to_workflow
from pulsed.rpc.messages.contract import PART
from pulsed.store.workflows import Signalled, WorkflowStore

M = TypeVar("M", bound=Message)


class RemoteWorkflows(WorkflowStore):
    """Workflows whose store is behind a server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def history(self, job_id: UUID, *, skip: int = 0, limit: int | None = None) -> History:
        found: list[Any] = []
        generation = -1
        while True:
            request = pb.GetHistoryRequest(
                job_id=str(job_id),
                skip=skip + len(found),
                limit=None if limit is None else limit - len(found),
            )
            answer = await self._connection.call("GetHistory", request)
            if found and answer.generation != generation:  # replayed afresh during this read
                found.clear()
                continue
            generation = answer.generation
            found += answer.checkpoints
            if not answer.cut:
                checkpoints = [to_workflow.checkpoint_of(message) for message in found]
                return History(checkpoints, generation, values.instant(answer.now))

    async def record(self, records: Sequence[Record]) -> set[Lease]:
        accepted: list[bool] = []
        for part in parts(map(to_workflow.record_message, records)):
            answer = await self._connection.call("Checkpoint", pb.CheckpointRequest(records=part))
            accepted += answer.accepted
        pairs = zip(records, accepted, strict=True)
        return {record.lease for record, held in pairs if held}

    async def add_children(self, lease: Lease, jobs: Sequence[NewJob]) -> None:
        mine = to.lease_message(lease)
        for part in parts(map(to.new_job_message, jobs)):
            await self._connection.call("FanOut", pb.FanOutRequest(lease=mine, jobs=part))

    async def outcomes(self, ids: Sequence[UUID]) -> dict[UUID, JobOutcome]:
        found: dict[UUID, JobOutcome] = {}
        wanted = [str(job_id) for job_id in ids]
        while wanted:
            some, wanted = wanted[: PART.items], wanted[PART.items :]
            answer = await self._connection.call("GetOutcomes", pb.GetOutcomesRequest(job_ids=some))
            found |= {ended.id: ended for ended in map(to_workflow.job_outcome_of, answer.outcomes)}
            wanted = [*answer.left_off, *wanted]
        return found

    async def watch(self, lease: Lease, job_id: UUID) -> JobOutcome | None:
        request = pb.WatchRequest(lease=to.lease_message(lease), job_id=str(job_id))
        answer = await self._connection.call("Watch", request)
        return to_workflow.job_outcome_of(answer.outcome) if answer.HasField("outcome") else None

    async def signal(self, signal: Signal) -> Signalled:
        answer = await self._connection.call("Signal", to_workflow.signal_message(signal))
        return Signalled(answer.stored, to.STATUSES[answer.status] if answer.status else None)

    async def take_signal(
        self, lease: Lease, name: str, checkpoint: Checkpoint
    ) -> Checkpoint | None:
        request = pb.TakeSignalRequest(
            lease=to.lease_message(lease),
            name=name,
            checkpoint=to_workflow.checkpoint_message(checkpoint),
        )
        answer = await self._connection.call("TakeSignal", request)
        if not answer.HasField("checkpoint"):
            return None
        return to_workflow.checkpoint_of(answer.checkpoint)

    def transaction(self, lease: Lease, *, plain: bool) -> NoReturn:  # noqa: ARG002
        """Refuse: this process has no database connection that a step could write with."""
        raise StorageError(
            f"A step of job {lease.job_id} needs a transaction (tx=True), which is not "
            "available through a server: only the server knows the jobs' database. Give the "
            "worker a database URL, or let the step write elsewhere, with the job's id as its "
            "idempotency key."
        )

    async def cascade(self, *, limit: int = 500) -> int:
        """Return 0: the server cascades by itself, at every tick.

        Only a server that was started without upkeep is called to do it now.
        """
        answer = await self._connection.upkeep("Cascade", pb.CascadeRequest(limit=limit))
        return 0 if answer is None else int(answer.parents)


def parts(messages: Iterable[M]) -> Iterator[list[M]]:
    """Split the items of a request into parts that fit into one request each."""
    return batches(messages, lambda message: message.ByteSize(), PART)

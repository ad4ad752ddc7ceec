"""Values to messages and back: checkpoints, waits, signals, and the outcomes of other jobs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pulsed.handler import clean_text
from pulsed.model.outcome import Waiting
from pulsed.model.step import Checkpoint, StepState, Wait
from pulsed.model.workflow import JobOutcome, Record, Signal
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import values

STATE_NUMBERS: dict[StepState, Any] = {
    state: pb.StepState.Value(f"STEP_STATE_{state.value}") for state in StepState
}
STATES = {number: state for state, number in STATE_NUMBERS.items()}


def checkpoint_message(checkpoint: Checkpoint) -> pb.Checkpoint:
    """Return a checkpoint as a message."""
    return pb.Checkpoint(
        name=checkpoint.name,
        nth=checkpoint.nth,
        seq=checkpoint.seq,
        kind=to.KIND_NUMBERS[checkpoint.kind],
        state=STATE_NUMBERS[checkpoint.state],
        input_hash=checkpoint.input_hash,
        value=checkpoint.value,
        # A message takes no lone surrogates, whatever a step has raised.
        error=None if checkpoint.error is None else clean_text(checkpoint.error),
        tries=checkpoint.tries,
        took_seconds=checkpoint.took,
        until=values.maybe_stamp(checkpoint.until),
        started_at=values.maybe_stamp(checkpoint.started_at),
        ended_at=values.maybe_stamp(checkpoint.ended_at),
    )


def checkpoint_of(message: Any) -> Checkpoint:
    """Return the checkpoint of a message."""
    return Checkpoint(
        name=message.name,
        nth=message.nth,
        seq=message.seq,
        kind=to.KINDS[message.kind],
        state=STATES[message.state],
        input_hash=message.input_hash,
        value=values.maybe(message, "value"),
        error=values.maybe(message, "error"),
        tries=message.tries,
        took=message.took_seconds,
        until=values.maybe_instant(message, "until"),
        started_at=values.maybe_instant(message, "started_at"),
        ended_at=values.maybe_instant(message, "ended_at"),
    )


def record_message(record: Record) -> pb.CheckpointRequest.Record:
    """Return a checkpoint to write as a message."""
    return pb.CheckpointRequest.Record(
        lease=to.lease_message(record.lease), checkpoint=checkpoint_message(record.checkpoint)
    )


def waiting_message(outcome: Waiting) -> pb.Waiting:
    """Return the outcome of a suspended run as a message."""
    wait = outcome.wait
    return pb.Waiting(
        wait=pb.Wait(
            kind=to.KIND_NUMBERS[wait.kind],
            key=wait.key,
            delay_seconds=wait.delay,
            until=values.maybe_stamp(wait.until),
            enough=wait.enough,
            too_many=wait.too_many,
        ),
        checkpoint=checkpoint_message(outcome.checkpoint),
    )


def waiting_of(message: Any) -> Waiting:
    """Return the outcome of a suspended run."""
    wait = message.wait
    return Waiting(
        Wait(
            kind=to.KINDS[wait.kind],
            key=wait.key,
            delay=values.maybe(wait, "delay_seconds"),
            until=values.maybe_instant(wait, "until"),
            enough=values.maybe(wait, "enough"),
            too_many=values.maybe(wait, "too_many"),
        ),
        checkpoint_of(message.checkpoint),
    )


def signal_message(signal: Signal) -> pb.SignalRequest:
    """Return a signal as a message."""
    return pb.SignalRequest(
        id=str(signal.id), job_id=str(signal.job_id), name=signal.name, payload=signal.payload
    )


def signal_of(message: Any) -> Signal:
    """Return the signal of a message."""
    return Signal(
        id=UUID(message.id),
        job_id=UUID(message.job_id),
        name=message.name,
        payload=message.payload,
    )


def job_outcome_message(ended: JobOutcome) -> pb.JobOutcome:
    """Return the status and outcome of a job as a message."""
    return pb.JobOutcome(
        job_id=str(ended.id),
        topic=ended.topic,
        status=to.STATUS_NUMBERS[ended.status],
        result=ended.result,
        error=ended.error,
    )


def job_outcome_of(message: Any) -> JobOutcome:
    """Return the status and outcome of a job in a message."""
    return JobOutcome(
        UUID(message.job_id),
        message.topic,
        to.STATUSES[message.status],
        values.maybe(message, "result"),
        values.maybe(message, "error"),
    )

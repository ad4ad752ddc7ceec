"""Values to messages and back: checkpoints, waits, signals, and the outcomes of other jobs."""

from __future__ import annotations

from typing import Any

from pulsed.handler import clean_text
from pulsed.model.outcome import Waiting
from pulsed.model.step import Checkpoint, StepState, Wait
from pulsed.model.workflow import JobOutcome, Record, Signal
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages.conversion import Conversion

STATE_NUMBERS: dict[StepState, Any] = {
    state: pb.StepState.Value(f"STEP_STATE_{state.value}") for state in StepState
}
STATES = {number: state for state, number in STATE_NUMBERS.items()}


_KIND = {"kind": (to.KIND_NUMBERS, to.KINDS)}

_checkpoint = Conversion(
    Checkpoint,
    pb.Checkpoint,
    {"took": "took_seconds"},
    enums={"state": (STATE_NUMBERS, STATES), **_KIND},
    # A message takes no lone surrogates, whatever a step has raised.
    sent={"error": "None if value.error is None else clean_text(value.error)"},
    read={"state": "state_values[message.state]", "tries": "message.tries"},
    scope={"clean_text": clean_text},
)
checkpoint_message = _checkpoint.message
"""Return a checkpoint as a message."""
checkpoint_of = _checkpoint.value
"""Return the checkpoint of a message."""

_wait = Conversion(Wait, pb.Wait, {"delay": "delay_seconds"}, enums=_KIND)

_signal = Conversion(Signal, pb.SignalRequest)
signal_message = _signal.message
"""Return a signal as a message."""
signal_of = _signal.value
"""Return the signal of a message."""

_job_outcome = Conversion(
    JobOutcome,
    pb.JobOutcome,
    {"id": "job_id"},
    enums={"status": (to.STATUS_NUMBERS, to.STATUSES)},
)
job_outcome_message = _job_outcome.message
"""Return the status and outcome of a job as a message."""
job_outcome_of = _job_outcome.value
"""Return the status and outcome of a job in a message."""


def record_message(record: Record) -> pb.CheckpointRequest.Record:
    """Return a checkpoint to write as a message."""
    return pb.CheckpointRequest.Record(
        lease=to.lease_message(record.lease), checkpoint=checkpoint_message(record.checkpoint)
    )


def waiting_message(outcome: Waiting) -> pb.Waiting:
    """Return the outcome of a suspended run as a message."""
    return pb.Waiting(
        wait=_wait.message(outcome.wait), checkpoint=checkpoint_message(outcome.checkpoint)
    )


def waiting_of(message: Any) -> Waiting:
    """Return the outcome of a suspended run."""
    return Waiting(_wait.value(message.wait), checkpoint_of(message.checkpoint))

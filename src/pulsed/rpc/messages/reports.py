"""Reports of how runs ended, to messages and back. Called once for every job."""

from __future__ import annotations

from typing import Any

from pulsed.handler import clean_text
from pulsed.model.outcome import (
    Cancelled,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Waiting,
)
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.jobs import lease_message
from pulsed.rpc.messages.values import maybe
from pulsed.rpc.messages.workflows import waiting_message, waiting_of


def report_message(report: Report) -> pb.Report:
    """Return how a run ended as a message."""
    message = _message(lease_message(report.lease), report.outcome)
    if report.is_child is not None:
        message.is_child = report.is_child
    return message


def _message(lease: pb.Lease, outcome: Outcome) -> pb.Report:
    if isinstance(outcome, Succeeded):  # nearly all of them
        succeeded = pb.Succeeded(
            result=outcome.result, forget_checkpoints=outcome.discard_checkpoints
        )
        return pb.Report(lease=lease, succeeded=succeeded)
    # A message takes no lone surrogates, and a report must get through whatever a handler raised.
    message = pb.Report(lease=lease)
    match outcome:
        case Failed(error, traceback, delay, final):
            message.failed.error = clean_text(error)
            message.failed.final = final
            if traceback is not None:
                message.failed.traceback = clean_text(traceback)
            if delay is not None:
                message.failed.delay_seconds = delay
        case Snoozed(delay):
            message.snoozed.delay_seconds = delay
            message.snoozed.SetInParent()
        case Cancelled(reason):
            message.cancelled.reason = clean_text(reason)
            message.cancelled.SetInParent()
        case Released():
            message.released.SetInParent()
        case Waiting():
            message.waiting.CopyFrom(waiting_message(outcome))
    return message


def outcome_of(message: Any) -> Outcome | None:
    """Return the outcome of a report; None if it has none, or an unknown one."""
    kind = message.WhichOneof("outcome")
    if kind == "succeeded":
        succeeded = message.succeeded
        return Succeeded(maybe(succeeded, "result"), succeeded.forget_checkpoints)
    match kind:
        case "failed":
            failed = message.failed
            return Failed(
                failed.error,
                maybe(failed, "traceback"),
                maybe(failed, "delay_seconds"),
                failed.final,
            )
        case "snoozed":
            return Snoozed(message.snoozed.delay_seconds)
        case "cancelled":
            reason = message.cancelled.reason
            return Cancelled(reason) if reason else Cancelled()
        case "released":
            return Released()
        case "waiting":
            return waiting_of(message.waiting)
    return None

"""Bulk operations to messages and back."""

from __future__ import annotations

from typing import Any

from pulsed.model.bulk import BulkAct, BulkKind, BulkRow, BulkState, Skip, SkipReason
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.conversion import Conversion
from pulsed.rpc.messages.jobs import STATUS_NUMBERS, STATUSES

KIND_NUMBERS: dict[BulkKind, Any] = {
    kind: pb.BulkKind.Value(f"BULK_KIND_{kind.value}") for kind in BulkKind
}
KINDS = {number: kind for kind, number in KIND_NUMBERS.items()}
STATE_NUMBERS: dict[BulkState, Any] = {
    state: pb.BulkState.Value(f"BULK_STATE_{state.value}") for state in BulkState
}
STATES = {number: state for state, number in STATE_NUMBERS.items()}
REASON_NUMBERS: dict[SkipReason, Any] = {
    reason: pb.ListBulkSkipsResponse.Reason.Value(f"REASON_{reason.value}") for reason in SkipReason
}
REASONS = {number: reason for reason, number in REASON_NUMBERS.items()}

_KIND = {"kind": (KIND_NUMBERS, KINDS)}

_act = Conversion(BulkAct, pb.BulkAct, {"delay": "delay_seconds"}, enums=_KIND)
act_message = _act.message
"""Return an act as a message."""
act_of = _act.value
"""Return the act of a message."""

_bulk = Conversion(
    BulkRow,
    pb.Bulk,
    {"is_at_least": "at_least"},
    enums={"state": (STATE_NUMBERS, STATES), **_KIND},
)
bulk_message = _bulk.message
"""Return an operation as a message."""
bulk_of = _bulk.value
"""Return the operation of a message."""

_skip = Conversion(
    Skip,
    pb.ListBulkSkipsResponse.Skip,
    enums={"status": (STATUS_NUMBERS, STATUSES), "reason": (REASON_NUMBERS, REASONS)},
)
skip_message = _skip.message
"""Return a skipped job as a message."""
skip_of = _skip.value
"""Return the skipped job of a message."""


def maybe_bulk_message(row: BulkRow | None) -> pb.MaybeBulk:
    """Return an operation, if there is one, as a message."""
    return pb.MaybeBulk(bulk=None if row is None else bulk_message(row))


def maybe_bulk_of(message: pb.MaybeBulk) -> BulkRow | None:
    """Return the operation of a message, if it has one."""
    return bulk_of(message.bulk) if message.HasField("bulk") else None

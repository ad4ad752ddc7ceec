"""Operators and entries of the audit log as messages, and back."""

from __future__ import annotations

from pulsed.model.audit import AuditEntry, AuditKey, Operator
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.conversion import Conversion


def operator_message(by: Operator | None) -> pb.Operator | None:
    """Return an operator as a message; the server adds the name that the token proves."""
    return None if by is None else pb.Operator(name=by.actor, detail=by.detail)


_key = Conversion(AuditKey, pb.AuditKey)
key_message = _key.message
"""Return a position in the log as a message."""
key_of = _key.value
"""Return the position of a message."""
_entry = Conversion(AuditEntry, pb.ListAuditLogResponse.Entry)
entry_message = _entry.message
"""Return an entry as a message."""
entry_of = _entry.value
"""Return the entry of a message."""

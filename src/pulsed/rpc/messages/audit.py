"""Operators and entries of the audit log as messages, and back."""

from __future__ import annotations

from typing import Any

from pulsed.model.audit import AuditEntry, Operator
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import values


def operator_message(by: Operator | None) -> pb.Operator | None:
    """Return an operator as a message; the server adds the name that the token proves."""
    return None if by is None else pb.Operator(name=by.actor, detail=by.detail)


def entry_message(entry: AuditEntry) -> pb.ListAuditLogResponse.Entry:
    """Return an entry as a message."""
    return pb.ListAuditLogResponse.Entry(
        at=values.stamp(entry.at),
        actor=entry.actor,
        role=entry.role,
        claimed=entry.claimed,
        act=entry.act,
        affected=entry.affected,
        detail=entry.detail,
    )


def entry_of(message: Any) -> AuditEntry:
    """Return the entry of a message."""
    return AuditEntry(
        at=values.instant(message.at),
        actor=message.actor,
        role=message.role,
        claimed=message.claimed,
        act=message.act,
        affected=message.affected,
        detail=message.detail,
    )

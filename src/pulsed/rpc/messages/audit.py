"""Operators and entries of the audit log as messages, and back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pulsed.model.audit import AuditEntry, AuditKey, Operator
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import values

_UNKNOWN = str(UUID(int=0))
"""The id of an entry that an older server sends without one."""


def operator_message(by: Operator | None) -> pb.Operator | None:
    """Return an operator as a message; the server adds the name that the token proves."""
    return None if by is None else pb.Operator(name=by.actor, detail=by.detail)


def key_message(key: AuditKey | None) -> pb.AuditKey | None:
    """Return a position in the log as a message."""
    return None if key is None else pb.AuditKey(at=values.stamp(key.at), id=str(key.id))


def key_of(request: Any) -> AuditKey | None:
    """Return the position that a request names."""
    if not request.HasField("before"):
        return None
    return AuditKey(values.instant(request.before.at), UUID(request.before.id))


def entry_message(entry: AuditEntry) -> pb.ListAuditLogResponse.Entry:
    """Return an entry as a message."""
    return pb.ListAuditLogResponse.Entry(
        id=str(entry.id),
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
        id=UUID(message.id or _UNKNOWN),
        at=values.instant(message.at),
        actor=message.actor,
        role=message.role,
        claimed=message.claimed,
        act=message.act,
        affected=message.affected,
        detail=message.detail,
    )

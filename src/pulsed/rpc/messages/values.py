"""The values that messages have in common: instants, ids, backoffs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp

from pulsed.errors import InvalidOption
from pulsed.model.backoff import Backoff
from pulsed.model.fields import BACKOFF_PARTS
from pulsed.model.timetable import EPOCH, to_micros
from pulsed.rpc.generated import pulse_pb2 as pb

MILLION = 1_000_000


def stamp(instant: datetime) -> Timestamp:
    """Return an instant as a message."""
    seconds, micros = divmod(to_micros(instant), MILLION)
    return Timestamp(seconds=seconds, nanos=micros * 1000)


def maybe_stamp(instant: datetime | None) -> Timestamp | None:
    """Return an instant as a message, if there is one."""
    return None if instant is None else stamp(instant)


def instant(message: Any) -> datetime:
    """Return the instant of a message, in UTC; raises ``InvalidOption`` beyond the calendar."""
    try:
        return EPOCH + timedelta(microseconds=message.seconds * MILLION + message.nanos // 1000)
    except OverflowError:
        raise InvalidOption(
            f"An instant of {message.seconds} seconds since 1970 is beyond the calendar."
        ) from None


def maybe_instant(message: Any, field: str) -> datetime | None:
    """Return the instant in a field, if it is set."""
    return instant(getattr(message, field)) if message.HasField(field) else None


def maybe(message: Any, field: str) -> Any:
    """Return an optional field, if it is set."""
    return getattr(message, field) if message.HasField(field) else None


def maybe_uuid(text: str) -> UUID | None:
    """Return the id in a field that may be empty."""
    return UUID(text) if text else None


def maybe_text(value: UUID | None) -> str:
    """Return an id as text; empty if there is none."""
    return "" if value is None else str(value)


def backoff_message(backoff: Backoff) -> pb.Backoff:
    """Return a backoff as a message."""
    return pb.Backoff(**{part: getattr(backoff, part) for part in BACKOFF_PARTS})


def backoff_of(message: Any) -> Backoff:
    """Return the backoff of a message; refuses one out of range."""
    return Backoff(**{part: getattr(message, part) for part in BACKOFF_PARTS})

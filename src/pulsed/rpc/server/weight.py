"""How much memory a request takes once it is parsed, estimated from its bytes.

Two bytes on the wire can become a message of hundreds of bytes in memory, so the size of a request
says little about what parsing it costs. This scan counts instead: every field, and the items that
become messages of their own. It stops at the first byte at which there are too many, so a request
that is refused costs a few milliseconds, whatever its size.

It bounds texts as well, in every field of every request, so that a new field is bounded before
anything else knows of it. Names are far shorter; ``checks`` bounds those.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from pulsed.handler.payload import MAX_TEXT
from pulsed.rpc.messages.errors import Refusal, invalid

CERTAINLY_LIGHT = 65_536
"""Bytes below which no request can weigh much: some 10 MiB at the worst."""
FREE_FIELDS = 2_000
"""Fields that any request may have; beyond them, ``SMALLEST_FIELD`` applies."""
SMALLEST_FIELD = 5
"""Bytes that fields must have on average, tag and length included."""
MOST_FIELDS = 1_000_000

CHECKED_AS_JSON = frozenset(
    {
        "NewJob.payload", "ScheduleSpec.payload", "SignalRequest.payload", "Succeeded.result",
        "SucceededColumns.results", "ProgressRequest.progress", "Checkpoint.value",
        "Emission.values",
    }
)  # fmt: skip
"""Texts that may be longer: ``checked_json`` bounds them, each with an error of its own."""
CUT_TO_LENGTH = frozenset(
    {
        "Failed.error", "Failed.traceback", "Cancelled.reason", "Checkpoint.error",
        "SetScheduleErrorRequest.reason",
    }
)  # fmt: skip
"""Texts whose middle is cut out: a report about finished work must get through."""
NOT_STORED = frozenset({"Schedule.spec_json", "Schedule.error"})
"""Texts of a schedule that comes back as it was read; the server drops them."""

ONE_BYTE = 0x7F
"""The largest number that a varint of one byte holds."""
LONGEST_SHIFT = 63

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Shape(NamedTuple):
    """What a field of a message becomes in memory."""

    is_item: bool
    """A repeated message: each becomes an object."""
    fields: dict[int, Shape]
    """The fields to check in a message; empty for all other types."""
    width: int = 0
    """Bytes of each number, for numbers that come packed; 0 for anything else."""
    name: str = ""
    """The name of a text field that is bounded."""
    passes: int = -1
    """Bytes up to which there is nothing to check."""


def check_weight(request: Any, data: bytes, most_items: int) -> None:
    """Refuse the bytes of a request that would take far more memory than they are long."""
    if len(data) > CERTAINLY_LIGHT:
        scan = _Scan(data, most_items)
        try:
            scan.message(0, len(data), _fields(request.DESCRIPTOR))
        except IndexError:
            raise invalid(f"{request.DESCRIPTOR.name} ends in the middle of a field.") from None


class _Scan:
    def __init__(self, data: bytes, most_items: int) -> None:
        self._data = data
        self._most_items = most_items
        self._items = 0
        self._seen = 0

    def message(self, at: int, end: int, fields: dict[int, Shape]) -> None:
        """Count what is in a message, and in the messages in it.

        Runs once for every field of a request; numbers of one byte are read in place.
        """
        data = self._data
        while at < end:
            self._seen += 1
            if self._seen > FREE_FIELDS:
                self._check(at)
            tag = data[at]
            at += 1
            if tag > ONE_BYTE:
                tag, at = _varint(data, at - 1)
            kind = tag & 7
            if kind == _BYTES:
                size = data[at]
                at += 1
                if size > ONE_BYTE:
                    size, at = _varint(data, at - 1)
                if size > end - at:
                    raise IndexError
                shape = fields.get(tag >> 3)
                if shape is not None and size > shape.passes:
                    self._content(at, size, shape)
                at += size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                raise invalid("The request has a field of a kind that the contract has not.")

    def _check(self, at: int) -> None:
        if self._seen > FREE_FIELDS + at // SMALLEST_FIELD or self._seen > MOST_FIELDS:
            raise _too_many("too many fields for its size")

    def _content(self, at: int, size: int, shape: Shape) -> None:
        if shape.name:
            raise invalid(
                f"{shape.name} has {size:,} bytes, and a text of a request has at most "
                f"{shape.passes:,}."
            )
        if shape.is_item:
            self._items += 1
            if self._items > self._most_items:
                raise _too_many(f"more than {self._most_items:,} items")
        if shape.width:
            self._seen += size // shape.width
            self._check(at + size)
        elif shape.fields:
            self.message(at, at + size, shape.fields)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & ONE_BYTE) << shift
        if byte <= ONE_BYTE:
            return value, at
        shift += 7
        if shift > LONGEST_SHIFT:
            raise IndexError


@cache
def _fields(descriptor: Descriptor) -> dict[int, Shape]:
    return {field.number: shape for field in descriptor.fields if (shape := _shape(field))}


def _shape(field: FieldDescriptor) -> Shape | None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        is_map = field.message_type.GetOptions().map_entry
        return Shape(field.is_repeated and not is_map, _fields(field.message_type))
    if field.type == FieldDescriptor.TYPE_STRING:
        name = f"{field.containing_type.name}.{field.name}"
        if name in CHECKED_AS_JSON | CUT_TO_LENGTH | NOT_STORED:
            return None
        return Shape(is_item=False, fields={}, name=name, passes=MAX_TEXT)
    if not field.is_repeated or field.type == FieldDescriptor.TYPE_BYTES:
        return None
    return Shape(is_item=False, fields={}, width=_width(field))


def _width(field: FieldDescriptor) -> int:
    fixed = field.type in (
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED64,
        FieldDescriptor.TYPE_DOUBLE,
    )
    return 8 if fixed else 1


def _too_many(what: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"This request has {what}. Send several smaller ones."
    )


def parsed(kind: Any, data: bytes) -> Any:
    """Return the message of these bytes, whose weight was checked; or refuse them."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid(f"This is no {kind.DESCRIPTOR.name}: {error}.") from None

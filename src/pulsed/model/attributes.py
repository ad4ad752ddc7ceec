"""The attributes of a struct, read from its annotations, in the terms of the field table."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

import msgspec

from pulsed.model.backoff import Backoff
from pulsed.model.fields import Kind


class Attribute(NamedTuple):
    """An attribute of a struct."""

    kind: Kind | None
    """None if it has parts of its own."""
    is_optional: bool
    """Whether None is one of its values."""
    default: Any
    """``msgspec.NODEFAULT`` if it has none."""
    enum: type[Enum] | None


def attributes(struct: type[msgspec.Struct]) -> dict[str, Attribute]:
    """Return the attributes of a struct by name, in the order of its arguments."""
    return {
        field.name: _attribute(field.type, field.default)
        for field in msgspec.structs.fields(struct)
    }


def _attribute(annotation: Any, default: Any) -> Attribute:
    is_union = get_origin(annotation) in (Union, UnionType)
    members = get_args(annotation) if is_union else (annotation,)
    [value] = (each for each in members if each is not NoneType)
    optional = NoneType in members
    if isinstance(value, type) and issubclass(value, Enum):
        return Attribute(Kind.ENUM, optional, default, value)
    kind = _KINDS.get(get_origin(value) or value)
    return Attribute(kind, optional, default, None)


_KINDS = {
    str: Kind.TEXT,
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    bool: Kind.FLAG,
    UUID: Kind.UUID,
    datetime: Kind.INSTANT,
    Backoff: Kind.BACKOFF,
    dict: Kind.HEADERS,
    tuple: Kind.TEXTS,
}

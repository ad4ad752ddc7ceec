"""The attributes of a value, read from its annotations, in the terms of the field table."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from inspect import signature
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec import NODEFAULT

from pulsed.model.backoff import Backoff
from pulsed.model.fields import Kind


class Attribute(NamedTuple):
    """An attribute of a struct, a dataclass or a named tuple."""

    kind: Kind | None
    """None if it has parts of its own."""
    is_optional: bool
    """Whether None is one of its values."""
    default: Any
    """``NODEFAULT`` if it has none."""
    enum: type[Enum] | None


def attributes(of: type) -> dict[str, Attribute]:
    """Return the attributes of a class by name, in the order of its arguments."""
    if issubclass(of, msgspec.Struct):
        fields = msgspec.structs.fields(of)
        return {field.name: _attribute(field.type, field.default) for field in fields}
    hints = get_type_hints(of)
    return {
        name: _attribute(hints[name], NODEFAULT if given.default is given.empty else given.default)
        for name, given in signature(of).parameters.items()
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

"""Checks that a handler receives its arguments as they were passed.

JSON has few types. A type hint restores most of the others, but not all: a subclass comes back as
its base, bytes in a list of strings as base64, a field that is not written as its default. So the
arguments that a caller passes are compared with those that the worker will decode: equal and of the
same type at every depth (``difference``). Plain JSON may stand for objects, if it comes from
elsewhere or by a topic's name; then decoding may drop none of it (``left_out``).

Data of exact built-in types, which most payloads are, is compared in C.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator
from datetime import datetime, time
from decimal import Decimal
from itertools import chain, zip_longest
from types import NoneType
from typing import Any, NamedTuple

import msgspec

from pulsed.handler.payload import ENCODER, is_model

EXACT = frozenset({str, int, float, bool, NoneType})
"""Scalars that a JSON round trip leaves unchanged."""

_MARSHAL_VERSION = 2
"""The last version that writes equal data as equal bytes: later ones refer back to what they have
written, which depends on how often an object is used elsewhere."""


class _Missing:
    """Stands for a missing value."""


_MISSING = _Missing()


class Difference(NamedTuple):
    """The first place where the decoded value differs from the one sent."""

    path: str
    sent: Any
    arrived: Any

    @property
    def problem(self) -> str:
        """The problem, for an error message."""
        if self.arrived is _MISSING or self.sent is _MISSING:
            return "it would not arrive"
        sent, arrived = _named(type(self.sent)), _named(type(self.arrived))
        if sent != arrived:
            return f"expected `{arrived}`, got `{sent}`, which would not arrive as it is"
        return f"{_short(self.sent)} would arrive as {_short(self.arrived)}"


def difference(path: str, sent: Any, arrived: Any) -> Difference | None:
    """Return where ``arrived`` differs from ``sent``; None if it does nowhere."""
    kind = type(sent)
    if kind is type(arrived) and (kind in EXACT or is_same_plain(sent, arrived)):
        return None
    return next(_differences(path, sent, arrived), None)


def is_same_plain(one: Any, other: Any) -> bool:
    """Whether both are the same data, and of exact built-in types only."""
    try:
        return marshal.dumps(one, _MARSHAL_VERSION) == marshal.dumps(other, _MARSHAL_VERSION)
    except ValueError:
        return False


def _differences(path: str, sent: Any, arrived: Any) -> Iterator[Difference]:
    kind = type(sent)
    if kind is not type(arrived):
        if not _is_number_as_float(sent, arrived):
            yield Difference(path, sent, arrived)
    elif issubclass(kind, dict):  # JSON keeps the order
        nothing = _MISSING, _MISSING
        for (key, value), other in zip_longest(sent.items(), arrived.items(), fillvalue=nothing):
            yield from _differences(f"{path}.{key}", key, other[0])
            yield from _differences(f"{path}.{key}", value, other[1])
    elif issubclass(kind, list | tuple):
        for index, (one, other) in enumerate(zip_longest(sent, arrived, fillvalue=_MISSING)):
            yield from _differences(f"{path}[{index}]", one, other)
    elif issubclass(kind, set | frozenset):
        found = {element: element for element in arrived}
        for element in sent:
            yield from _differences(path, element, found.get(element, _MISSING))
    elif (names := _fields(kind)) is not None:
        for name, one, other in chain(_attributes(names, sent, arrived), _extra(sent, arrived)):
            yield from _differences(f"{path}.{name}", one, other)
    elif not _is_same_leaf(sent, arrived):
        yield Difference(path, sent, arrived)


def _is_number_as_float(sent: Any, arrived: Any) -> bool:
    """Whether an ``int`` arrives as an equal ``float``: a ``float`` hint accepts an ``int``."""
    return type(sent) is int and type(arrived) is float and sent == arrived


def _is_same_leaf(sent: Any, arrived: Any) -> bool:
    if isinstance(sent, datetime | time):
        return _is_same_time(sent, arrived)
    if isinstance(sent, Decimal):  # NaN is not equal to itself
        return bool(sent.as_tuple() == arrived.as_tuple())
    if sent == arrived:
        return True
    try:
        return ENCODER.encode(sent) == ENCODER.encode(arrived)
    except TypeError:  # a private attribute that is no data, like a lock
        return True


def _is_same_time(sent: datetime | time, arrived: Any) -> bool:
    """Whether both have the same wall time and the same offset.

    ``==`` would not do: it takes a time of day in a zone for a naive one, and a datetime in a
    repeated hour as different from all others.
    """
    offset = sent.utcoffset()
    return (
        sent.replace(tzinfo=None) == arrived.replace(tzinfo=None)
        and (sent.tzinfo is None) is (arrived.tzinfo is None)
        and (offset == arrived.utcoffset())
        and (sent.fold == arrived.fold or offset is not None)
    )


def left_out(path: str, plain: Any, arrived: Any) -> str | None:
    """Return the path of a value in plain JSON that decoding has dropped; None if there is none."""
    return next(_left_out(path, plain, arrived), None)


def _left_out(path: str, plain: Any, arrived: Any) -> Iterator[str]:
    if type(plain) is dict:
        for (key, value), other in zip(plain.items(), _takers(plain, arrived), strict=False):
            if other is _MISSING:
                yield f"{path}.{key}"
            else:
                yield from _left_out(f"{path}.{key}", value, other)
    elif type(plain) is list:
        takers = _elements(arrived)
        for index, value in enumerate(plain):
            other = next(takers, _MISSING)
            if other is not _MISSING:
                yield from _left_out(f"{path}[{index}]", value, other)
            elif isinstance(arrived, msgspec.Struct):
                yield f"{path}[{index}]"


def _takers(plain: dict[str, Any], arrived: Any) -> Iterable[Any]:
    """Return the decoded counterpart of each value of a JSON object."""
    kind = type(arrived)
    if isinstance(arrived, dict):
        if all(type(key) is str for key in arrived):
            return [arrived.get(key, _MISSING) for key in plain]
        return arrived.values()  # JSON keeps the order
    if (names := _names_in_json(kind)) is None:
        return ()
    if is_model(kind):
        names |= dict.fromkeys(arrived.model_extra or (), "")
    return [getattr(arrived, names[key], None) if key in names else _MISSING for key in plain]


def _elements(arrived: Any) -> Iterator[Any]:
    """Return the decoded counterpart of each element of a JSON array; none for an unordered set."""
    if isinstance(arrived, list | tuple):
        return iter(arrived)
    if isinstance(arrived, msgspec.Struct):
        return (getattr(arrived, name) for name in arrived.__struct_fields__)
    return iter(())


# -- objects --------------------------------------------------------------------------------------


def has_fields(kind: Any) -> bool:
    """Whether it is a class that decodes some keys of a JSON object and ignores the others."""
    return isinstance(kind, type) and _fields(kind) is not None


def _fields(kind: Any) -> list[str] | None:
    """Return the names of an object's attributes; None if it is no such object."""
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    if is_model(kind):
        return list(kind.model_fields)
    if hasattr(kind, "__dataclass_fields__"):
        # Where one is used it is loaded; where none is, that would take a millisecond.
        import dataclasses  # noqa: PLC0415

        return [field.name for field in dataclasses.fields(kind)]
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [each.name for each in attributes]


def _attributes(names: Iterable[str], sent: Any, arrived: Any) -> Iterator[tuple[str, Any, Any]]:
    for name in names:
        yield name, getattr(sent, name, _MISSING), getattr(arrived, name, _MISSING)


def _extra(sent: Any, arrived: Any) -> Iterator[tuple[str, Any, Any]]:
    """Return what a pydantic model has besides its fields."""
    if is_model(type(sent)):
        for more in ("__pydantic_extra__", "__pydantic_private__"):
            one, other = getattr(sent, more) or {}, getattr(arrived, more) or {}
            for name in one | other:
                yield name, one.get(name, _MISSING), other.get(name, _MISSING)


def _names_in_json(kind: Any) -> dict[str, str] | None:
    """Return an object's attributes by their keys in JSON."""
    if issubclass(kind, msgspec.Struct):
        names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        tag = kind.__struct_config__.tag_field
        return names if tag is None else {tag: ""} | names
    if is_model(kind):
        return _aliases(kind)
    fields = _fields(kind)
    return None if fields is None else {name: name for name in fields}


def _aliases(model: Any) -> dict[str, str]:
    """Return a model's fields by all keys that they may be decoded from.

    A field that is decoded from a nested path is not compared.
    """
    names: dict[str, str] = {}
    for name, field in model.model_fields.items():
        names[name] = name
        for alias in (field.alias, field.validation_alias):
            for choice in getattr(alias, "choices", (alias,)):
                first, *deeper = getattr(choice, "path", (choice,))
                if isinstance(first, str):
                    names[first] = "" if deeper else name
    return names


def _named(kind: type) -> str:
    prefix = "" if kind.__module__ in ("builtins", "datetime") else f"{kind.__module__}."
    return prefix + kind.__qualname__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:99] + "…"

"""Values to messages and back, by functions that are compiled from a class's annotations.

A message per job is a large part of a server's cost, so these run as fast as hand-written code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from pulsed.compiled import compiled
from pulsed.model.attributes import Attribute, attributes
from pulsed.model.fields import Kind
from pulsed.rpc.messages.values import backoff_message, backoff_of, instant, stamp

S = TypeVar("S")
M = TypeVar("M")

INDENT = "\n    "
LIST = ",\n        "

_SENT: dict[Kind | None, str] = {
    Kind.UUID: "str({value})",
    Kind.INSTANT: "stamp({value})",
    Kind.ENUM: "{name}_numbers[{value}]",
    Kind.BACKOFF: "backoff_message({value})",
}
"""The expression that converts a value of another type in messages, by kind."""

_READ: dict[Kind | None, str] = {
    Kind.UUID: "UUID({value})",
    Kind.INSTANT: "instant({value})",
    Kind.ENUM: "{name}_values[{value}]",
    Kind.BACKOFF: "backoff_of({value})",
    Kind.HEADERS: "dict({value})",
    Kind.TEXTS: "tuple({value})",
}

_SET: dict[Kind | None, str] = {
    Kind.INSTANT: "message.{field}.CopyFrom({sent})",
    Kind.BACKOFF: "message.{field}.CopyFrom({sent})",
    Kind.HEADERS: "message.{field}.update({sent})",
    Kind.TEXTS: "message.{field}.extend({sent})",
}
"""The statement that sets a field which cannot be assigned to, by kind."""

_MESSAGES = (Kind.INSTANT, Kind.BACKOFF)
"""Kinds that are messages of their own."""

_WITHOUT_PRESENCE = (Kind.UUID, Kind.ENUM, Kind.FLAG, Kind.HEADERS, Kind.TEXTS)
"""Kinds without field presence: empty, 0 or false means left out."""


class Conversion(Generic[S, M]):
    """Translates a struct, a dataclass or a named tuple into a message and back.

    ``names`` maps an attribute to its field, where the names differ. ``enums`` maps an attribute
    that is an enum to the numbers of its values, and the values of the numbers. ``sent`` maps a
    field to an expression over ``value``; ``read`` maps an attribute to one over
    ``message`` and ``given``, the further arguments of reading.
    """

    def __init__(
        self,
        struct: type[S],
        message: type[M],
        names: Mapping[str, str] | None = None,
        *,
        enums: Mapping[str, tuple[Mapping[Any, Any], Mapping[Any, Any]]] | None = None,
        sent: Mapping[str, str] | None = None,
        read: Mapping[str, str] | None = None,
        given: tuple[str, ...] = (),
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        self._struct = struct
        self._attributes = attributes(struct)
        self._names = names or {}
        self._sent = sent or {}
        self._read = read or {}
        self._given = given
        used = {"struct": struct, "message_type": message, "UUID": UUID, "instant": instant}
        used |= {"stamp": stamp, "backoff_message": backoff_message, "backoff_of": backoff_of}
        used |= scope or {}
        for name, (numbers, values) in (enums or {}).items():
            used |= {f"{name}_numbers": numbers, f"{name}_values": values}
        for name, attribute in self._attributes.items():
            used[f"{name}_default"] = attribute.default
        self.message: Callable[[S], M] = compiled(self.sending(), used)
        """Return a value as a message."""
        self.value: Callable[..., S] = compiled(self.reading(), used)
        """Return the value of a message."""

    def sending(self) -> str:
        """Return the source of the function that builds a message."""
        given, later = [f"{field}={made}" for field, made in self._sent.items()], []
        for name, field, attribute in self._plain():
            if field in self._sent:
                continue
            if attribute.is_optional or attribute.kind in (Kind.HEADERS, Kind.TEXTS):
                later.append(_setting(name, field, attribute))
            else:
                given.append(f"{field}={_converted(_SENT, attribute, name, f'value.{name}')}")
        return f"""def message_of(value):
    message = message_type({LIST.join(given)})
    {INDENT.join([*later, "return message"])}
"""

    def reading(self) -> str:
        """Return the source of the function that reads a message."""
        made = {name: _reading(name, field, kind) for name, field, kind in self._plain()}
        made.update(self._read)
        return f"""def value_of({", ".join(("message", *self._given))}):
    return struct({LIST.join(f"{name}={value}" for name, value in made.items())})
"""

    def _plain(self) -> Iterator[tuple[str, str, Attribute]]:
        """Yield each attribute that a message can carry, with its field there."""
        for name, attribute in self._attributes.items():
            if attribute.kind is not None:
                yield name, self._names.get(name, name), attribute


def _setting(name: str, field: str, attribute: Attribute) -> str:
    """Return the statement that sets a field if the attribute has a value."""
    is_there = "" if attribute.kind in (Kind.HEADERS, Kind.TEXTS) else " is not None"
    sent = _converted(_SENT, attribute, name, "found")
    how = _SET.get(attribute.kind, "message.{field} = {sent}")
    return f"if (found := value.{name}){is_there}: {how.format(field=field, sent=sent)}"


def _reading(name: str, field: str, attribute: Attribute) -> str:
    """Return the expression that reads a field; one that was left out becomes the default."""
    read = _converted(_READ, attribute, name, f"message.{field}")
    if attribute.is_optional:
        default = "None"
    elif attribute.default and attribute.default is not msgspec.NODEFAULT:
        default = f"{name}_default"
    else:
        return read
    has_presence = attribute.is_optional and attribute.kind not in _WITHOUT_PRESENCE
    if has_presence or attribute.kind in _MESSAGES:
        return f"{read} if message.HasField({field!r}) else {default}"
    return f"{read} if message.{field} else {default}"


def _converted(how: Mapping[Kind | None, str], attribute: Attribute, name: str, value: str) -> str:
    return how.get(attribute.kind, "{value}").format(name=name, value=value)

"""The form for a new job: fields from the handler's types, and what was typed into them. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect as types

from pulsed.handler import Handler
from pulsed.handler.codec import Parameter

PREFIX = "argument."
"""Of the names of the form's fields, so that an argument may be named like an option."""


class ArgumentField(NamedTuple):
    """A field of the form."""

    name: str
    kind: str
    """How it is typed: ``text``, ``number``, ``choice``, ``date``, ``instant`` or ``json``."""
    read: Callable[[str], Any]
    is_required: bool
    is_nullable: bool = False
    choices: Sequence[str] = ()
    placeholder: str = ""
    """What is taken if it stays empty."""

    @property
    def field(self) -> str:
        """Its name in the form."""
        return PREFIX + self.name

    @property
    def may_be_empty(self) -> bool:
        """Whether an empty field means something."""
        return not self.is_required or self.is_nullable or self.kind == "text"


class Typed(NamedTuple):
    """What the fields came to."""

    arguments: dict[str, Any]
    problems: dict[str, str]
    """For each argument that could not be read, why."""


def fields_of(handler: Handler[Any]) -> list[ArgumentField]:
    """Return a field for each parameter of a handler."""
    return [_field(parameter) for parameter in handler.parameters]


def typed(fields: Sequence[ArgumentField], form: Mapping[str, Sequence[str]]) -> Typed:
    """Return the arguments that were typed into the fields."""
    arguments: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for field in fields:
        text = form.get(field.field, [""])[0]
        if not text.strip() and not field.is_required:
            continue
        if not text.strip() and field.is_nullable:
            arguments[field.name] = None
            continue
        try:
            arguments[field.name] = field.read(text)
        except ValueError as error:
            problems[field.name] = str(error)
    return Typed(arguments, problems)


def _field(parameter: Parameter) -> ArgumentField:
    kind, is_nullable = _without_none(types.type_info(parameter.hint))
    how, read, choices = _way(kind)
    return ArgumentField(
        parameter.name,
        how,
        read,
        parameter.is_required,
        is_nullable,
        choices,
        "" if parameter.is_required else _default(parameter.default),
    )


def _without_none(kind: types.Type) -> tuple[types.Type, bool]:
    """Return the type in an optional one, and whether it is one."""
    if isinstance(kind, types.UnionType):
        others = [each for each in kind.types if not isinstance(each, types.NoneType)]
        if len(others) == 1 and len(kind.types) > 1:
            return others[0], True
    return kind, False


def _way(kind: types.Type) -> tuple[str, Callable[[str], Any], Sequence[str]]:
    """Return how a value of a type is typed and read, and what there is to choose from."""
    match kind:
        case types.StrType():
            return "text", str, ()
        case types.IntType():
            return "number", _integer, ()
        case types.FloatType():
            return "number", _float, ()
        case types.BoolType():
            return "choice", _chosen({"true": True, "false": False}), ("true", "false")
        case types.EnumType(cls=cls):
            values = {str(each.value): each.value for each in cls}
            return "choice", _chosen(values), tuple(values)
        case types.LiteralType(values=literals):
            values = {str(each): each for each in literals}
            return "choice", _chosen(values), tuple(values)
        case types.DateType():
            return "date", str.strip, ()
        case types.DateTimeType():
            return "instant", str.strip, ()
        case _:
            return "json", read_json, ()


def _integer(text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no whole number.") from None


def _float(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no number.") from None


def _chosen(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(f"Choose one of {', '.join(values)}.")
        return values[text]

    return read


def read_json(text: str) -> Any:
    """Return a value that was typed as JSON."""
    if not text.strip():
        raise ValueError("Write a value as JSON.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"This is no JSON: {error}.") from None


def _default(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()[:80]
    except (TypeError, ValueError, NotImplementedError):
        return ""

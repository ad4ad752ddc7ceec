"""Encodes and decodes the arguments and the result of one function as JSON.

A payload is an object of named arguments. It is decoded into a struct made from the function's type
hints, with a field for each parameter: one pass, and an unknown key, a missing key or a wrong type
is an error that names it. The producer decodes what it has encoded with that same decoder, so that
a wrong argument fails where it was passed and not in a worker an hour later.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from pulsed.compiled import compiled
from pulsed.errors import InvalidArguments, InvalidHandler, InvalidPayload
from pulsed.handler.arrival import EXACT, difference, has_fields, is_same_plain, left_out
from pulsed.handler.envelope import readable
from pulsed.handler.options import did_you_mean
from pulsed.handler.payload import (
    encode_cleaned,
    encode_payload,
    encode_plain,
    from_plain,
    is_model,
)

CHECKED_TOGETHER = 500
"""Calls whose arguments are checked at once."""
_NO_KEYWORDS: Mapping[str, Any] = {}

_TYPE_TREE = (msgspec.inspect.Type, msgspec.inspect.Field)
_PATH = r"(?s)^(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?$"


class HandlerContext:
    """The base class of the context that a handler may take as its first parameter."""


class Parameter(NamedTuple):
    """A parameter of a function that a payload has a value for."""

    name: str
    hint: Any
    is_required: bool
    default: Any = None


class Codec:
    """The signature of a function, ready to bind, encode and decode."""

    def __init__(self, topic: str, function: Callable[..., Any]) -> None:
        self.topic = topic
        self._payload = f"The payload of {topic!r}"
        hints = resolved_hints(topic, function)
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_context = bool(parameters) and is_context(hints[parameters[0].name])
        if self.takes_context:
            parameters = parameters[1:]
        _refuse_late_context(topic, parameters, hints)

        self.parameters = [
            Parameter(p.name, hints[p.name], p.default is p.empty, p.default) for p in parameters
        ]
        self._hints = {parameter.name: hints[parameter.name] for parameter in parameters}
        self._positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self._all_by_position = (
            len(parameters) if len(self._positional) == len(parameters) else None
        )
        """How many arguments there are, if all can be given by position."""
        self._required = [p.name for p in parameters if p.default is p.empty]
        struct = self._arguments_struct()
        self._arguments = msgspec.json.Decoder(struct, dec_hook=from_plain)
        self._by_name = self._naming()
        self._has_objects = any(map(_takes_objects, self._hints.values()))
        self._result_name = f"The result of {topic!r}"
        self._result = decoder_for(topic, "its result", hints["return"])

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the payload of a call; raises if the arguments do not fit the parameters."""
        if kwargs or len(args) != self._all_by_position:
            return self._encode_named(self.bind(args, kwargs))
        payload = encode_payload(self._payload, self._call(*args))
        try:
            arrived = self._arguments.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unreadable(payload, error) from error
        for name, sent, value in zip(self._positional, args, astuple(arrived), strict=True):
            kind = type(sent)
            if kind is not type(value) or kind not in EXACT:
                self._refuse_different(name, sent, value)
        return payload

    def _encode_named(self, named: Mapping[str, Any]) -> str:
        """Return the payload of a call that names some of its arguments, or leaves some out."""
        payload = encode_payload(self._payload, named)
        arrived = self._arguments_in(payload)
        for name, value in named.items():
            kind = type(value)
            if kind is not type(arrived[name]) or kind not in EXACT:
                self._refuse_different(name, value, arrived[name])
        return payload

    def encode_many(self, calls: Sequence[tuple[Any, ...]]) -> list[str]:
        """Return the payloads of calls by position, as ``encode`` does, in a third of the time.

        Plain data that arrives unchanged is checked in C, hundreds of calls at a time. Everything
        else is encoded one by one, so that an error names its argument.
        """
        payloads: list[str] = []
        while len(payloads) < len(calls):
            some = calls[len(payloads) : len(payloads) + CHECKED_TOGETHER]
            if (encoded := self._encoded_plain(some)) is None:
                rest = calls[len(payloads) :]
                return payloads + [self.encode(call, _NO_KEYWORDS) for call in rest]
            payloads += encoded
        return payloads

    def _encoded_plain(self, calls: Sequence[tuple[Any, ...]]) -> list[str] | None:
        """Return the payloads of calls with all arguments and plain data; None for others."""
        if self._has_objects or self._all_by_position is None:
            return None
        try:
            encoded = encode_plain(self._payload, list(starmap(self._call, calls)))
            if encoded is None:
                return None
            lines, payloads = encoded
            arrived = self._arguments.decode_lines(lines)
        except Exception:  # noqa: BLE001 - one by one, the call at fault is found
            return None
        return payloads if is_same_plain(list(calls), list(map(astuple, arrived))) else None

    @functools.cached_property
    def _call(self) -> type[msgspec.Struct]:
        """The arguments of a call by position: encoded like a dict of them, and made faster."""
        fields = [
            (f"f{index}", Any, msgspec.field(name=name))
            for index, name in enumerate(self._positional)
        ]
        return msgspec.defstruct("Call", fields, gc=False)

    def encode_json(self, arguments: Mapping[str, Any]) -> str:
        """Return the payload of named arguments, each plain JSON or of the type of its hint."""
        named = self.bind((), arguments)
        payload = encode_payload(self._payload, named)
        arrived = self.decode(payload)
        plain = msgspec.json.decode(payload)
        for name, value in named.items():
            if not is_same_plain(value, plain[name]):
                self._refuse_different(name, value, arrived[name])
        return payload

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, as a call of the function would bind them."""
        if len(args) > len(self._positional):
            raise InvalidArguments(
                f"{self.topic!r} takes {len(self._positional)} positional arguments "
                f"({', '.join(self._positional) or 'none'}), but {len(args)} were given."
            )
        named = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in named:
                raise self._misfit("it was given twice", name)
            if name not in self._hints:
                raise self._unknown(name)
            named[name] = value
        if missing := [name for name in self._required if name not in named]:
            raise InvalidArguments(
                f"{self.topic!r} needs {', '.join(map(repr, missing))}, which "
                f"{'was' if len(missing) == 1 else 'were'} not given."
            )
        return named

    def decode(self, payload: str) -> dict[str, Any]:
        """Return the arguments to call the function with; omitted defaults stay omitted."""
        arguments = self._arguments_in(payload)
        if self._has_objects:
            plain = msgspec.json.decode(payload)
            for name, value in arguments.items():
                if (path := left_out(name, plain[name], value)) is not None:
                    raise self._misfit("there is no such field", path)
        return arguments

    def _arguments_in(self, payload: str) -> dict[str, Any]:
        try:
            arguments = self._by_name(self._arguments.decode(payload))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unreadable(payload, error) from error
        if len(self._required) < len(arguments):
            unset = msgspec.UNSET
            return {name: value for name, value in arguments.items() if value is not unset}
        return arguments

    def _refuse_different(self, name: str, sent: Any, arrived: Any) -> None:
        if (found := difference(name, sent, arrived)) is not None:
            raise self._misfit(found.problem, found.path)

    def encode_result(self, value: Any) -> str:
        """Encode what the function returned."""
        if type(value) is types.CoroutineType:
            value.close()
            raise InvalidPayload(
                f"{self.topic!r} returned a coroutine instead of a result: a plain function wraps "
                "an async one. Make the wrapper `async def` and await inside it."
            )
        return encode_cleaned(self._result_name, value)

    def decode_result(self, text: str) -> Any:
        """Decode a result by the return hint, or as plain data if it does not fit the hint.

        Python does not enforce return hints either, and the job has succeeded: its result must
        not become unreadable.
        """
        return decode_or_plain(self._result, text)

    def _unreadable(self, payload: str, error: Exception) -> InvalidPayload | InvalidArguments:
        if not isinstance(error, msgspec.ValidationError):
            return InvalidPayload(f"{self._payload} is not valid JSON: {error}.")
        readable(self._payload, payload)
        return self._explained(error)

    def _explained(self, error: msgspec.ValidationError) -> InvalidArguments:
        match = re.match(_PATH, str(error))
        problem, path = (match["problem"], match["path"]) if match else (str(error), None)
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem)
        if unknown and not path:
            return self._unknown(unknown[1])
        return self._misfit(problem[:1].lower() + problem[1:], path)

    def _misfit(self, problem: str, path: str | None) -> InvalidArguments:
        where = f"argument {path!r}" if path else "the arguments"
        return InvalidArguments(f"{self.topic!r} cannot take {where}: {problem}.")

    def _unknown(self, name: str) -> InvalidArguments:
        return InvalidArguments(
            f"{self.topic!r} has no parameter {name!r}.{did_you_mean(name, self._hints)} "
            f"It takes: {', '.join(self._hints) or 'nothing'}."
        )

    def _arguments_struct(self) -> type[msgspec.Struct]:
        for name, hint in self._hints.items():
            decoder_for(self.topic, f"parameter {name!r}", hint)
        # Neutral field names, since a parameter may have a name that a struct forbids.
        fields = [
            (f"f{index}", hint, self._field(name))
            for index, (name, hint) in enumerate(self._hints.items())
        ]
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)

    def _naming(self) -> Callable[[Any], dict[str, Any]]:
        """Return the function that names the arguments in a decoded struct."""
        items = (f"{name!r}: struct.f{index}" for index, name in enumerate(self._hints))
        named: Callable[[Any], dict[str, Any]] = compiled(
            f"def arguments(struct):\n    return {{{', '.join(items)}}}\n", {}
        )
        return named

    def _field(self, name: str) -> Any:
        if name in self._required:
            return msgspec.field(name=name)
        return msgspec.field(name=name, default=msgspec.UNSET)


def resolved_hints(topic: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hint of every parameter and of ``return``; ``Any`` if there is none."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidHandler(
            f"The hints of {topic!r} name {error.name!r}, which {function.__module__} does not "
            f"have at run time{_used_by(function, error.name)}. Import or define it at the top of "
            "the module, not only under TYPE_CHECKING or inside a function."
        ) from error
    except Exception as error:
        raise InvalidHandler(
            f"The hints of {topic!r} cannot be evaluated: {type(error).__name__}: {error}."
        ) from error
    names = [*inspect.signature(function).parameters, "return"]
    return {name: hints.get(name, Any) for name in names}


def is_context(hint: Any) -> bool:
    """Whether a parameter with this hint receives the run's context."""
    return isinstance(hint, type) and issubclass(hint, HandlerContext)


def _used_by(function: Callable[..., Any], name: str | None) -> str:
    hints = getattr(inspect.unwrap(function), "__annotations__", {})
    users = [
        "the result" if parameter == "return" else f"parameter {parameter!r}"
        for parameter, hint in hints.items()
        if isinstance(hint, str) and re.search(rf"\b{re.escape(name or '')}\b", hint)
    ]
    return f" (used by {', '.join(users)})" if users else ""


def _refuse_late_context(
    topic: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]
) -> None:
    for parameter in parameters:
        if is_context(hints[parameter.name]):
            raise InvalidHandler(
                f"{topic!r} takes its context as {parameter.name!r}, but only the first parameter "
                "can be the context. Move it to the front."
            )


def decode_or_plain(decoder: msgspec.json.Decoder[Any], text: str) -> Any:
    """Decode a value by its hint, or as plain data if it does not fit."""
    readable("The value", text)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        return msgspec.json.decode(text)


def decoder_for(topic: str, place: str, hint: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for a type hint; an error names the parameter if there can be none."""
    try:
        decoder = msgspec.json.Decoder(hint, dec_hook=from_plain)
        unknown = next(_foreign_types(msgspec.inspect.type_info(hint)), None)
    except (TypeError, NameError, ValueError) as error:
        raise InvalidHandler(
            f"{topic!r} cannot decode {place} of type {_shown(hint)} from JSON: {error}."
        ) from error
    if unknown is not None:
        raise InvalidHandler(
            f"{topic!r} cannot decode {place} of type {_shown(hint)} from JSON: "
            f"{_shown(unknown)} is not plain data. Use a dataclass, a msgspec struct, a pydantic "
            "model or built-in types."
        )
    return decoder


def _foreign_types(root: msgspec.inspect.Type) -> Iterator[type]:
    """Yield the classes in a hint that cannot be decoded from JSON."""
    for node in _nodes(root):
        if isinstance(node, msgspec.inspect.CustomType) and not _can_be_json(node.cls):
            yield node.cls


def _takes_objects(hint: Any) -> bool:
    """Whether a hint contains objects whose decoder ignores unknown keys."""
    return any(
        isinstance(node, msgspec.inspect.TypedDictType) or has_fields(getattr(node, "cls", None))
        for node in _nodes(msgspec.inspect.type_info(hint))
    )


def _nodes(root: msgspec.inspect.Type) -> Iterator[Any]:
    """Yield all types in a hint; a type may contain itself."""
    stack: list[Any] = [root]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if isinstance(node, tuple | list):
            stack.extend(node)
        elif isinstance(node, _TYPE_TREE) and id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(getattr(node, field) for field in node.__struct_fields__)


def _can_be_json(kind: Any) -> bool:
    """Whether decoded JSON can satisfy a class msgspec does not know: a model, or an ABC."""
    kind = typing.get_origin(kind) or kind
    return is_model(kind) or issubclass(list, kind) or issubclass(dict, kind)


def _shown(hint: Any) -> str:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return f"`{hint.__qualname__}`"
    return f"`{str(hint).replace('typing.', '')}`"

"""The value of a step: as it is stored, and as every run gets it back.

The first run, too, gets the decoded text and not the object itself, so that a replay cannot differ.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import msgspec

from pulsed.engine.workflow.calling import without_partial
from pulsed.errors import InvalidHandler
from pulsed.handler.codec import decode_or_plain, decoder_for
from pulsed.handler.payload import encode_cleaned

MOST_DECODERS = 1_000
"""Cached decoders. Functions defined in handlers have new type hints in every run."""

_decoders: dict[tuple[Any, Any], msgspec.json.Decoder[Any]] = {}


class ValueCodec(NamedTuple):
    """Encodes a function's return value, and decodes it by the function's return type hint."""

    name: str
    decoder: msgspec.json.Decoder[Any]

    def encode(self, value: Any) -> str:
        """Return the value as JSON, without characters that no database can store."""
        return encode_cleaned(f"The result of step {self.name!r}", value)

    def decode(self, text: str | None) -> Any:
        """Return the value, as plain data if it does not fit the hint."""
        return decode_or_plain(self.decoder, text or "null")


def codec_of(name: str, fn: Callable[..., Any]) -> ValueCodec:
    """Return the codec for a function's value; its decoder is built once for its code and hint."""
    written = _where_written(fn)
    hint = written if isinstance(written, type) else _return_hint(written)
    key = (getattr(written, "__code__", None), hint)
    try:
        decoder = _decoders.get(key)
    except TypeError:  # a hint that cannot be hashed
        return ValueCodec(name, _built(name, written, hint))
    if decoder is None:
        if len(_decoders) >= MOST_DECODERS:
            _decoders.clear()
        decoder = _decoders[key] = _built(name, written, hint)
    return ValueCodec(name, decoder)


def _built(name: str, written: Any, hint: Any) -> msgspec.json.Decoder[Any]:
    return decoder_for(name, "its result", _resolved(name, written, hint))


def _return_hint(function: Any) -> Any:
    return getattr(function, "__annotations__", {}).get("return", Any)


def _where_written(fn: Callable[..., Any]) -> Any:
    """Return the function that carries the hints, or the class whose instance is made."""
    inner = inspect.unwrap(without_partial(fn))
    if isinstance(inner, type) or inspect.isroutine(inner):
        return inner
    return type(inner).__call__


class _Hinted:
    """An object with one type hint, for ``get_type_hints``."""

    def __init__(self, hint: Any) -> None:
        self.__annotations__ = {"return": hint}


def _resolved(name: str, written: Any, hint: Any) -> Any:
    """Evaluate the return hint alone: those of parameters, as of a connection, may be unknown."""
    try:
        hints = typing.get_type_hints(
            _Hinted(hint), globalns=getattr(written, "__globals__", {}), include_extras=True
        )
    except Exception as error:
        raise InvalidHandler(
            f"The return hint of step {name!r} cannot be evaluated ({error}). "
            "Import or define what it names at the top of the module."
        ) from error
    resolved = hints["return"]
    if typing.get_origin(resolved) in (Coroutine, Awaitable):  # of a plain wrapper
        return typing.get_args(resolved)[-1]
    return resolved

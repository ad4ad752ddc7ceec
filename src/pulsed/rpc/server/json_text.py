"""JSON as it comes over the wire: validated as text, in linear time.

It is not decoded into objects: a megabyte of empty lists would become thirty megabytes, and take a
third of a second.
"""

from __future__ import annotations

import re

import msgspec

from pulsed.errors import InvalidPayload
from pulsed.handler.payload import (
    MAX_PAYLOAD,
    STRING,
    check_depth,
    check_size,
    check_values,
    has_escaped_nul,
    too_deep,
)

LARGE = 65_536
"""Bytes above which a refusal does not say where in a text the character is."""

_NUMBER = re.compile(rb"-?\d[\d.]*(?:[eE][+-]?\d+)?")
_LARGE_EXPONENT = re.compile(rb"[eE]\+?\d{3}")
_LONG_NUMBER = b"0" * 300
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_KINDS = {b"[": "a list", b'"': "a string", b"n": "null", b"t": "true", b"f": "false"}

_skip = msgspec.json.Decoder(msgspec.Raw).decode


def checked_json(what: str, text: str, *, is_object: bool = False, most: int = MAX_PAYLOAD) -> None:
    """Refuse what is not JSON that every database stores alike."""
    data = text.encode()
    if len(data) > most:
        check_size(what, data)
    try:
        _skip(data)
        check_depth(what, data)
        _check_numbers(data)
    except msgspec.DecodeError as error:
        raise InvalidPayload(f"{what} is not JSON: {error}.") from None
    except RecursionError:
        raise too_deep(what) from None
    if is_object:
        _check_object(what, data)
    if has_escaped_nul(data):
        _refuse_nul(what, data)


def _check_numbers(data: bytes) -> None:
    """Raise the decoder's error for a number that is too large.

    Only a text with a large exponent or with very many digits can contain one.
    """
    if not _LARGE_EXPONENT.search(data) and _LONG_NUMBER not in data.translate(_DIGITS):
        return
    for number in _NUMBER.findall(STRING.sub(b"", data)):
        if len(number) >= len(_LONG_NUMBER) or b"e" in number or b"E" in number:
            msgspec.json.decode(number)


def _check_object(what: str, data: bytes) -> None:
    first = data.lstrip()[:1]
    if first != b"{":
        raise InvalidPayload(
            f"{what} must be a JSON object with the handler's named arguments, "
            f"not {_KINDS.get(first, 'a number')}."
        )


def _refuse_nul(what: str, data: bytes) -> None:
    if len(data) <= LARGE:
        check_values(what, msgspec.json.decode(data))
    raise InvalidPayload(f"{what} contains a NUL character, which not every database can store.")

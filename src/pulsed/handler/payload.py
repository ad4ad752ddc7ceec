"""Checks what may be stored as JSON, before any database gets it.

The engines disagree about NUL, lone surrogates, NaN and deep nesting, so none of them is left to
decide: a payload is refused here, with one error for all. A result or an error text, on the other
hand, is cleaned, because a report about finished work must get through.

Every rule checks the encoded bytes first, which costs next to nothing; it walks the values only if
the bytes are suspicious.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from pulsed.errors import InvalidPayload

MAX_PAYLOAD = 1_048_576
"""The largest payload or result, in bytes of UTF-8 JSON."""

MOST_AT_ONCE = 4 * 1024 * 1024
"""Bytes of payloads that are checked together."""

MAX_DEPTH = 100
"""How deeply lists and objects may be nested in a payload or result."""

SHORT = 2 * MAX_DEPTH
"""Bytes of JSON that are within these limits whatever they are: a level takes two brackets."""

MAX_TEXT = 65_536
"""The longest error text or traceback that is kept, in bytes of UTF-8."""

REPLACEMENT = "\ufffd"

_ARRAYS = (list, tuple, set, frozenset)
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""NUL and lone surrogates, which not every database can store."""
_ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
"""A string in valid JSON. In other texts the search may take quadratic time."""
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]"))
_Place: TypeAlias = tuple[Any, ...]
"""Where a value is: (place of its container, step into it), and () for the outermost."""

_MASKED_SECRET = "**********"  # noqa: S105 - what pydantic writes in place of one


def encode_payload(what: str, value: Any) -> str:
    """Encode ``value`` as JSON that every engine stores alike, or refuse it."""
    try:
        data = ENCODER.encode(value)
    except UnicodeEncodeError:
        check_values(what, value)
        raise
    except RecursionError:
        raise too_deep(what) from None
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise InvalidPayload(f"{what} cannot be stored as JSON: {_sentence(error)}") from error
    if len(data) > SHORT:
        _check_long(what, data)
    text = data.decode()
    # NaN and infinity are encoded as null, or as these words where they are keys of an object.
    if "null" in text or r"\u0000" in text or 'nan":' in text or 'inf":' in text:
        check_values(what, value)
    return text


def encode_plain(what: str, values: Sequence[Any]) -> tuple[bytes, list[str]] | None:
    """Encode values as ``encode_payload`` does; None if one of them has to be checked by itself.

    Returns them as lines of JSON, which has no line ends of its own, and as the text of each.
    """
    lines = ENCODER.encode_lines(values)
    if len(lines) > MOST_AT_ONCE:
        return None
    if b"null" in lines or rb"\u0000" in lines or b'nan":' in lines or b'inf":' in lines:
        return None
    *texts, _ = lines.decode().split("\n")
    for text in texts:
        if len(text) > SHORT:
            _check_long(what, text.encode())
    return lines, texts


def encode_by_name(topic: str, payload: Mapping[str, Any]) -> str:
    """Encode the named arguments of a topic whose handler is not known here."""
    if not isinstance(payload, Mapping) or not all(isinstance(key, str) for key in payload):
        raise InvalidPayload(
            f"The payload of {topic!r} must map the names of the handler's parameters to their "
            f"values, like {{'to': 'ada'}}; this is {type(payload).__name__} {payload!r:.100}."
        )
    return encode_untyped(f"The payload of {topic!r}", dict(payload))


def encode_untyped(what: str, value: Any) -> str:
    """Encode data for a reader whose type hints are not known here, or that has none."""
    text = encode_payload(what, value)
    if ENCODER.encode(msgspec.json.decode(text)).decode() != text:
        import json  # noqa: PLC0415 - only if a key may be there twice

        json.loads(text, object_pairs_hook=functools.partial(_refuse_twins, what))
    return text


def _refuse_twins(what: str, items: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in items]
    for name in names:
        if names.count(name) > 1:
            raise InvalidPayload(
                f"{what} has two keys that are both {name!r} in JSON, where every key is a text. "
                "One of them would be lost."
            )


def encode_cleaned(what: str, value: Any) -> str:
    """Encode a result. What no engine can store is replaced; only shape and size may fail."""
    try:
        try:
            data = ENCODER.encode(value)
        except UnicodeEncodeError:
            data = ENCODER.encode(_cleaned(msgspec.to_builtins(value, enc_hook=to_plain)))
    except RecursionError:
        raise too_deep(what) from None
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise InvalidPayload(f"{what} cannot be stored as JSON: {_sentence(error)}") from error
    if rb"\u0000" in data:
        data = _ESCAPED_NUL.sub(rb"\1" + REPLACEMENT.encode(), data)
    if len(data) > SHORT:
        _check_long(what, data)
    return data.decode()


def _check_long(what: str, data: bytes) -> None:
    check_size(what, data)
    check_depth(what, data)


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """Make an error text storable: no NUL or surrogates, and its middle cut out if too long.

    The head of a traceback says where it began, the tail what went wrong; both are kept.
    """
    cleaned = UNSTORABLE.sub(REPLACEMENT, text)
    if len(cleaned) * 4 <= limit:
        return cleaned
    data = cleaned.encode()
    if len(data) <= limit:
        return cleaned
    mark = f"\n… {len(data) - limit:,} bytes and more left out …\n"
    half = max(0, limit - len(mark.encode())) // 2
    head, tail = data[:half], data[len(data) - half :]
    return head.decode(errors="ignore") + mark + tail.decode(errors="ignore")


def check_size(what: str, data: bytes) -> None:
    """Refuse JSON that is larger than ``MAX_PAYLOAD``."""
    if len(data) > MAX_PAYLOAD:
        raise InvalidPayload(
            f"{what} would take {len(data):,} bytes as JSON, and the limit is {MAX_PAYLOAD:,}. "
            "Store the data somewhere else and pass a reference to it."
        )


def check_depth(what: str, data: bytes) -> None:
    """Refuse valid JSON that is nested more than ``MAX_DEPTH`` levels deep.

    Pass only valid JSON: in other texts a string may not end, and the search for its end from every
    quote takes quadratic time.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    brackets = STRING.sub(b"", data).translate(_BRACKETS).translate(None, _NOT_BRACKETS)
    depth = 0
    for opened in brackets.split(b"]"):
        depth += len(opened)
        if depth > MAX_DEPTH:
            raise too_deep(what)
        depth -= 1


def has_escaped_nul(data: bytes) -> bool:
    """Whether a string in this JSON has a NUL character in it."""
    return rb"\u0000" in data and _ESCAPED_NUL.search(data) is not None


def check_values(what: str, value: Any) -> None:
    """Refuse NaN, infinity, NUL and lone surrogates at any depth."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=to_plain)
    except RecursionError:
        raise too_deep(what) from None
    if not _has_unstorable(plain):
        return
    for place, leaf in _leaves(plain):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise InvalidPayload(
                f"{what} contains {leaf!r}{_where(place)}, which JSON cannot express."
            )
        if isinstance(leaf, str) and (found := UNSTORABLE.search(leaf)):
            kind = "a NUL character" if found[0] == "\0" else "a lone surrogate"
            raise InvalidPayload(
                f"{what} contains {kind}{_where(place)}, which not every database can store. "
                "Remove it, or pass the value as bytes."
            )


def to_plain(value: Any) -> Any:
    """Return plain data for an object that msgspec does not know: a pydantic model."""
    if not is_model(type(value)):
        raise TypeError(
            f"{_name(type(value))} objects have no JSON form; pass a dataclass, a msgspec struct, "
            "a pydantic model or plain data."
        )
    # By alias and for a round trip, since the worker validates it again.
    plain = value.model_dump(mode="json", by_alias=True, round_trip=True)
    if _MASKED_SECRET in repr(plain):
        raise TypeError(
            f"a secret field of {_name(type(value))} would be stored as asterisks; "
            "let the handler fetch the secret."
        )
    return plain


def from_plain(kind: Any, value: Any) -> Any:
    """Turn decoded JSON into a type that msgspec does not know: a pydantic model."""
    if is_model(kind):
        try:
            # As JSON, so that also a strict model takes a date from a string.
            return kind.model_validate_json(ENCODER.encode(value))
        except ValueError as error:
            raise ValueError(_first_line(error)) from error
    return value


def is_model(kind: Any) -> bool:
    """Whether ``kind`` is a pydantic model; pydantic is not imported to find out."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


ENCODER = msgspec.json.Encoder(enc_hook=to_plain)


def _cleaned(plain: Any) -> Any:
    """Replace what cannot be stored in the strings of plain data."""
    if isinstance(plain, str):
        return UNSTORABLE.sub(REPLACEMENT, plain)
    if isinstance(plain, dict):
        return {_cleaned(key): _cleaned(value) for key, value in plain.items()}
    if isinstance(plain, _ARRAYS):
        return [_cleaned(item) for item in plain]
    return plain


def _has_unstorable(plain: Any) -> bool:
    """Whether anything must be refused; much faster than finding out where it is."""
    stack = [plain]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is str:
            if UNSTORABLE.search(value):
                return True
        elif kind is float:
            if not math.isfinite(value):
                return True
        elif kind is dict:
            stack.extend(value)
            stack.extend(value.values())
        elif kind in _ARRAYS:
            stack.extend(value)
    return False


def _leaves(plain: Any) -> Iterator[tuple[_Place, Any]]:
    """Yield every value of plain data that is not a container, and every key of an object."""
    stack: list[tuple[_Place, Any]] = [((), plain)]
    while stack:
        place, value = stack.pop()
        if isinstance(value, dict):
            yield from (((place, "a key"), key) for key in value)
            stack.extend(((place, f".{key}"), item) for key, item in value.items())
        elif isinstance(value, _ARRAYS):
            stack.extend(((place, index), item) for index, item in enumerate(value))
        else:
            yield place, value


def _where(place: _Place) -> str:
    """Return where a value is: `` at 'to[3].name'``, escaped, since the key may be the culprit."""
    steps = []
    while place:
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else step)
    if steps and steps[0] == "a key":
        return f" in a key of {_path(steps[1:])!a}" if steps[1:] else " in a key"
    return f" at {_path(steps)!a}" if steps else ""


def _path(steps: list[str]) -> str:
    return "".join(reversed(steps)).removeprefix(".")


def too_deep(what: str) -> InvalidPayload:
    """Return the error for data that is nested too deeply."""
    return InvalidPayload(
        f"{what} is nested more than {MAX_DEPTH} levels deep (or contains itself). "
        "Flatten it, or pass it as a string."
    )


def _first_line(error: ValueError) -> str:
    """Return a pydantic error, which takes a page, as one line."""
    problems: Any = getattr(error, "errors", list)()
    lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems]
    return "; ".join(line.removeprefix(": ") for line in lines) or str(error)


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith(".") else text + "."


def _name(kind: type) -> str:
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return prefix + kind.__qualname__

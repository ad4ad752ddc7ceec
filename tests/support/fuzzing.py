"""Hostile input: messages of any shape, texts of any kind, and where they are sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("PULSED_FUZZ_EXAMPLES", "0"))
"""How many a long run makes of each target; 0: a short one, the same every time."""

DEEPEST = 4
"""Messages inside of messages."""

HOSTILE = (
    *("", " ", "\x00", "\n", "\x1b[31m", "\u202e", "\ufffd", "\U0001f600", "é" * 300, "x" * 5_000),
    *("'; DROP TABLE pulse_jobs; --", "%", "_", "\\", '"', "../../etc/passwd", "<script>", "${x}"),
    *("null", "{}", "[]", '{"a":1}', '{"a":', "NaN", "1e999", "-0", "[" * 200, '"\\u0000"'),
    *(
        "0" * 400,
        "1" * 400,
        "true",
        "default",
        "t",
        "a,b",
        "a|b",
        "*",
        "-",
        ".",
        ":",
        "/",
        "?",
        "#",
    ),
    *("2026-11-17T09:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01", "PT1S", "90d", "-1", "1e309"),
    *("* * * * *", "0 0 30 2 *", "@daily", "every 5 minutes", "Europe/Berlin", "status:dead", "🂡"),
    "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69",
)
NUMBERS = (0, 1, -1, 2, 100, 10_000, 2**31 - 1, -(2**31), 2**53, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))

UNSIGNED = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)


def fuzzed(short: int) -> settings:
    """Return the settings of a target that has so many examples in a short run."""
    return settings(
        max_examples=EXAMPLES or short,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def texts(*known: str) -> st.SearchStrategy[str]:
    """Return texts: those that are known to mean something, hostile ones, and any."""
    some = st.sampled_from([*known, *HOSTILE])
    joined = st.lists(some, min_size=2, max_size=4).map(" ".join)
    return some | st.text(max_size=40) | joined


@st.composite
def messages(draw: Any, kind: Any, known: Sequence[str] = ()) -> Message:
    """Return messages of a kind, filled from its descriptor."""
    message: Message = kind()
    _fill(draw, message, texts(*known), DEEPEST)
    return message


def _fill(draw: Any, message: Message, text: st.SearchStrategy[str], depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not draw(st.integers(0, 2)):
            continue
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                _add(draw, message, field, text, depth)
        elif field.message_type is None:
            setattr(message, field.name, draw(_values(field, text)))
        elif depth:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill(draw, inner, text, depth - 1)


def _add(draw: Any, message: Message, field: Any, text: st.SearchStrategy[str], depth: int) -> None:
    items = getattr(message, field.name)
    if field.message_type is None:
        items.append(draw(_values(field, text)))
    elif field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        items[draw(_values(key, text))] = draw(_values(value, text))
    elif depth:
        _fill(draw, items.add(), text, depth - 1)


def _values(field: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            is_text = field.type == FieldDescriptor.TYPE_STRING
            return text.map(_encodable) if is_text else st.binary(max_size=50)
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return st.sampled_from(FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.sampled_from([0, 1, 2, 3, 7, 99])
    least, most = _range(field)
    return st.sampled_from([each for each in NUMBERS if least <= each <= most])


def _range(field: Any) -> tuple[int, int]:
    wide = field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
    bits = 64 if wide else 32
    return (0, 2**bits - 1) if field.type in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _encodable(text: str) -> str:
    """Return a text that a message takes: no lone surrogates."""
    return text.encode("utf-8", "replace").decode()

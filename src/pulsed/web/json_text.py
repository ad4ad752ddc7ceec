"""JSON as it is shown and edited: redacted, and with every digit of its numbers."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from pulsed.handler.envelope import is_envelope
from pulsed.web.redaction import HIDDEN, Redaction

LONGEST_SHOWN = 65_536
"""Characters of JSON that a page shows; what is longer has a page of its own."""
LONG_LINES = 24
"""Lines beyond which a text is folded."""


class JsonText(NamedTuple):
    """A JSON value for a page."""

    text: str | None
    """Indented; None if it is too long for a page."""
    size: int
    """Characters, as stored."""

    @property
    def is_long(self) -> bool:
        """Whether it is folded at first."""
        return self.text is not None and self.text.count("\n") > LONG_LINES


def shown(text: str | None, redaction: Redaction) -> JsonText | None:
    """Return stored JSON for a page."""
    if text is None:
        return None
    if is_envelope(text):
        return JsonText("encrypted: the app that has its codec can show it", len(text))
    if len(text) > LONGEST_SHOWN:
        return JsonText(None, len(text))
    return JsonText(pretty(text, redaction), len(text))


def pretty(text: str, redaction: Redaction) -> str:
    """Return stored JSON with line breaks, without what is hidden."""
    return _written(redaction.apply(_parsed(text)))


class NotJson(ValueError):
    """An edited text that cannot be stored as JSON; says why."""


def edited(text: str, original: str, redaction: Redaction) -> str:
    """Return the payload that a visitor made of ``original``.

    The visitor saw it redacted: what was left as it was is taken from the original.
    """
    try:
        value = _parsed(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"Line {error.lineno}, column {error.colno}: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise NotJson(f"This is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise NotJson("A payload is an object: the names of the arguments and their values.")
    before = _parsed(original)
    return _written(_restored(value, before, redaction.apply(before)), indent=0)


def _restored(value: Any, original: Any, shown: Any) -> Any:
    """Return an edited value with hidden parts put back where the visitor left them alone."""
    if value == shown:
        return original
    if isinstance(value, dict) and isinstance(original, dict):
        return {
            name: _restored(inner, original.get(name), shown.get(name))
            for name, inner in value.items()
        }
    # An item of a list may have been moved: its secrets could end up in another item.
    if _has_hidden(value):
        raise NotJson(f"Write the values out that are shown as {HIDDEN} in what you changed.")
    return value


def _has_hidden(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_hidden, value.values()))
    if isinstance(value, list):
        return any(map(_has_hidden, value))
    return bool(value == HIDDEN)


def _parsed(text: str) -> Any:
    """Return JSON as Python data; numbers stay as they are written."""
    return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse)


def _number(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _written(value: Any, indent: int = 2) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()

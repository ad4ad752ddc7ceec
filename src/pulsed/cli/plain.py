"""Payloads, errors and logs come from anywhere; a terminal must not obey what is in them."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Return text without control characters, except line breaks and tabs."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def harmless_json(text: str) -> str:
    """Return the same JSON with such characters escaped; those below U+0020 always are."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)

"""Makes untrusted text safe: no payload, error or log line may control a terminal.

``output.CleanConsole`` removes control characters from everything that it draws. Line breaks are
removed where text becomes a cell, a field or a branch.
"""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BREAKS = re.compile(r"[\t\n]")


def harmless(text: str) -> str:
    """Return text without control characters, except line breaks and tabs."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def harmless_json(text: str) -> str:
    """Return the same JSON with such characters escaped; those below U+0020 always are."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def in_line(text: str) -> str:
    """Return text that stays in its line: for a cell, a field, a branch of a tree."""
    return _BREAKS.sub(" ", harmless(text))

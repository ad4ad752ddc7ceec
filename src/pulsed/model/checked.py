"""Checks of values that come from outside, for every layer."""

from __future__ import annotations

import re
from typing import Any

from pulsed.errors import InvalidOption

LONGEST_NAME = 200

_FORBIDDEN_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f,\u2028\u2029\ud800-\udfff]")


def checked_name(what: str, value: Any) -> str:
    """Return the name of a queue, topic, tag or limit, or raise ``InvalidOption``."""
    if not isinstance(value, str):
        raise InvalidOption(f"The {what} must be a string, not {value!r}.")
    if not 1 <= len(value) <= LONGEST_NAME:
        raise InvalidOption(
            f"The {what} must have 1 to {LONGEST_NAME} characters, not {len(value)}."
        )
    if value.isspace() or _FORBIDDEN_IN_NAMES.search(value):
        raise InvalidOption(
            f"The {what} must not be blank or contain control characters or commas: {value!a}."
        )
    return value


def checked_count(what: str, value: Any, least: int, most: int) -> int:
    """Return an integer of ``least``..``most``; True is not a number here."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{what} must be an integer, not {value!r}.")
    if not least <= value <= most:
        raise InvalidOption(f"{what} must be between {least:,} and {most:,}, not {value!r:.40}.")
    return int(value)

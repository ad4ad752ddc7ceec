"""What jobs can be searched by besides names: fields of their payload, parts of their id."""

from __future__ import annotations

import math
import re
from typing import Any

from pulsed.errors import InvalidOption
from pulsed.handler.payload import UNSTORABLE
from pulsed.model.job import JsonScalar, PayloadField
from pulsed.model.outcome import OUTCOMES

MOST_FIELDS = 5
"""Fields of the payload in one filter."""
DEEPEST = 10
LONGEST = 1_000
"""Characters of a path or a text."""
LARGEST = 10**100

_DIGITS = re.compile(r"[0-9a-f]{1,32}")
_POSITION = re.compile(r"-?\d+")


def checked_payload_field(path: Any, value: Any) -> PayloadField:
    """Return the condition that the field at a dotted path has a value."""
    if not isinstance(path, str) or not 1 <= len(path) <= LONGEST or UNSTORABLE.search(path):
        raise InvalidOption(
            f"A field of the payload has a name, such as user.id, not {path!r:.100}."
        )
    names = tuple(path.split("."))
    if len(names) > DEEPEST or any(not name or '"' in name for name in names):
        raise InvalidOption(
            f"{path!r:.100} is not a field of a payload: write names with dots, such as user.id, "
            f"at most {DEEPEST}."
        )
    if any(_POSITION.fullmatch(name) for name in names):
        raise InvalidOption(f"{path!r:.100} has a number: positions in lists cannot be searched.")
    return PayloadField(names, _checked_value(value))


def _checked_value(value: Any) -> JsonScalar:
    match value:
        case None | bool():
            return value
        case str() if len(value) <= LONGEST and not UNSTORABLE.search(value):
            return value
        case int() if abs(value) < LARGEST:
            return value
        case float() if math.isfinite(value):
            return value
    raise InvalidOption(
        f"A payload can be searched for a text, a number, true, false or null, not {value!r:.100}."
    )


def checked_outcome(value: Any) -> str:
    """Return an outcome, which may be written in small letters."""
    word = value.upper() if isinstance(value, str) else ""
    if word not in OUTCOMES:
        known = ", ".join(OUTCOMES).lower()
        raise InvalidOption(f"outcome must be one of {known}, not {value!r:.100}.")
    return word


def checked_digits(value: Any) -> str:
    """Return the hexadecimal digits of an id, or of a part of one."""
    digits = value.replace("-", "").lower() if isinstance(value, str) else ""
    if not _DIGITS.fullmatch(digits):
        raise InvalidOption(f"{value!r:.100} is no id, and no part of one.")
    return digits

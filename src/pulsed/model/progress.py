"""What a handler says about its progress, as a share and a note.

Progress is any JSON value. A number, or an object with a number under one of the usual names, can
be drawn as a bar: ``0.4``, ``40``, ``{"percent": 40, "note": "page 4"}`` or
``{"done": 4, "total": 10}``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeGuard

SHARES = ("fraction", "ratio", "share", "progress", "percent", "percentage", "pct")
PAIRS = (("done", "total"), ("current", "total"), ("completed", "total"), ("step", "steps"))
NOTES = ("note", "message", "text", "status", "stage", "label")
PERCENTAGES = frozenset({"percent", "percentage", "pct"})


class Progress(NamedTuple):
    """How far a job is."""

    share: float | None
    """From 0 to 1; None if the value has none."""
    note: str | None
    """What the handler says beside it."""


def progress_of(value: Any) -> Progress:
    """Return the share and the note in a progress value."""
    if _is_number(value):
        return Progress(_share(value), None)
    if isinstance(value, str):
        return Progress(None, value)
    if not isinstance(value, dict):
        return Progress(None, None)
    notes = (value[name] for name in NOTES if isinstance(value.get(name), str))
    return Progress(_share_in(value), next(notes, None))


def _share_in(value: dict[str, Any]) -> float | None:
    for done, total in PAIRS:
        part, whole = value.get(done), value.get(total)
        if _is_number(part) and _is_number(whole) and whole > 0:
            return _bounded(part / whole)
    for name in SHARES:
        if _is_number(number := value.get(name)):
            return _bounded(number / 100) if name in PERCENTAGES else _share(number)
    return None


def _share(number: float) -> float:
    """Return a bare number as a share: up to 1 it is a fraction, beyond it a percentage."""
    return _bounded(number if number <= 1 else number / 100)


def _bounded(share: float) -> float:
    return min(1.0, max(0.0, share))


def _is_number(value: Any) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)

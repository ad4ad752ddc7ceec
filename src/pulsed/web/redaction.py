"""Hides values of payloads, results and headers whose names say that they are secret."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "••••••"
DEFAULT_NAMES = (
    "password", "passwd", "secret", "token", "authorization", "api_?key", "cookie", "credential",
    "private_?key", "card_?number", "cvc", "iban", "ssn",
)  # fmt: skip
DEEPEST = 50
"""Levels of nesting that are shown; what is deeper is hidden."""


class Redaction:
    """Which values are hidden: those whose name contains one of the given patterns.

    Args:
        names: Regular expressions for names of fields, searched without regard to case.
        also: More of them, in addition to the default ones.
    """

    def __init__(self, names: Iterable[str] = DEFAULT_NAMES, *, also: Iterable[str] = ()) -> None:
        patterns = [f"(?:{name})" for name in (*names, *also)]
        self._pattern = re.compile("|".join(patterns), re.IGNORECASE) if patterns else None

    def hides(self, name: str) -> bool:
        """Whether the value of a field with this name is hidden."""
        return self._pattern is not None and self._pattern.search(name) is not None

    def apply(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of a JSON value without what is hidden."""
        if depth > DEEPEST:
            return HIDDEN
        if isinstance(value, dict):
            return {
                name: HIDDEN if self.hides(str(name)) else self.apply(inner, depth + 1)
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.apply(inner, depth + 1) for inner in value]
        return value

"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 job``, ``2 jobs`` or ``1,204 jobs``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"

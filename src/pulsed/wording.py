"""Numbers and durations in sentences, tables and log lines."""

from __future__ import annotations

import re


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 job``, ``2 jobs`` or ``1,204 jobs``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


_UNITS = ((99.5, 1.0, "s"), (99.5 * 60, 60.0, "min"), (47.5 * 3600, 3600.0, "h"))
"""Seconds below which a unit is used, its length, and its name."""


def format_duration(seconds: float) -> str:
    """Return a duration as text, the shorter the more exact: ``2.5 ms``, ``3.2 s``, ``12 min``."""
    seconds = max(0.0, seconds)
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:{'.1f' if seconds < 0.00995 else '.0f'}} ms"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s"
    for below, length, unit in _UNITS:
        if seconds < below:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


_LENGTHS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_WORDS = r"ms|min|(?:s|m|h|d|w)(?![a-z])|(?:second|minute|hour|day|week)s?"
# Not compiled before a duration is read, which few programs do.
_PART = rf"(\d+(?:\.\d+)?)\s*({_WORDS})"
_DURATION = rf"(?:{_PART}\s*)+"


def parse_duration(text: str) -> float | None:
    """Return the seconds of ``90``, ``90s``, ``1h 30m`` or ``2 days``; None for other texts."""
    text = text.strip().lower()
    if re.fullmatch(_DURATION, text):
        parts = re.findall(_PART, text)
        return sum(float(number) * _LENGTHS[_unit(word)] for number, word in parts)
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _unit(word: str) -> str:
    return word if word in _LENGTHS else word[0]


def format_bytes(number: int) -> str:
    """Return a number of bytes as text: ``812 B``, ``4.2 MB``."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def compact(value: float) -> str:
    """Return a number in few characters: ``9,120``, ``12.3 k``, ``1.2 M``."""
    if value < 10_000:
        return f"{value:,.0f}"
    for limit, unit in ((999_500, "k"), (999_500_000, "M")):
        if value < limit:
            scaled = value / (1_000 if unit == "k" else 1_000_000)
            return f"{scaled:.1f} {unit}" if scaled < 99.5 else f"{scaled:.0f} {unit}"
    return f"{value / 1e9:.1f} G"


def format_rate(value: float) -> str:
    """Return a number of jobs per minute, exact where it is small."""
    return f"{value:.1f}".removesuffix(".0") if value < 10 else compact(value)


def format_percent(share: float | None) -> str:
    """Return a share of one in percent."""
    if share is None:
        return "\N{EN DASH}"
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def maybe_duration(seconds: float | None) -> str:
    """Return a duration that may be unknown."""
    return "\N{EN DASH}" if seconds is None else format_duration(seconds)

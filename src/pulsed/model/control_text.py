"""The numbers of a control as people type them, on the command line and in forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsed.errors import InvalidOption
from pulsed.model.control import Numbers
from pulsed.model.rate import Rate
from pulsed.wording import parse_duration

NONE = "none"
"""Typed for a limit that there is not to be."""


def typed_numbers(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the numbers that were typed, as ``Numbers`` takes them; raises ``InvalidOption``.

    What is None was not typed, and is left out; ``none`` and an empty text are no such limit. The
    texts are ``running`` (``5``), ``rate`` (``60/1m``), ``burst`` (``10``) and ``age`` (``5m``).
    """
    running, rate, burst, age = (texts.get(name) for name in ("running", "rate", "burst", "age"))
    found: dict[str, Any] = {}
    if running is not None:
        found["running"] = _whole("running", running)
    if rate is not None:
        found["rate"] = _rate(rate, burst)
    elif burst:
        raise InvalidOption("A burst is for a rate: give both.")
    if age is not None:
        found["age"] = _seconds("age", age)
    return found


def texts_of(numbers: Numbers) -> dict[str, str]:
    """Return numbers as they would be typed."""
    rate, age = numbers.rate, numbers.age
    return {
        "running": "" if numbers.running is None else str(numbers.running),
        "rate": "" if rate is None else f"{rate.count}/{rate.seconds:g}s",
        "burst": "" if rate is None or rate.burst is None else str(rate.burst),
        "age": "" if age is None else f"{age:g}s",
    }


def _is_none(text: str) -> bool:
    return text.strip() in ("", NONE)


def _whole(what: str, text: str) -> int | None:
    if _is_none(text):
        return None
    digits = text.strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 9:
        raise InvalidOption(f"{what} is a number, or none, not {text!r:.40}.")
    return int(digits)


def _rate(text: str, burst: str | None) -> Rate | None:
    if _is_none(text):
        return None
    count, slash, per = text.partition("/")
    number = _whole("rate", count) if slash else None
    seconds = _seconds("rate", per) if slash else None
    if number is None or seconds is None:
        raise InvalidOption(
            f"rate is a number of starts and a time, as 60/1m, or none, not {text!r:.40}."
        )
    return Rate(number, per=seconds, burst=_whole("burst", burst or ""))


def _seconds(what: str, text: str) -> float | None:
    if _is_none(text):
        return None
    seconds = parse_duration(text.strip())
    if seconds is None:
        raise InvalidOption(f"{what} needs a time, as 90s, 5m or 2h, not {text!r:.40}.")
    return seconds

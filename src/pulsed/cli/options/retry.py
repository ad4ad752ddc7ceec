"""``--retry`` and ``--dequeue-retry``: the retry policies of a worker's database operations."""

from __future__ import annotations

import click

from pulsed.model.backoff import RetryPolicy
from pulsed.wording import parse_duration

_NAMES = {"attempts": "max_attempts", "multiplier": "multiplier", "jitter": "jitter"}
_TIMES = ("initial", "max")


def retry_policy(text: str) -> RetryPolicy:
    """Parse ``off``, a number of attempts, or ``attempts=5,initial=1s,max=30s``."""
    if text == "off":
        return RetryPolicy.disabled()
    given = {"attempts": text} if text.isdigit() else dict(map(_pair, text.split(",")))
    values: dict[str, float] = {}
    for name, value in given.items():
        if name in _TIMES:
            values[name] = _number(name, parse_duration(value))
        elif name in _NAMES:
            kind = int if name == "attempts" else float
            values[_NAMES[name]] = _number(name, _parsed(kind, value))
        else:
            raise click.BadParameter(f"{name!r} is none of {', '.join((*_NAMES, *_TIMES))}.")
    return RetryPolicy(**values)  # type: ignore[arg-type]


def _pair(part: str) -> tuple[str, str]:
    name, equals, value = part.strip().partition("=")
    if not equals:
        raise click.BadParameter(
            f"{part!r}: write off, a number of attempts, or attempts=5,initial=1s,max=30s."
        )
    return name, value


def _parsed(kind: type[int | float], text: str) -> float | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _number(name: str, value: float | None) -> float:
    if value is None:
        raise click.BadParameter(f"{name} is not a number.")
    return value

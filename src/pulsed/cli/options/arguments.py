"""Arguments of a job on the command line: ``key=value``, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from pulsed.cli.exits import Code, CommandError


def payload_of(arguments: Sequence[str], json_args: str | None) -> dict[str, Any]:
    """Return a job's payload; ``-`` alone reads it from stdin."""
    if tuple(arguments) == ("-",):
        arguments, json_args = (), sys.stdin.read()
    payload = {} if json_args is None else _json_object(json_args)
    for argument in arguments:
        key, value = pair(argument, "an argument")
        if key in payload:
            raise CommandError(f"the argument {key!r} is given twice.", Code.USAGE)
        payload[key] = _json_or_text(value)
    return payload


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"the arguments are not JSON: {error}.", Code.USAGE) from None
    if not isinstance(value, dict):
        raise CommandError("the arguments must be a JSON object of names and values.", Code.USAGE)
    return value


def pair(text: str, what: str) -> tuple[str, str]:
    """Return the two sides of ``name=value``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CommandError(f"{what} is written name=value, not {text!r}.", Code.USAGE)
    return key, value


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value, parse_constant=refused_constant)
    except ValueError:
        return value


def refused_constant(word: str) -> Any:
    """Refuse NaN and Infinity; JSON has no such numbers."""
    raise ValueError(word)

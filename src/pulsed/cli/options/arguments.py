"""Arguments of a job on the command line: ``key=value``, or one JSON object."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pulsed.cli.exits import Code, CommandError
from pulsed.errors import InvalidArguments


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


@contextlib.contextmanager
def quoting_explained(arguments: Sequence[str]) -> Iterator[None]:
    """Say how to write a string that is JSON too, if a handler wanted one: ``subject=1``."""
    try:
        yield
    except InvalidArguments as error:
        for argument in arguments:
            key, _, value = argument.partition("=")
            if f"argument {key!r}: expected `str" in str(error):
                quoted = shlex.quote(f"{key}={json.dumps(value, ensure_ascii=False)}")
                raise InvalidArguments(
                    f"{error} A value that is JSON is taken as such; for a string, write {quoted}."
                ) from error
        raise


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

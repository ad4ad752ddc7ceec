"""Commands to try beside ``pulsed dev``: they work when pasted into a second terminal."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import typing
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from pulsed.app import Pulse
from pulsed.cli.variables import APP_VARIABLE, FALLBACK_VARIABLE
from pulsed.errors import PulsedError
from pulsed.handler import Handler
from pulsed.store.open import URL_VARIABLE, redacted

_EXAMPLES: dict[Any, Any] = {
    str: "Ada",
    int: 1,
    float: 1.5,
    bool: True,
    list: [],
    dict: {},
    datetime: datetime(2030, 1, 1, tzinfo=UTC).isoformat(),
    date: "2030-01-01",
    UUID: str(UUID(int=1)),
}
"""A value for a parameter, by its hint."""

_TEXTS = {"url": "https://example.com", "to": "ada@example.com", "email": "ada@example.com"}
"""The same for texts, by the parameter's name."""


def suggestions(app: Pulse, name: str | None, url: str | None) -> Iterator[str]:
    """Yield commands about an app that ``pulsed dev`` was started with."""
    where = f"--app {shlex.quote(name or os.environ[APP_VARIABLE])}{_database(app, url)}"
    if call := next(filter(None, map(_call, app.registry)), None):
        yield f"pulsed enqueue {call} --wait {where}"
    yield f"pulsed jobs list {where}"
    yield f"pulsed doctor {where}"


def _database(app: Pulse, url: str | None) -> str:
    """Return the ``--url`` that another terminal needs, if the app's module does not say it.

    A password is not printed: a URL with one is given as a variable.
    """
    said_by = {os.environ.get(each): each for each in (FALLBACK_VARIABLE, URL_VARIABLE)}
    if app.url != url and app.url not in said_by:
        return ""
    if redacted(app.url) == app.url:
        return f" --url {shlex.quote(app.url)}"
    return f' --url "${said_by.get(app.url, URL_VARIABLE)}"'


def _call(handler: Handler[Any]) -> str | None:
    """Return a handler's topic with arguments that it accepts; None if they cannot be guessed."""
    try:
        arguments = dict(_arguments(handler))
        handler.encode_json(arguments)
    except (LookupError, TypeError, PulsedError):
        return None
    return shlex.join([handler.topic, *(f"{name}={_word(v)}" for name, v in arguments.items())])


def _arguments(handler: Handler[Any]) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(handler.fn)
    parameters = list(inspect.signature(handler.fn).parameters.values())
    for parameter in parameters[handler.takes_context :]:
        if parameter.default is parameter.empty:
            hint = hints.get(parameter.name, str)
            example = _EXAMPLES[typing.get_origin(hint) or hint]
            yield parameter.name, _TEXTS.get(parameter.name, example) if hint is str else example


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""The limit of a handler's jobs: ``@app.job(limit=..., sequential=...)``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pulsed.errors import InvalidOption, InvalidPayload
from pulsed.handler.options import did_you_mean
from pulsed.handler.payload import encode_untyped
from pulsed.model.limit import Limit, LimitRule


def checked_limit(limit: Any, sequential: Any) -> Limit | None:
    """Return the limit that both options declare together, or raise ``InvalidOption``."""
    if sequential is not False and sequential is not None:
        if limit is not None:
            raise InvalidOption("sequential= is a limit of one: give limit= or sequential=.")
        return _sequential(sequential)
    if isinstance(limit, int) and not isinstance(limit, bool):
        return Limit(running=limit)
    if limit is not None and not isinstance(limit, Limit):
        raise InvalidOption(
            f"limit must be a Limit, such as Limit(running=5), or a number, not {limit!r:.100}."
        )
    return limit


def _sequential(sequential: Any) -> Limit:
    if sequential is True:
        return Limit(sequential=True)
    if isinstance(sequential, str):
        return Limit(per=sequential, sequential=True)
    raise InvalidOption(
        f"sequential must be True or the name of an argument, not {sequential!r:.100}."
    )


def limit_rule(
    topic: str, limit: Limit | None, parameters: Mapping[str, inspect.Parameter]
) -> LimitRule | None:
    """Return how the keys of a handler's jobs are computed; its parameters must allow it."""
    if limit is None:
        return None
    name = limit.name or topic
    if limit.per is None:
        return LimitRule(name)
    argument = limit.per.split(".")[0]
    if argument not in parameters:
        raise InvalidOption(
            f"The limit is per {limit.per!r}, which is not a parameter."
            f"{did_you_mean(argument, parameters)} There are: {', '.join(parameters) or 'none'}."
        )
    return LimitRule(name, limit.per, _default_of(parameters[argument]))


def _default_of(parameter: inspect.Parameter) -> str:
    """Return the JSON of a parameter's default: a payload may leave the argument out."""
    if parameter.default is parameter.empty or parameter.default is None:
        return ""
    try:
        return encode_untyped("The default", parameter.default)
    except InvalidPayload:
        raise InvalidOption(
            f"The limit is per {parameter.name!r}, whose default cannot be written as JSON."
        ) from None

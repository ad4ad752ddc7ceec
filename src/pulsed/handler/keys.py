"""The key of a job, computed from its arguments: ``@app.job(key="invoice-{invoice_id}")``."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pulsed.errors import InvalidArguments, InvalidOption
from pulsed.handler.options import checked_key, did_you_mean


def key_maker(key: Any, parameters: Collection[str]) -> Callable[[Mapping[str, Any]], str | None]:
    """Return what computes the key of a job from its arguments."""
    if isinstance(key, str):
        return _from_text(key, parameters)
    if callable(key):
        return _from_function(key, parameters)
    raise InvalidOption(
        "key must be a text such as 'invoice-{invoice_id}', or a function of the arguments, "
        f"not {key!r:.100}."
    )


def _from_text(key: str, parameters: Collection[str]) -> Callable[[Mapping[str, Any]], str]:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(key) if name is not None]
    except ValueError as error:
        raise InvalidOption(f"key={key!r} is not a valid format: {error}.") from None
    for name in names:
        _check_parameter(name.split(".")[0].split("[")[0], parameters)
    checked_key(key)

    def make(arguments: Mapping[str, Any]) -> str:
        try:
            made = key.format_map(arguments)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise _no_key(key, error) from error
        return checked_key(made)

    return make


def _from_function(
    key: Callable[..., Any], parameters: Collection[str]
) -> Callable[[Mapping[str, Any]], str | None]:
    own = inspect.signature(key).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in own.values())
    if not takes_all:
        for name in own:
            _check_parameter(name, parameters)

    def make(arguments: Mapping[str, Any]) -> str | None:
        given = arguments if takes_all else {name: arguments[name] for name in own}
        made = key(**given)
        return None if made is None else checked_key(made)

    return make


def _check_parameter(name: str, parameters: Collection[str]) -> None:
    if name not in parameters:
        raise InvalidOption(
            f"key names {name!r}, which is not a parameter.{did_you_mean(name, parameters)} "
            f"There are: {', '.join(parameters) or 'none'}."
        )


def _no_key(key: str, error: Exception) -> InvalidArguments:
    return InvalidArguments(f"The key {key!r} cannot be made of these arguments: {error!r:.200}.")

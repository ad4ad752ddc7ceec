"""The limit of a task's jobs: ``@task(limit=Limit(running=2, per="customer"))``.

Arguments of a task are positional or named, as its caller has written them. So the value that a
limit is per stands in the payload a second time, under a name of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from pulsed.handler.limits import checked_limit, limit_rule
from pulsed.model.limit import Limit

PER = "per"
"""The parameter of every task's handler that has the value."""


def of_handler(task: Any) -> Limit | None:
    """Return the limit of a task's handler, or raise ``InvalidOption``."""
    limit = _limit_of(task)
    if limit is None or limit.per is None:
        return limit
    limit_rule(task.module_path, limit, inspect.signature(task.func).parameters)
    return replace(limit, per=PER)


def shared_by(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the payload of a call has besides its arguments: the value, if there is one."""
    limit = _limit_of(task)
    if limit is None or limit.per is None:
        return {}
    argument, *fields = limit.per.split(".")
    value = bound_arguments(task, args, kwargs).get(argument)
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
    return {} if value is None else {PER: value}


def bound_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names, defaults included."""
    context = (None,) if task.takes_context else ()
    bound = inspect.signature(task.func).bind(*context, *args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _limit_of(task: Any) -> Limit | None:
    return checked_limit(getattr(task, "limit", None), sequential=False)

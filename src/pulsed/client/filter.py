"""Which jobs a listing, a count or a bulk act is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypedDict

from pulsed.client.one_job import JobId, checked_id
from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_instant, checked_key, checked_name
from pulsed.handler.payload import UNSTORABLE
from pulsed.handler.search_terms import (
    MOST_FIELDS,
    checked_digits,
    checked_outcome,
    checked_payload_field,
)
from pulsed.model.job import JobFilter, JsonScalar, PayloadField, Status
from pulsed.model.limit import checked_limit_key
from pulsed.model.page import GROUPED_BY

StatusFilter: TypeAlias = Status | str | Iterable[Status | str]


class Filter(TypedDict, total=False):
    """Which jobs a listing, a count or a bulk act is about. All conditions must hold."""

    status: StatusFilter
    topic: str
    """The handler's name, or its beginning: ``send*``."""
    queue: str
    tag: str
    error: str
    """A part of the last error."""
    since: datetime
    """Submitted at this instant or later."""
    until: datetime
    """Submitted before this instant."""
    parent: JobId
    """The children of this job."""
    payload: Mapping[str, JsonScalar]
    """Values of fields of the payload, such as ``{"user.id": 7}``."""
    worker: JobId
    """The jobs that the worker with this id is running."""
    schedule: JobId
    """The jobs of the schedule with this id."""
    id: str
    """The id, its beginning (``0197a8c2*``) or its end (``*3f1d2c4b5a69``)."""
    due: bool
    """Of the jobs that have not started: those that may start now, or those that may not yet."""
    workflow: bool
    """Those that have recorded a step or a wait, or those that have not."""
    key: str
    """The jobs that hold this key, and those that held it."""
    holds_key: bool
    """Those that hold their key now, or those that do not."""
    limit_key: str
    """The jobs with this key of a limit: its name, or its name, a comma and a value."""
    outcome: str
    """How their last run ended, or ``expired``: ended because no worker started them in time."""


def checked_filter(where: Mapping[str, Any]) -> JobFilter:
    """Return the filter of a caller's conditions; None means no condition."""
    given = {name: value for name, value in where.items() if value is not None}
    if unknown := given.keys() - Filter.__annotations__.keys():
        raise InvalidOption(
            f"Jobs cannot be filtered by {', '.join(map(repr, sorted(unknown)))}; "
            f"the conditions are {', '.join(Filter.__annotations__)}."
        )
    checked: dict[str, Any] = {}
    for name, value in given.items():
        found = _FILTER_CHECKS[name](value)
        checked |= found if name in _IN_PARTS else {name: found}
    return JobFilter(**checked)


def checked_groups(by: Iterable[str]) -> tuple[str, ...]:
    """Return the fields that jobs are counted by, or raise ``InvalidOption``."""
    given = tuple(by)
    if not given or len(set(given)) < len(given) or not set(given) <= {*GROUPED_BY}:
        raise InvalidOption(
            f"Jobs are counted by one or several of {', '.join(GROUPED_BY)}, each once, not by "
            f"{', '.join(map(repr, given))[:100] or 'nothing'}."
        )
    return given


def _checked_statuses(value: StatusFilter) -> tuple[Status, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, Iterable):
        raise InvalidOption(f"status must be one or several of {', '.join(Status)}, not {value!r}.")
    try:
        statuses = tuple(Status(str(status).upper()) for status in given)
    except ValueError as error:
        raise InvalidOption(f"{error}. A status is one of {', '.join(Status)}.") from None
    if not statuses:
        # An empty tuple would mean every status further down.
        raise InvalidOption("status is an empty list, which no job can match; leave it out.")
    return statuses


def _checked_part(value: Any) -> str:
    if not isinstance(value, str) or not value or UNSTORABLE.search(value):
        raise InvalidOption(f"error must be a part of an error text, not {value!r:.100}.")
    return value


def _checked_topic(value: Any) -> dict[str, str]:
    name = checked_name("topic", value)
    return {"topic_prefix": name[:-1]} if name.endswith("*") else {"topic": name}


def _checked_ends(value: Any) -> dict[str, str]:
    if isinstance(value, str) and value.startswith("*"):
        return {"id_suffix": checked_digits(value[1:])}
    if isinstance(value, str) and value.endswith("*"):
        return {"id_prefix": checked_digits(value[:-1])}
    return {"id_prefix": checked_id(value).hex}


def _checked_payload(value: Any) -> tuple[PayloadField, ...]:
    if not isinstance(value, Mapping) or not 1 <= len(value) <= MOST_FIELDS:
        raise InvalidOption(
            f"payload must be a dict of 1 to {MOST_FIELDS} fields and their values, such as "
            f'{{"user.id": 7}}, not {value!r:.100}.'
        )
    return tuple(checked_payload_field(path, wanted) for path, wanted in value.items())


def _checked_limit_key(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidOption(f"limit_key must be a string, not {value!r:.100}.")
    return checked_limit_key(value)


def _checked_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, not {value!r:.100}.")
    return value


_IN_PARTS = frozenset({"topic", "id"})
"""Conditions whose check says which field of the filter they are."""

_FILTER_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "status": _checked_statuses,
    "topic": _checked_topic,
    "queue": lambda value: checked_name("queue", value),
    "tag": lambda value: checked_name("tag", value),
    "error": _checked_part,
    "since": lambda value: checked_instant("since", value),
    "until": lambda value: checked_instant("until", value),
    "parent": checked_id,
    "payload": _checked_payload,
    "worker": checked_id,
    "schedule": checked_id,
    "id": _checked_ends,
    "due": lambda value: _checked_flag("due", value),
    "workflow": lambda value: _checked_flag("workflow", value),
    "key": checked_key,
    "holds_key": lambda value: _checked_flag("holds_key", value),
    "limit_key": _checked_limit_key,
    "outcome": checked_outcome,
}

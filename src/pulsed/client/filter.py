"""Which jobs a listing, a count or a bulk act is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypedDict

import msgspec

from pulsed.client.job import JobId, checked_id
from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_instant, checked_name
from pulsed.handler.payload import UNSTORABLE
from pulsed.model.job import JobFilter, Status

StatusFilter: TypeAlias = Status | str | Iterable[Status | str]


class Filter(TypedDict, total=False):
    """Which jobs a listing, a count or a bulk act is about. All conditions must hold."""

    status: StatusFilter
    topic: str
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


def checked_filter(where: Mapping[str, Any]) -> JobFilter:
    """Return the filter of a caller's conditions; None means no condition."""
    given = {name: value for name, value in where.items() if value is not None}
    if unknown := given.keys() - Filter.__annotations__.keys():
        raise InvalidOption(
            f"Jobs cannot be filtered by {', '.join(map(repr, sorted(unknown)))}; "
            f"the conditions are {', '.join(Filter.__annotations__)}."
        )
    checked = {name: _FILTER_CHECKS[name](value) for name, value in given.items()}
    return JobFilter(**checked)


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


_FILTER_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "status": _checked_statuses,
    "topic": lambda value: checked_name("topic", value),
    "queue": lambda value: checked_name("queue", value),
    "tag": lambda value: checked_name("tag", value),
    "error": _checked_part,
    "since": lambda value: checked_instant("since", value),
    "until": lambda value: checked_instant("until", value),
    "parent": checked_id,
}


def chosen_for(where: Mapping[str, Any], allowed: tuple[Status, ...], verb: str) -> JobFilter:
    """Return the filter of a bulk act: never all jobs, and only statuses that allow it."""
    chosen = checked_filter(where)
    if chosen.is_empty:
        raise InvalidOption(
            f"Without a condition every job would be {verb}. Say which, for example by status=, "
            "topic=, queue= or until=."
        )
    if wrong := [status for status in chosen.status if status not in allowed]:
        raise InvalidOption(
            f"Jobs that are {', '.join(wrong)} cannot be {verb}; only {', '.join(allowed)} can."
        )
    return msgspec.structs.replace(chosen, status=chosen.status or allowed)

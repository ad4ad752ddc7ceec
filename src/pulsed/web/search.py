"""The search box: ``status:dead topic:send_email error:timeout since:2h`` as a filter for jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pulsed.client.filter import Filter
from pulsed.model.job import Status

LONGEST = 1_000
"""Characters of a search."""

_TERM = re.compile(r'(?:([\w.]+):)?("(?:[^"\\]|\\.)*"|\S+)')
_AGO = re.compile(r"(\d{1,6})(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}

STATUSES: Mapping[str, tuple[Status, ...]] = {
    **{status.lower(): (status,) for status in Status},
    "dead": (Status.DEAD_LETTERED,),
    "done": (Status.SUCCEEDED,),
    "failed": (Status.RETRYING, Status.DEAD_LETTERED),
}


class NotUnderstood(ValueError):
    """A term of a search that means nothing; says what would."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search, as a filter and as what could not be understood of it."""

    where: Filter
    problems: tuple[str, ...]


def parse(text: str, now: datetime) -> Search:
    """Return the filter of a search, and what was not understood of it."""
    where: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in terms(text[:LONGEST]):
        try:
            _add(where, name, value, now)
        except NotUnderstood as error:
            problems.append(str(error))
    return Search(Filter(**where), tuple(problems))  # type: ignore[typeddict-item]


def terms(text: str) -> list[tuple[str, str]]:
    """Return the terms of a search: the qualifier, empty for free text, and the value."""
    found = []
    for match in _TERM.finditer(text):
        name, value = match[1] or "", match[2]
        if value.startswith('"') and value.endswith('"') and len(value) > 1:
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        found.append((name.lower(), value))
    return found


def _add(where: dict[str, Any], name: str, value: str, now: datetime) -> None:
    if name not in QUALIFIERS:
        known = ", ".join(f"{each}:" for each in QUALIFIERS if each)
        raise NotUnderstood(f"{name}: is no qualifier; there are {known}.")
    key, convert = QUALIFIERS[name]
    converted = convert(value, now)
    if key == "status":
        where[key] = (*where.get(key, ()), *converted)
    else:
        where[key] = converted


def _status(value: str, now: datetime) -> tuple[Status, ...]:
    del now
    found: list[Status] = []
    for word in value.lower().split(","):
        if word not in STATUSES:
            raise NotUnderstood(f"status:{word} is none of {', '.join(STATUSES)}.")
        found += STATUSES[word]
    return tuple(found)


def _text(value: str, now: datetime) -> str:
    del now
    return value


def instant(value: str, now: datetime) -> datetime:
    """Return a time that was written as ``2h`` before now, or in ISO-8601."""
    if match := _AGO.fullmatch(value.lower()):
        return now - timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise NotUnderstood(f"{value} is no time: write 2h, 3d or 2026-11-17.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _id(value: str, now: datetime) -> UUID:
    del now
    try:
        return UUID(value)
    except ValueError:
        raise NotUnderstood(f"{value} is no id of a job.") from None


QUALIFIERS: Mapping[str, tuple[str, Callable[[str, datetime], Any]]] = {
    "status": ("status", _status),
    "topic": ("topic", _text),
    "queue": ("queue", _text),
    "tag": ("tag", _text),
    "error": ("error", _text),
    "since": ("since", instant),
    "until": ("until", instant),
    "parent": ("parent", _id),
    "": ("error", _text),
}
"""For each qualifier, the condition of the filter and how its value is read. Text without one
searches the last error."""

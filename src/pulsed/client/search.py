"""The search box: ``status:dead topic:send* payload.user:7 since:2h`` as a filter for jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pulsed.client.filter import checked_filter
from pulsed.errors import InvalidOption
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import OUTCOMES
from pulsed.wording import format_duration

LONGEST = 1_000
"""Characters of a search."""

_TERM = re.compile(r'(?:([\w.-]+):)?("(?:[^"\\]|\\.)*"|\S+)')
_AGO = re.compile(r"(\d{1,6})(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}

STATUSES: Mapping[str, tuple[Status, ...]] = {
    **{status.lower(): (status,) for status in Status},
    "dead": (Status.DEAD_LETTERED,),
    "done": (Status.SUCCEEDED,),
    "failed": (Status.RETRYING, Status.DEAD_LETTERED),
    "due": (Status.PENDING,),
    "later": (Status.PENDING,),
}
_DUE = {"due": True, "later": False}

PAYLOAD = "payload."


class NotUnderstood(ValueError):
    """A term of a search that means nothing; says what would."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a search: a qualifier, empty for free text, and its value."""

    name: str
    value: str
    is_quoted: bool
    text: str
    """As it was typed."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search, as a filter and as what could not be understood of it."""

    text: str
    where: JobFilter
    problems: tuple[str, ...]

    @property
    def status(self) -> str:
        """The status term's value, if it has just one."""
        found = [term.value.lower() for term in terms(self.text) if term.name == "status"]
        return found[0] if len(found) == 1 else ""

    def with_status(self, word: str) -> str:
        """Return the text of the search with another status, or with none."""
        others = [term.text for term in terms(self.text) if term.name != "status"]
        return " ".join([f"status:{word}", *others] if word else others)

    @property
    def in_any_status(self) -> JobFilter:
        """The filter without its conditions on the status."""
        return msgspec.structs.replace(self.where, status=(), due=None)

    @property
    def payload_names(self) -> tuple[str, ...]:
        """The names of the payload fields that it filters by."""
        return tuple(name for field in self.where.payload for name in field.path)

    def without(self, problem: str, **conditions: Any) -> Search:
        """Return the search with other values for conditions, and a problem that says why."""
        where = msgspec.structs.replace(self.where, **conditions)
        return replace(self, where=where, problems=(*self.problems, problem))


def parse(text: str, now: datetime) -> Search:
    """Return the filter of a search, and what was not understood of it."""
    where: dict[str, Any] = {}
    problems: list[str] = []
    text = text[:LONGEST]
    for term in terms(text):
        try:
            _add(where, term, now)
        except NotUnderstood as error:
            problems.append(str(error))
        except InvalidOption as error:
            problems.append(f"{term.text}: {error}")
    return Search(text, checked_filter(where), tuple(problems))


def terms(text: str) -> Iterator[Term]:
    """Yield the terms of a search."""
    for match in _TERM.finditer(text):
        name, value = (match[1] or "").strip(), match[2]
        is_quoted = value.startswith('"') and value.endswith('"') and len(value) > 1
        if is_quoted:
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        name = name if name.lower().startswith(PAYLOAD) else name.lower()
        yield Term(name, value, is_quoted, match[0])


def quoted(value: str) -> str:
    """Return a value as it has to be typed."""
    if value and not re.search(r'[\s"\\]', value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _add(where: dict[str, Any], term: Term, now: datetime) -> None:
    """Add the conditions of a term; each is checked by itself, so that the others stay."""
    if term.name.lower().startswith(PAYLOAD):
        fields = where.get("payload", {}) | {term.name[len(PAYLOAD) :]: _json(term)}
        checked_filter({"payload": fields})
        where["payload"] = fields
        return
    if term.name not in QUALIFIERS:
        known = ", ".join(f"{each}:" for each in (*QUALIFIERS, "payload.field") if each)
        raise NotUnderstood(f"{term.name}: is no qualifier; there are {known}.")
    found = QUALIFIERS[term.name](term.value, now)
    checked_filter(found)
    if "status" in found:
        found["status"] = (*where.get("status", ()), *found["status"])
        if ("due" in found) != ("due" in where) and where.get("status"):
            raise NotUnderstood("status:due and status:later cannot be combined with others.")
    where |= found


def _json(term: Term) -> Any:
    """Return the value of a payload's field: JSON, or else a text; quoted, always a text."""
    if term.is_quoted:
        return term.value
    try:
        return msgspec.json.decode(term.value)
    except msgspec.DecodeError:
        return term.value


def _status(value: str, _: datetime) -> dict[str, Any]:
    words = value.lower().split(",")
    for word in words:
        if word not in STATUSES:
            raise NotUnderstood(f"status:{word} is none of {', '.join(STATUSES)}.")
    found: dict[str, Any] = {"status": tuple(each for word in words for each in STATUSES[word])}
    due = {_DUE[word] for word in words if word in _DUE}
    if due and len(words) > 1:
        raise NotUnderstood("status:due and status:later cannot be combined with others.")
    return found | ({"due": due.pop()} if due else {})


def _text(name: str) -> Callable[[str, datetime], dict[str, Any]]:
    return lambda value, _: {name: value}


def _instant(name: str) -> Callable[[str, datetime], dict[str, Any]]:
    return lambda value, now: {name: instant(value, now)}


def instant(value: str, now: datetime) -> datetime:
    """Return a time that was written as ``2h`` before now, or in ISO-8601."""
    try:
        if match := _AGO.fullmatch(value.lower()):
            return now - timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise NotUnderstood(f"{value} is no time: write 2h, 3d or 2026-11-17.") from None


def coming(value: str, now: datetime) -> datetime:
    """Return a time that was written as ``2h`` from now, or in ISO-8601."""
    if _AGO.fullmatch(value.lower()):
        return now + (now - instant(value, now))
    return instant(value, now)


def _id(value: str, _: datetime) -> dict[str, Any]:
    """Return the condition of an id; digits alone are the end of one, as lists show it."""
    digits = value.replace("-", "")
    return {"id": value if "*" in value or len(digits) == 32 else f"*{digits}"}


def _free(value: str, now: datetime) -> dict[str, Any]:
    """Return the condition of a text without a qualifier: an id, or a part of the last error."""
    try:
        return _id(str(UUID(value)), now)
    except ValueError:
        is_short_id = len(value) == 12 and re.fullmatch(r"[0-9a-f]*\d[0-9a-f]*", value)
        return _id(value, now) if is_short_id else {"error": value}


QUALIFIERS: Mapping[str, Callable[[str, datetime], dict[str, Any]]] = {
    "status": _status,
    "topic": _text("topic"),
    "queue": _text("queue"),
    "tag": _text("tag"),
    "error": _text("error"),
    "since": _instant("since"),
    "until": _instant("until"),
    "id": _id,
    "parent": _text("parent"),
    "worker": _text("worker"),
    "schedule": _text("schedule"),
    "key": _text("key"),
    "limit": _text("limit_key"),
    "outcome": _text("outcome"),
    "": _free,
}
"""For each qualifier, how its value becomes conditions of the filter."""


def in_words(where: JobFilter, now: datetime) -> str:
    """Return a filter as a phrase: ``DEAD_LETTERED jobs of send_email, submitted since …``."""
    statuses = " or ".join(status.replace("_", " ") for status in where.status)
    lead = f"{statuses} jobs" if statuses else "jobs in any status"
    parts = []
    if where.due is not None:
        parts.append("that are due" if where.due else "that are not due yet")
    said = {
        "topic": "of the topic {}", "topic_prefix": "of topics that begin with {}",
        "queue": "in the queue {}", "tag": "with the tag {}", "error": "whose error has “{}”",
        "parent": "that are children of {}", "worker": "that worker {} runs",
        "schedule": "of the schedule {}", "id_prefix": "whose id begins with {}",
        "id_suffix": "whose id ends in {}", "key": "with the key {}",
        "limit_key": "of the limit {}",
        "outcome": "whose last outcome is {}",
    }  # fmt: skip
    for name, phrase in said.items():
        if (value := getattr(where, name)) is not None:
            parts.append(phrase.format(value))
    for field in where.payload:
        value = msgspec.json.encode(field.value).decode()
        parts.append(f"with {value} as {'.'.join(field.path)} in the payload")
    if where.since is not None:
        parts.append(
            f"submitted in the last {format_duration((now - where.since).total_seconds())}"
        )
    age = 0.0 if where.until is None else (now - where.until).total_seconds()
    if age >= 1:
        parts.append(f"submitted more than {format_duration(age)} ago")
    return f"{lead} {', '.join(parts)}".rstrip()


# -- completion -----------------------------------------------------------------------------------

MOST_SUGGESTIONS = 12


@dataclass(frozen=True, slots=True)
class Completions:
    """Completions that are offered while you type."""

    topics: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """Names of limits, and keys of them that jobs have."""


def complete(text: str, known: Completions) -> list[str]:
    """Return what the last term of a text may become; each is the whole text then."""
    text = text[:LONGEST]
    match = re.search(r'(?:[^\s"]|"(?:[^"\\]|\\.)*(?:"|$))*$', text)
    begin = match.start() if match else len(text)
    last, before = text[begin:], text[:begin]
    name, colon, value = last.partition(":")
    if not colon:
        names = [*(f"{each}:" for each in QUALIFIERS if each), PAYLOAD]
        return [before + each for each in names if each.startswith(last.lower())]
    name, wanted = name.lower(), value.strip('"').lower()
    values: Mapping[str, tuple[str, ...]] = {
        "status": tuple(STATUSES),
        "outcome": tuple(outcome.lower() for outcome in OUTCOMES),
        "topic": known.topics,
        "queue": known.queues,
        "tag": known.tags,
        "error": known.errors,
        "key": known.keys,
        "limit": known.limits,
        "since": ("5m", "1h", "24h", "7d"),
        "until": ("1h", "24h", "7d"),
    }
    found = [each for each in values.get(name, ()) if wanted in each.lower()]
    found.sort(key=lambda each: not each.lower().startswith(wanted))
    return [f"{before}{name}:{quoted(each)}" for each in found[:MOST_SUGGESTIONS]]

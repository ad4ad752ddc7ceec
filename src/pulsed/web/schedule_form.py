"""The form that changes a schedule: its fields, how they are written, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pulsed.errors import InvalidOption
from pulsed.model.schedule import CatchUp, Overlap, ScheduleSpec
from pulsed.model.timetable import Every, cron_timetable


class ScheduleField(NamedTuple):
    """One field of the form."""

    name: str
    label: str
    read: Callable[[str, str], Any]
    """Gets its name and the text, which is not empty."""
    choices: tuple[str, ...] = ()
    hint: str = ""


def _text(_: str, text: str) -> str:
    return text


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOption(f"{name} must be a whole number, not {text!r:.50}.") from None


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = cron_timetable(f"@every {text}", None)
    except InvalidOption:
        found = None
    if not isinstance(found, Every):
        raise InvalidOption(f"{name} must be a time such as 90, 5m or 2h, not {text!r:.50}.")
    return found.interval.total_seconds()


def _instant(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(
            f"{name} must be a time such as 2026-11-17T09:00Z, not {text!r:.50}."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _words(_: str, text: str) -> list[str]:
    return [word for each in text.split(",") if (word := each.strip())]


FIELDS = (
    ScheduleField("cron", "Cron", _text, hint="0 9 * * MON-FRI, or @hourly"),
    ScheduleField("tz", "Time zone of cron", _text, hint="Europe/Berlin"),
    ScheduleField("every", "Every", _seconds, hint="90, 5m or 2h"),
    ScheduleField("at", "Once, at", _instant, hint="2026-11-17T09:00Z"),
    ScheduleField("catch_up", "Catch up", _text, tuple(CatchUp)),
    ScheduleField("limit", "Catch up at most", _number),
    ScheduleField("overlap", "Overlap", _text, tuple(Overlap)),
    ScheduleField("jitter", "Jitter", _seconds, hint="seconds, or 5m"),
    ScheduleField("start", "Not before", _instant),
    ScheduleField("end", "Not after", _instant),
    ScheduleField("queue", "Queue", _text),
    ScheduleField("priority", "Priority", _number, hint="-100 to 100"),
    ScheduleField("max_attempts", "Attempts", _number),
    ScheduleField("expires", "Expires after", _seconds, hint="seconds, or 5m"),
    ScheduleField("timeout", "Timeout", _seconds, hint="seconds, or 5m"),
    ScheduleField("lease", "Lease", _seconds, hint="seconds, or 5m"),
    ScheduleField("tags", "Tags", _words, hint="eu, vip"),
)
_BY_NAME = {field.name: field for field in FIELDS}
_NEVER_EMPTY = {"catch_up", "overlap", "queue", "payload"}

JSON_FIELDS = ("payload", "headers")
"""Fields that are edited as JSON. ``changes`` leaves reading them to who knows what was hidden."""


def texts_of(spec: ScheduleSpec) -> dict[str, str]:
    """Return what the fields show of a schedule."""
    values: dict[str, Any] = {field.name: getattr(spec, field.name, None) for field in FIELDS}
    values["tz"] = spec.zone if spec.cron is not None else None
    values["every"] = None if spec.every is None else spec.every / 1_000_000
    values["jitter"] = spec.jitter or None
    values["tags"] = ", ".join(spec.tags)
    return {name: _written(value) for name, value in values.items()}


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def changes(old: Mapping[str, str], typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that differ from what the form showed; raises ``InvalidOption``."""
    changed = {name: text for name, text in typed.items() if text != old[name]}
    options: dict[str, Any] = {}
    for name, text in changed.items():
        if text and name in JSON_FIELDS:
            options[name] = text
        elif text:
            options[name] = _BY_NAME[name].read(name, text)
        elif name in _NEVER_EMPTY:
            raise InvalidOption(f"{name} must not be empty.")
        else:
            options[name] = {"jitter": 0, "priority": 0}.get(name)
    return options


def faulty_field(problem: str) -> str:
    """Return the field that a refusal is about: the first one that it names; empty if none."""
    for word in re.findall(r"[a-z_]+", problem.lower()):
        if word in _BY_NAME or word in JSON_FIELDS:
            return str(word)
    lowered = problem.lower()
    if "zone" in lowered:
        return "tz"
    return ""

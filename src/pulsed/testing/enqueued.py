"""Finds jobs by their arguments, for assertions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pulsed.client.job import Job
from pulsed.errors import InvalidJob
from pulsed.handler import Handler, encode_untyped

SHOWN = 10
"""Jobs named in the message of a failed assertion."""

_MISSING = object()


def matching(
    jobs: Sequence[Job[Any]], handler: Handler[Any] | None, arguments: Mapping[str, Any]
) -> list[Job[Any]]:
    """Return the jobs that have these arguments, among others perhaps."""
    return [job for job in jobs if _fits(job, handler, arguments)]


def _fits(job: Job[Any], handler: Handler[Any] | None, wanted: Mapping[str, Any]) -> bool:
    plain = job.payload
    typed = plain if handler is None else handler.decode(job.row.payload)
    return all(
        typed.get(name, _MISSING) == value or plain.get(name, _MISSING) == _as_plain(name, value)
        for name, value in wanted.items()
    )


def _as_plain(name: str, value: Any) -> Any:
    """Return a value as JSON data; one that cannot be JSON equals nothing stored."""
    try:
        return msgspec.json.decode(encode_untyped(f"The argument {name!r}", value))
    except InvalidJob:
        return object()


def described(topic: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as text: ``send_email(to='ada')``."""
    inside = ", ".join(f"{name}={value!r:.60}" for name, value in arguments.items())
    return f"{topic}({inside})"


def listed(jobs: Sequence[Job[Any]]) -> str:
    """Return the jobs as text, the first of them."""
    shown = [f"{described(job.topic, job.payload)}: {job.status}" for job in jobs[:SHOWN]]
    if len(jobs) > SHOWN:
        shown.append(f"and {len(jobs) - SHOWN} more")
    return "".join(f"\n  {line}" for line in shown) or " nothing"

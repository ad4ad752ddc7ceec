"""The line below a job in a list: its last error, its progress, or why it does not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from pulsed.engine.why import live, no_worker_for, waits_for
from pulsed.model.job import JobRow, Status, WorkerInfo
from pulsed.model.progress import progress_of
from pulsed.model.step import StepKind
from pulsed.web.redaction import Redaction
from pulsed.wording import counted, format_duration

LONGEST = 200
"""Characters of a reason."""


def reason(
    job: JobRow, workers: Sequence[WorkerInfo], now: datetime, *, redaction: Redaction | None = None
) -> str:
    """Return one line on where a job stands; empty if there is nothing to say.

    Without a ``redaction`` the texts of progress, which are data of the user, are left out.
    """
    error = _first_line(job.last_error)
    due_in = (job.next_run_at - now).total_seconds()
    match job.status:
        case Status.RUNNING:
            return _running(job, redaction)
        case Status.DEAD_LETTERED:
            return f"{error} after {counted(job.attempts, 'attempt')}" if error else ""
        case Status.CANCELLED:
            return error
        case Status.RETRYING if due_in > 0:
            return f"{error}; next attempt in {format_duration(due_in)}".lstrip("; ")
        case Status.WAITING if due_in > 0:
            return _waiting(job, due_in)
        case Status.PENDING if due_in > 0:
            return f"due in {format_duration(due_in)}"
        case Status.PENDING | Status.RETRYING | Status.WAITING:
            return _due(job, live(workers, now)) or error
    return ""


def progress_text(progress: str | None, redaction: Redaction | None) -> str:
    """Return a job's progress in few words: ``37 % · tile 12 of 32``."""
    try:
        value: Any = msgspec.json.decode(progress or "null")
    except msgspec.DecodeError:
        return ""
    if isinstance(value, bool) or value is None:
        return ""
    share = progress_of(value).share
    parts = [] if share is None else [f"{100 * share:.0f} %"]
    if redaction is not None:
        parts += _note(redaction.apply(value), is_all=share is None)
    return _cut(" · ".join(parts))


def _note(value: Any, *, is_all: bool) -> list[str]:
    """Return what a handler says beside a share; without one, all that it says."""
    note = progress_of(value).note
    if note is not None:
        return [note]
    if not is_all:
        return []
    if isinstance(value, dict):
        return [f"{name} {_text(each)}" for name, each in value.items()]
    return [_text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _running(job: JobRow, redaction: Redaction | None) -> str:
    asked = "asked to stop" if job.cancel_requested else ""
    return " · ".join(filter(None, [asked, progress_text(job.progress, redaction)]))


def _waiting(job: JobRow, due_in: float) -> str:
    if job.wait_kind == StepKind.SLEEP:
        return f"sleeps for another {format_duration(due_in)}"
    limit = "" if job.due_at is None else f", for {format_duration(due_in)} at the most"
    return _cut(f"waits for {waits_for(job)}{limit}")


def _due(job: JobRow, workers: Sequence[WorkerInfo]) -> str:
    """Return why a due job has not started; what to do about it is on the job's page."""
    if missing := no_worker_for(job.queue, job.topic, workers):
        return missing.split(": ", 1)[0].split(", they take", 1)[0]
    able = [each for each in workers if job.queue in each.queues and job.topic in each.topics]
    if all(each.running >= each.slots for each in able):
        return f"all {sum(each.slots for each in able)} slots of the workers for it are taken"
    return ""


def _first_line(text: str | None) -> str:
    return _cut((text or "").strip().partition("\n")[0])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"

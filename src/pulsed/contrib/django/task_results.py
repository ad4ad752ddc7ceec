"""How a task stands, as the ``TaskResult`` of its framework."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from traceback import format_exception
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from pulsed.contrib.django.declared import Declared
from pulsed.contrib.django.framework import Framework
from pulsed.engine.context import Context
from pulsed.errors import JobCancelled, LeaseLost
from pulsed.model.job import Failure, JobRow, Status
from pulsed.model.lifecycle import TERMINAL

BACKEND_HEADER = "django-backend"
"""The header of a job that has the alias of its backend."""

_STATUS = {
    Status.RUNNING: "RUNNING",
    Status.SUCCEEDED: "SUCCESSFUL",
    Status.DEAD_LETTERED: "FAILED",
    Status.CANCELLED: "FAILED",
}
"""The framework's name of a status; one that is not listed is READY, to be executed (again)."""


def of_new_task(
    framework: Framework, task: Any, payload: Mapping[str, Any], job_id: UUID, alias: str
) -> Any:
    """Return the result of a task that was just enqueued."""
    return framework.result(
        task=task,
        id=str(job_id),
        status=framework.status.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def of_run(known: Declared, ctx: Context, payload: Mapping[str, Any]) -> Any:
    """Return the result of a task that starts to run."""
    now = timezone.now()
    alias = ctx.headers.get(BACKEND_HEADER, known.task.backend)
    result = of_new_task(known.framework, known.task, payload, ctx.job_id, alias)
    result.worker_ids.append(str(ctx.worker_id))
    return change(
        result,
        status=known.framework.status.RUNNING,
        enqueued_at=as_in_django(ctx.submitted_at),
        started_at=now,
        last_attempted_at=now,
    )


def of_job(known: Declared, row: JobRow, failures: Sequence[Failure], alias: str) -> Any:
    """Return the result of a task as its job's row has it."""
    framework = known.framework
    payload = {"args": [], "kwargs": {}, **json.loads(row.payload)}
    alias = row.headers.get(BACKEND_HEADER, alias)
    result = of_new_task(framework, _task_of(known, row, alias), payload, row.id, alias)
    result.errors.extend(error_of_failure(framework, each) for each in failures)
    if row.status is Status.CANCELLED:
        result.errors.append(_error(framework, JobCancelled, "The task was cancelled."))
    result.worker_ids.extend(_workers(row, failures))
    started = [each.started_at for each in failures if each.started_at] + [row.started_at]
    return change(
        result,
        status=framework.status[_STATUS.get(row.status, "READY")],
        enqueued_at=as_in_django(row.submitted_at),
        started_at=as_in_django(started[0]),
        last_attempted_at=as_in_django(row.started_at),
        finished_at=as_in_django(row.completed_at) if row.status in TERMINAL else None,
        _return_value=None if row.result is None else json.loads(row.result),
    )


def may_have_failed(row: JobRow) -> bool:
    """Whether a job may have failed attempts to tell of."""
    return row.attempts > 1 or row.last_error is not None or row.status is Status.RETRYING


def change(result: Any, **values: Any) -> Any:
    """Set attributes of a result, which is frozen to everybody else; returns it."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
    return result


def as_in_django(moment: datetime | None) -> Any:
    """Return an instant as ``timezone.now()`` gives it: aware, or local and naive."""
    if moment is None or settings.USE_TZ:
        return moment
    return timezone.make_naive(moment, timezone.get_default_timezone())


# -- errors ---------------------------------------------------------------------------------------


def error_of(framework: Framework, error: BaseException) -> Any:
    """Return what a function raised, as the framework records it."""
    return _error(framework, type(error), "".join(format_exception(error)))


def error_of_failure(framework: Framework, failure: Failure) -> Any:
    """Return what the database has about a failed attempt, as the framework records it."""
    if failure.traceback is None:  # its worker died, or it was stopped
        return _error(framework, LeaseLost, failure.error)
    path = _class_path(failure.error.partition(":")[0], failure.traceback)
    return framework.error(exception_class_path=path, traceback=failure.traceback)


def _error(framework: Framework, kind: type[BaseException], traceback: str) -> Any:
    path = f"{kind.__module__}.{kind.__qualname__}"
    return framework.error(exception_class_path=path, traceback=traceback)


def _class_path(name: str, traceback: str) -> str:
    """Return the path of an error's class; the last line of a traceback has its module."""
    found = re.findall(rf"^((?:\w+\.)+){re.escape(name)}(?=:|$)", traceback, re.MULTILINE)
    return f"{found[-1]}{name}" if found else f"builtins.{name}"


# -- what a row tells about its task --------------------------------------------------------------


def _task_of(known: Declared, row: JobRow, alias: str) -> Any:
    changes: dict[str, Any] = {"priority": row.priority, "queue_name": row.queue, "backend": alias}
    if not row.attempts and row.next_run_at > row.submitted_at:
        changes["run_after"] = as_in_django(row.next_run_at)
    try:
        return known.task.using(**changes)
    except Exception:  # noqa: BLE001 - the settings no longer have its queue or its backend
        return known.task


def _workers(row: JobRow, failures: Sequence[Failure]) -> list[str]:
    """Return the worker of each attempt, oldest first."""
    workers = [str(each.worker_id) for each in failures]
    now = row.locked_by or (row.last_worker if row.status is Status.SUCCEEDED else None)
    return workers if now is None else [*workers, str(now)]

"""A backend of the Tasks framework whose tasks are jobs of the project's app.

The topic of a task is the path of its function. Its payload has the arguments as the framework
defines them: ``args`` and ``kwargs``, plain JSON in both directions.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from pulsed.client.job import Job
from pulsed.contrib.django import task_limits, task_results
from pulsed.contrib.django.current import project_app
from pulsed.contrib.django.declared import DECLARED, Declared
from pulsed.contrib.django.framework import OF_TASKS, Framework
from pulsed.contrib.django.task_handlers import declare
from pulsed.contrib.django.task_limits import bound_arguments
from pulsed.contrib.django.task_results import BACKEND_HEADER
from pulsed.errors import InvalidOption, JobNotFound, StorageError
from pulsed.handler import checked_options
from pulsed.handler.keys import key_maker
from pulsed.handler.options import OF_KEYS, checked_id
from pulsed.model.ids import new_job_id
from pulsed.store.blocking import refuse_in_event_loop

ON_COMMIT = "enqueue_on_commit"
POLICY = ("max_attempts", "backoff", "timeout", "lease")
DEFAULTS = (*POLICY, "tags")
"""What ``OPTIONS`` may set for all tasks of a backend."""


class TasksAsJobs:
    """What both backends are made of; ``BaseTaskBackend`` stands behind it."""

    framework: ClassVar[Framework]
    alias: str
    options: dict[str, Any]
    queues: set[str]

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)  # type: ignore[call-arg]
        unknown = self.options.keys() - {ON_COMMIT, *DEFAULTS}
        if unknown:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS'] has no option {min(unknown)!r}. There are: "
                f"{', '.join((ON_COMMIT, *DEFAULTS))}. Where the jobs are is in PULSED."
            )
        try:
            given = {name: value for name, value in self.options.items() if name != ON_COMMIT}
            self.defaults = checked_options(given)
        except InvalidOption as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {error}") from error

    # -- declaring ------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """Raise unless the task can run here; the worker then knows its function."""
        super().validate_task(task)  # type: ignore[misc]
        try:
            checked_options(self._own_options(task))
            if self._key_of(task) is not None:
                key_maker(task.key, inspect.signature(task.func).parameters)
            limit = task_limits.of_handler(task)
        except InvalidOption as error:
            raise self.framework.invalid(f"{task.module_path}: {error}") from error
        policy = {name: getattr(task, name, None) for name in POLICY}
        given = {name: value for name, value in policy.items() if value is not None}
        known = Declared(task, self.framework, type(self))
        if limit is not None:
            given["limit"] = limit
        declare(known, {**self._policy_defaults(), **given})

    def _policy_defaults(self) -> dict[str, Any]:
        return {name: value for name, value in self.defaults.items() if name in POLICY}

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Return what is wrong with the project's settings."""
        if "pulsed.contrib.django" not in settings.INSTALLED_APPS:
            yield checks.Error(
                f"TASKS[{self.alias!r}] stores its tasks with pulsed, whose tables nothing makes.",
                hint="Add 'pulsed.contrib.django' to INSTALLED_APPS, and run `manage.py migrate`.",
                id="pulsed.E001",
            )

    # -- enqueuing ------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a task as a job, in the transaction that is open on the jobs' database.

        If the jobs are elsewhere, and a transaction is open, it is stored after the commit.
        """
        app = project_app()
        self.validate_task(task)
        normalize = self.framework.normalize_json
        payload = {"args": normalize(list(args)), "kwargs": normalize(dict(kwargs))}
        payload |= task_limits.shared_by(task, payload["args"], payload["kwargs"])
        options = self._options(task, args, kwargs)
        if app.database is None and not app.is_sandboxed and self._waits_for_commit():
            return self._enqueue_after_commit(task, payload, options)
        job = app.enqueue(task.module_path, payload, **options)
        if job.is_new is False:  # another job holds the key
            return self.get_result(str(job.id))
        return self._enqueued(task, payload, job.id, _stored_at(job))

    def _waits_for_commit(self) -> bool:
        return self.options.get(ON_COMMIT, True) and connections[DEFAULT_DB_ALIAS].in_atomic_block

    def _enqueue_after_commit(self, task: Any, payload: Any, options: dict[str, Any]) -> Any:
        app = project_app()
        # Now rather than after the commit: what does not fit must raise here.
        app.registry.get(task.module_path).encode_json(payload)
        checked_options(options)
        options["id"] = new_job_id()
        store: partial[Job[Any]] = partial(app.enqueue, task.module_path, payload, **options)
        transaction.on_commit(store)
        return self._enqueued(task, payload, options["id"], timezone.now())

    def _enqueued(
        self, task: Any, payload: Mapping[str, Any], job_id: UUID, enqueued_at: datetime
    ) -> Any:
        result = task_results.of_new_task(self.framework, task, payload, job_id, self.alias)
        task_results.change(result, enqueued_at=enqueued_at)
        self.framework.enqueued.send(type(self), task_result=result)
        return result

    def _options(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of one job: of the backend, the task and this call of it."""
        options = {
            "queue": task.queue_name,
            "priority": int(task.priority),
            "headers": {BACKEND_HEADER: self.alias},
            **{name: self.defaults[name] for name in DEFAULTS if name in self.defaults},
            **self._own_options(task),
        }
        for name in OF_KEYS:
            options.pop(name, None)
        if task.run_after is not None:
            options["at"] = _aware(task.run_after)
        if (key := self._made_key(task, args, kwargs)) is not None:
            options["key"] = key
            options |= {name: getattr(task, name) for name in OF_KEYS}
        return options

    def _own_options(self, task: Any) -> dict[str, Any]:
        """Return pulsed's options of a task; those of another class have none."""
        names = [name for name in OF_TASKS if name != "key"]
        given = {name: getattr(task, name, None) for name in names}
        return {name: value for name, value in given.items() if value is not None}

    def _key_of(self, task: Any) -> Any:
        return getattr(task, "key", None)

    def _made_key(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        if (key := self._key_of(task)) is None:
            return None
        parameters = inspect.signature(task.func).parameters
        return key_maker(key, parameters)(bound_arguments(task, args, kwargs))

    # -- results --------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """Return how a task stands, as any process sees it."""
        app = project_app()
        try:
            job_id = checked_id(result_id)
            refuse_in_event_loop("aget_result")
            row = app.jobs.get(job_id).row
            failures = app.jobs.failures(row.id) if task_results.may_have_failed(row) else []
        except (JobNotFound, InvalidOption):
            raise self.framework.does_not_exist(result_id) from None
        return task_results.of_job(self._known(row.topic, result_id), row, failures, self.alias)

    def _known(self, topic: str, result_id: str) -> Declared:
        app = project_app()
        _ = app.registry  # loads the project's tasks, if that has not been done
        if (found := DECLARED.get(topic)) is None:
            raise self.framework.does_not_exist(result_id)
        return found


def _stored_at(job: Job[Any]) -> Any:
    """Return when a job was stored, by the database's clock: as every later read says."""
    try:
        job.refresh()
    except StorageError:  # it is stored all the same
        return timezone.now()
    return task_results.as_in_django(job.row.submitted_at)


def _aware(moment: Any) -> Any:
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment

"""The same backend for ``django-tasks``, the framework's backport to older versions of Django."""

from __future__ import annotations

from django_tasks.backends.base import BaseTaskBackend
from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist
from django_tasks.signals import task_enqueued, task_finished, task_started
from django_tasks.utils import normalize_json

from pulsed.contrib.django.framework import Framework, task_class_of
from pulsed.contrib.django.task_backend import TasksAsJobs

PulsedTask = task_class_of(Task, __name__)


class BackportBackend(TasksAsJobs, BaseTaskBackend):
    """Stores the tasks of a project as jobs of its pulsed app."""

    task_class = PulsedTask
    framework = Framework(
        result=TaskResult,
        error=TaskError,
        context=TaskContext,
        status=TaskResultStatus,
        normalize_json=normalize_json,
        enqueued=task_enqueued,
        started=task_started,
        finished=task_finished,
        invalid=InvalidTaskError,
        does_not_exist=TaskResultDoesNotExist,
    )

"""The backend for Django's own Tasks framework, from Django 6.0 on."""

from __future__ import annotations

from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils.json import normalize_json

from pulsed.contrib.django.framework import Framework, task_class_of
from pulsed.contrib.django.task_backend import TasksAsJobs

PulsedTask = task_class_of(Task, __name__)


class PulsedBackend(TasksAsJobs, BaseTaskBackend):
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
        invalid=InvalidTask,
        does_not_exist=TaskResultDoesNotExist,
    )

"""One run of a task in a worker: its result so far, and the signals around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils import timezone

from pulsed.contrib.django import task_results
from pulsed.contrib.django.connection_hygiene import lost_the_database
from pulsed.contrib.django.current import project_app
from pulsed.contrib.django.declared import Declared
from pulsed.engine.context import Context
from pulsed.errors import NoRetry, Snooze


class TaskRun:
    """A task that runs. Receivers of signals see its ``TaskResult`` as it stands.

    An error of a receiver is logged by Django and does not fail the task.
    """

    def __init__(
        self, ctx: Context, known: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._ctx = ctx
        self._known = known
        self._framework = known.framework
        self.result = task_results.of_run(known, ctx, {"args": args, "kwargs": kwargs})

    # -- the function ---------------------------------------------------------------------------

    def call(self) -> Any:
        """Call the function; returns what it returns: a coroutine, of an async one."""
        task = self.result.task
        first = (self._framework.context(task_result=self.result),) if task.takes_context else ()
        return task.func(*first, *self.result.args, **self.result.kwargs)

    def succeeded(self, value: Any) -> Any:
        """Note what the function returned; returns it as it is stored."""
        normalized = self._framework.normalize_json(value)
        status = self._framework.status.SUCCESSFUL
        task_results.change(
            self.result, status=status, finished_at=timezone.now(), _return_value=normalized
        )
        return normalized

    def is_over(self, error: BaseException) -> bool:
        """Note what the function raised; returns whether there is no further attempt."""
        if isinstance(error, Snooze) or lost_the_database(error):
            return False
        self.result.errors.append(task_results.error_of(self._framework, error))
        status = self._framework.status.FAILED
        task_results.change(self.result, status=status, finished_at=timezone.now())
        return isinstance(error, NoRetry) or self._ctx.attempt >= self._ctx.max_attempts

    # -- earlier attempts -----------------------------------------------------------------------

    def read_earlier_attempts(self) -> None:
        """Have the result tell of the attempts before this one."""
        app = project_app()
        if self._ctx.attempt > 1:
            self._tell_of(app.jobs.failures(self._ctx.job_id))

    async def aread_earlier_attempts(self) -> None:
        """Do the same on the event loop."""
        app = project_app()
        if self._ctx.attempt > 1:
            self._tell_of(await app.jobs.afailures(self._ctx.job_id))

    def _tell_of(self, failures: Sequence[Any]) -> None:
        errors = [task_results.error_of_failure(self._framework, each) for each in failures]
        self.result.errors[:0] = errors
        self.result.worker_ids[:0] = [str(each.worker_id) for each in failures]
        if failures and failures[0].started_at is not None:
            started = task_results.as_in_django(failures[0].started_at)
            task_results.change(self.result, started_at=started)

    # -- signals --------------------------------------------------------------------------------

    def send_started(self) -> None:
        """Send ``task_started``."""
        self._framework.started.send_robust(self._known.sender, task_result=self.result)

    def send_finished(self) -> None:
        """Send ``task_finished``."""
        self._framework.finished.send_robust(self._known.sender, task_result=self.result)

    async def asend_started(self) -> None:
        """Send ``task_started``; plain receivers run in Django's thread."""
        await self._framework.started.asend_robust(self._known.sender, task_result=self.result)

    async def asend_finished(self) -> None:
        """Send ``task_finished``; plain receivers run in Django's thread."""
        await self._framework.finished.asend_robust(self._known.sender, task_result=self.result)

"""The handlers of a project's tasks: what a worker calls, around the function of a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pulsed.contrib.django.current import project_app
from pulsed.contrib.django.declared import DECLARED, Declared
from pulsed.contrib.django.task_limits import PER
from pulsed.contrib.django.task_run import TaskRun
from pulsed.engine.context import Context
from pulsed.handler import Handler

_HINTS = {
    "ctx": Context,
    "args": list[Any] | None,
    "kwargs": dict[str, Any] | None,
    PER: Any,
    "return": Any,
}


def declare(known: Declared, policy: Mapping[str, Any]) -> None:
    """Have the project's app handle a task; its first declaration decides about the policy."""
    app = project_app()
    task = known.task
    topic = task.module_path
    before = DECLARED.get(topic)
    if before is not None and before.task.func is task.func:
        return
    DECLARED[topic] = known
    if before is None:  # otherwise its module was loaded again
        make = _async_handler if inspect.iscoroutinefunction(task.func) else _plain_handler
        function = _described(make(topic), task.func)
        app.handle(Handler(function, topic=topic, queue=task.queue_name, **policy))


def _plain_handler(topic: str) -> Callable[..., Any]:
    def call(ctx: Context, args: Any = None, kwargs: Any = None, per: Any = None) -> Any:
        del per  # for the limit of the task
        run = TaskRun(ctx, DECLARED[topic], args or [], kwargs or {})
        run.read_earlier_attempts()
        run.send_started()
        try:
            value = run.succeeded(run.call())
        except (Exception, SystemExit) as error:
            if run.is_over(error):
                run.send_finished()
            raise
        run.send_finished()
        return value

    return call


def _async_handler(topic: str) -> Callable[..., Any]:
    async def call(ctx: Context, args: Any = None, kwargs: Any = None, per: Any = None) -> Any:
        del per  # for the limit of the task
        run = TaskRun(ctx, DECLARED[topic], args or [], kwargs or {})
        await run.aread_earlier_attempts()
        await run.asend_started()
        try:
            value = run.succeeded(await run.call())
        except (Exception, SystemExit) as error:
            if run.is_over(error):
                await run.asend_finished()
            raise
        await run.asend_finished()
        return value

    return call


def _described(call: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a handler the name and the place of the task's function, for messages and logs."""
    described: Any = call
    described.__signature__ = inspect.signature(call)  # its own, whatever it wraps
    described.__wrapped__ = function
    call.__annotations__ = _HINTS
    call.__module__, call.__qualname__ = function.__module__, function.__qualname__
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return call

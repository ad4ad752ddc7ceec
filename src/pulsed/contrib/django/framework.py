"""What Django's Tasks framework and its backport have in common, under one set of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from pulsed.handler.options import Options


class Framework(NamedTuple):
    """The classes and signals of ``django.tasks``, or of ``django_tasks``."""

    result: Any
    error: Any
    context: Any
    status: Any
    normalize_json: Callable[[Any], Any]
    enqueued: Any
    started: Any
    finished: Any
    invalid: type[Exception]
    does_not_exist: type[Exception]


OF_TASKS = (
    *("max_attempts", "backoff", "timeout", "lease", "expires"),
    *("key", "key_for", "on_duplicate", "tags"),
)
"""Options of pulsed that a task has besides Django's own."""

_OF_DJANGO = ("priority", "queue_name", "run_after", "backend")


def task_class_of(base: Any, module: str) -> Any:
    """Return the framework's class of tasks, with pulsed's options as further fields.

    It is to be assigned to ``PulsedTask`` in ``module``, where pickle finds it.
    """

    @dataclass(frozen=True, slots=True, kw_only=True)
    class PulsedTask(base):
        max_attempts: int | None = None
        backoff: Any = None
        timeout: Any = None
        lease: Any = None
        expires: Any = None
        key: Any = None
        """As of ``@app.job``: a text with names of arguments in braces, or a function of them."""
        key_for: Any = None
        on_duplicate: str | None = None
        tags: Any = None
        limit: Any = None
        """As of ``@app.job``; all jobs of the task share it, so ``using`` does not change it."""

        def using(self, **changes: Any) -> Any:
            """Return the same task with other options: Django's, and pulsed's."""
            known = (*_OF_DJANGO, *OF_TASKS)
            for name in changes:
                if name not in known:
                    raise TypeError(
                        f"using() has no option {name!r}. There are: {', '.join(known)}."
                    )
            return replace(
                self, **{name: value for name, value in changes.items() if value is not None}
            )

    assert {field.name for field in fields(PulsedTask)} >= set(OF_TASKS)
    assert set(OF_TASKS) <= Options.__annotations__.keys()
    PulsedTask.__module__, PulsedTask.__qualname__ = module, "PulsedTask"
    return PulsedTask

"""Declaring steps: functions that run as a step of the workflow that calls them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from pulsed.engine.context import current_context
from pulsed.engine.workflow.calling import is_inside_step
from pulsed.engine.workflow.steps import StepOptions, checked_step_options, name_of
from pulsed.errors import ConfigError, InvalidHandler
from pulsed.model.backoff import RetryPolicy

P = ParamSpec("P")
R = TypeVar("R")


class StepDecorator:
    """The decorator ``@app.step`` and ``@app.step(...)``."""

    def __init__(self, name: str | None = None, options: StepOptions | None = None) -> None:
        self._name = name
        self._options = options or StepOptions()

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: Literal[False] = False,
    ) -> StepDecorator: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: Literal[True],
    ) -> TransactionalStepDecorator: ...

    def __call__(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: bool = False,
    ) -> Any:
        """Make a function a step, or return a decorator with these options."""
        if fn is not None:
            return stepped(fn, self._name, self._options)
        kind = TransactionalStepDecorator if tx else StepDecorator
        return kind(name, checked_step_options(retry, timeout, tx=tx))


class TransactionalStepDecorator:
    """The decorator ``@app.step(tx=True)``: your function's first parameter is the connection."""

    def __init__(self, name: str | None, options: StepOptions) -> None:
        self._name = name
        self._options = options

    def __call__(
        self, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Make a function a step."""
        step: Callable[P, Coroutine[Any, Any, R]] = stepped(fn, self._name, self._options)
        return step


def stepped(fn: Callable[..., Any], name: str | None, options: StepOptions) -> Any:
    """Return a function that runs as a step inside a job, and as itself everywhere else."""
    if not inspect.iscoroutinefunction(fn):
        raise InvalidHandler(
            f"@app.step takes an `async def` function, and {fn!r} is not one. Call a plain one "
            "with `await ctx.step(fn, …)`, which runs it in a thread."
        )
    name = name_of(fn, name)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        context = None if is_inside_step() else current_context()
        if context is not None:
            return context._run_as_step(fn, args, kwargs, name, options)  # noqa: SLF001 - pulsed's
        if options.tx:
            raise ConfigError(
                f"{name!r} runs in a transaction with the checkpoint of its step, and there is "
                "none: call it in a job, and not inside of another step."
            )
        coroutine: Coroutine[Any, Any, Any] = fn(*args, **kwargs)
        return coroutine

    return call

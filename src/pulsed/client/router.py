"""Declaring jobs: the decorator, and routers for modules that must not import an app."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from pulsed.client.jobtype import AsyncJobType, Declaration, JobType, SyncJobType
from pulsed.errors import ConfigError
from pulsed.handler import Handler, HandlerOptions

if TYPE_CHECKING:
    from pulsed.client.step_decorator import StepDecorator
    from pulsed.engine.context import Context

P = ParamSpec("P")
R = TypeVar("R")


class _Anything:
    """Fits only a parameter that takes anything, such as one without a hint."""


class JobDecorator:
    """The decorator ``@app.job`` and ``@app.job(...)``."""

    def __init__(
        self, declare: Callable[[Handler[Any]], Declaration], options: HandlerOptions | None = None
    ) -> None:
        self._declare = declare
        self._options: HandlerOptions = options or {}

    # The first match wins. A parameter without a hint accepts a Context as well, so functions
    # whose first parameter has none come first; their parameters are not checked.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[_Anything, P], Coroutine[Any, Any, R]], /
    ) -> AsyncJobType[..., R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[_Anything, P], R], /) -> SyncJobType[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncJobType[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> SyncJobType[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncJobType[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncJobType[P, R]: ...
    @overload
    def __call__(self, /, **options: Unpack[HandlerOptions]) -> JobDecorator: ...

    def __call__(
        self, fn: Callable[..., Any] | None = None, /, **options: Unpack[HandlerOptions]
    ) -> Any:
        """Declare a function as a job, or return a decorator with these options."""
        if fn is None:
            return JobDecorator(self._declare, options)
        handler: Handler[Any] = Handler(fn, **self._options)
        kind: type[JobType[..., Any]] = AsyncJobType if handler.is_async else SyncJobType
        return kind(self._declare(handler))


class Router:
    """Jobs declared without an app, for a module that must not import one."""

    def __init__(self) -> None:
        self._declarations: list[Declaration] = []
        self._included: Callable[[Declaration], None] | None = None

    @property
    def job(self) -> JobDecorator:
        """Declare a job: ``@router.job`` or ``@router.job(queue="mail", ...)``."""
        return JobDecorator(self._declare)

    @property
    def step(self) -> StepDecorator:
        """Declare a step: ``@router.step`` or ``@router.step(retry=3, ...)``."""
        from pulsed.client.step_decorator import StepDecorator  # noqa: PLC0415 - not all have steps

        return StepDecorator()

    def join(self, include: Callable[[Declaration], None]) -> None:
        """Hand all declarations, present and future, to an app."""
        if self._included is not None:
            raise ConfigError("This router is part of an app already; make one for each app.")
        for declared in self._declarations:
            include(declared)
        self._included = include

    def _declare(self, handler: Handler[Any]) -> Declaration:
        declared = Declaration(handler)
        if self._included is not None:
            self._included(declared)
        self._declarations.append(declared)
        return declared

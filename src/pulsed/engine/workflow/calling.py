"""Calls the function of a step: an async one on the loop, a plain one in a thread of its own.

A value that has arrived is never discarded: neither by a timeout that fires at the same moment, nor
by a cancellation of the handler, which is returned and raised once the value is stored.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import time
from asyncio import CancelledError, Future
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_inside: ContextVar[bool] = ContextVar("pulsed_inside_a_step", default=False)
_in_transaction: ContextVar[bool] = ContextVar("pulsed_in_a_transaction", default=False)


@dataclass(frozen=True, slots=True)
class Function:
    """A function with its arguments."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function, so that calling it does not block the loop."""
        inner = without_partial(self.fn)
        call = None if isinstance(inner, type) else getattr(inner, "__call__", None)  # noqa: B004
        return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


class Returned(NamedTuple):
    """A function's value, and a cancellation that arrived meanwhile, to be raised later."""

    value: Any
    cancelled: CancelledError | None = None


def is_inside_step() -> bool:
    """Whether this code is part of a step."""
    return _inside.get()


def is_in_transaction() -> bool:
    """Whether this code is part of a step with a transaction of its own."""
    return _in_transaction.get()


@contextmanager
def as_transaction() -> Iterator[None]:
    """Mark what is called meanwhile as part of a step with a transaction."""
    token = _in_transaction.set(True)
    try:
        yield
    finally:
        _in_transaction.reset(token)


def without_partial(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of ``functools.partial`` objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


async def plainly(function: Function) -> Any:
    """Call a function as part of the step that is already running."""
    value = function.fn(*function.args, **function.kwargs)
    return await value if inspect.isawaitable(value) else value


async def call(
    function: Function,
    *,
    within: float | None = None,
    when_late: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> Returned:
    """Call a function; raises ``TimeoutError`` after ``within`` seconds.

    A thread cannot be stopped. After the timeout it is abandoned, unless ``when_late`` is given:
    then that is called, and the thread's end is awaited.
    """
    if function.is_async:
        awaitable = function.fn(*function.args, **function.kwargs)
    else:
        returned = await _in_thread(function, within, when_late)
        if not inspect.iscoroutine(returned.value):
            return returned
        if returned.cancelled is not None:
            returned.value.close()
            raise returned.cancelled
        awaitable = returned.value  # a plain wrapper around an async function
    if within is None:
        with _as_step():
            return Returned(await awaitable)
    return await _in_task(awaitable, function.name, within)


async def outlast(
    future: Future[Any],
    *,
    within: float | None = None,
    interrupt: Callable[[], object] | None = None,
) -> CancelledError | None:
    """Wait for a future through every cancellation; returns the last of them.

    ``interrupt`` is called for each. ``within`` bounds the wait; the future may not be done then.
    """
    until = None if within is None else time.monotonic() + within
    cancelled = None
    while not future.done():
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            break
        try:
            await asyncio.wait([future], timeout=left)
        except CancelledError as error:
            cancelled = error
            if interrupt is not None:
                interrupt()
    return cancelled


async def _in_task(awaitable: Awaitable[Any], name: str, within: float) -> Returned:
    """Await something in a task of its own, which can be cancelled without the caller's task."""
    with _as_step():
        task = asyncio.ensure_future(awaiting(awaitable))
    cancelled = await outlast(task, within=within, interrupt=task.cancel)
    late = not task.done()
    if late:
        task.cancel()
        cancelled = await outlast(task, interrupt=task.cancel) or cancelled
    if not task.cancelled() and task.exception() is None:
        return Returned(task.result(), cancelled)
    if cancelled is not None:
        raise cancelled
    if late:
        raise _too_late(name, within)
    return Returned(task.result())


async def _in_thread(
    function: Function,
    within: float | None,
    when_late: Callable[[], Coroutine[Any, Any, None]] | None,
) -> Returned:
    future = _start_thread(function)
    cancelled = await outlast(future, within=within)
    late = not future.done()
    if late and when_late is not None:
        doing = asyncio.ensure_future(when_late())
        cancelled = await outlast(doing) or cancelled
        cancelled = await outlast(future) or cancelled
        doing.result()
    if cancelled is not None and (late or future.exception() is not None):
        raise cancelled
    if late:
        raise _too_late(function.name, within)
    return Returned(future.result(), cancelled)


def _start_thread(function: Function) -> Future[Any]:
    """Call a plain function in a daemon thread, in a copy of the current context variables."""
    loop = asyncio.get_running_loop()
    future: Future[Any] = loop.create_future()
    future.add_done_callback(_mark_retrieved)
    with _as_step():
        variables = contextvars.copy_context()

    def run() -> None:
        try:
            value = variables.run(function.fn, *function.args, **function.kwargs)
        except StopIteration as error:  # a future cannot carry it
            refused = RuntimeError(f"{function.name} raised StopIteration")
            refused.__cause__ = error
            tell(future.set_exception, refused)
        except BaseException as error:  # noqa: BLE001 - the handler's to deal with
            tell(future.set_exception, error)
        else:
            tell(future.set_result, value)

    def tell(end: Callable[[Any], object], what: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, what)

    threading.Thread(target=run, name=f"pulsed-step-{function.name}", daemon=True).start()
    return future


def _mark_retrieved(future: Future[Any]) -> None:
    """Retrieve the error of an abandoned thread, so that asyncio does not warn about it."""
    if not future.cancelled():
        future.exception()


@contextmanager
def _as_step() -> Iterator[None]:
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


async def awaiting(awaitable: Awaitable[Any]) -> Any:
    """Wrap any awaitable in a coroutine."""
    return await awaitable


def _too_late(name: str, within: float | None) -> TimeoutError:
    return TimeoutError(f"step {name!r} took longer than {within:g} s")

"""The user's context managers around runs, steps and enqueues.

The first one declared is the outermost. An async one runs on the event loop; a plain one where the
code runs that it surrounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from pulsed.errors import ConfigError
from pulsed.handler.function import describe


class Around(NamedTuple):
    """A function that makes a context manager."""

    make: Callable[..., Any]
    is_async: bool


class Arounds:
    """What an app has declared around its runs, steps and enqueues."""

    def __init__(self) -> None:
        self.runs: list[Around] = []
        self.steps: list[Around] = []
        self.enqueues: list[Around] = []


class RunArounds:
    """What surrounds the runs of one worker."""

    def __init__(self, arounds: Sequence[Around] = ()) -> None:
        self.all = tuple(arounds)
        self.on_loop = tuple(each for each in arounds if each.is_async)
        """Around a plain handler, these surround its thread…"""
        self.in_thread = tuple(each for each in arounds if not each.is_async)
        """…and these run in it."""


NOTHING_AROUND = RunArounds()


def around_of(fn: Callable[..., Any], decorator: str, *, plain: bool = False) -> Around:
    """Return what a decorator was put on as an ``Around``, or raise ``ConfigError``.

    ``plain`` refuses async ones.
    """
    around = _around_of(fn)
    if around is None:
        raise ConfigError(
            f"@app.{decorator} takes a function that yields once, plain or async, or a context "
            f"manager class; {describe(fn)} is neither."
        )
    if plain and around.is_async:
        raise ConfigError(
            f"@app.{decorator} takes a plain function, because it runs in blocking calls, too: "
            f"write {describe(fn)} with `def`."
        )
    takes = _positional(fn)
    if takes == 0:
        return around._replace(make=lambda *_: around.make())
    return around


def _around_of(fn: Callable[..., Any]) -> Around | None:
    if isinstance(fn, type):
        return _class_around(fn)
    inner = inspect.unwrap(fn)
    is_decorated = inner is not fn  # by @contextmanager or its async sibling
    if inspect.isasyncgenfunction(inner):
        return Around(fn if is_decorated else asynccontextmanager(fn), is_async=True)
    if inspect.isgeneratorfunction(inner):
        return Around(fn if is_decorated else contextmanager(fn), is_async=False)
    return None


def _class_around(kind: type) -> Around | None:
    if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
        return Around(kind, is_async=True)
    if hasattr(kind, "__enter__") and hasattr(kind, "__exit__"):
        return Around(kind, is_async=False)
    return None


def _positional(fn: Callable[..., Any]) -> int:
    kinds = [parameter.kind for parameter in inspect.signature(fn).parameters.values()]
    return sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds)


async def enter_all(stack: AsyncExitStack, arounds: Sequence[Around], subject: object) -> None:
    """Enter context managers, on the event loop."""
    for make, is_async in arounds:
        manager = make(subject)
        if is_async:
            await stack.enter_async_context(manager)
        else:
            stack.enter_context(manager)


def enter_plain(stack: ExitStack, arounds: Sequence[Around], subject: object) -> None:
    """Enter plain context managers, in this thread."""
    for make, _ in arounds:
        stack.enter_context(make(subject))

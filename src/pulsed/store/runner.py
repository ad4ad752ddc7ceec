"""Driving a verb's generator, with or without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pulsed.store.verb import Rows, Statement, Verb

T = TypeVar("T")


def drive(verb: Verb[T], execute: Callable[[Statement], Rows]) -> T:
    """Run a verb's statements one after the other, in this thread."""
    script = verb.script()
    try:
        statement = next(script)
        while True:
            statement = script.send(execute(statement))
    except StopIteration as finished:
        value: T = finished.value
        return value


async def adrive(verb: Verb[T], execute: Callable[[Statement], Awaitable[Rows]]) -> T:
    """Run a verb's statements one after the other, in this task."""
    script = verb.script()
    try:
        statement = next(script)
        while True:
            statement = script.send(await execute(statement))
    except StopIteration as finished:
        value: T = finished.value
        return value

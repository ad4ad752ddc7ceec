"""One run of a job: calling its handler and turning what happens into an outcome."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Any

from pulsed.engine import context as contexts
from pulsed.engine.context import Context
from pulsed.engine.threads import HandlerThreads
from pulsed.errors import InvalidPayload, NoRetry, RetryAfter, Snooze
from pulsed.handler import Handler, clean_text
from pulsed.job import (
    Assignment,
    Cancelled,
    Failed,
    Lease,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
)


class Stop(Enum):
    """Why a run was told to stop before its handler had finished."""

    LOST = "its lease is lost"
    CANCELLED = "somebody cancelled the job"
    TIMED_OUT = "its timeout is over"
    ABORTED = "the worker is going away"


class Run:
    """A claimed job while this worker has it."""

    __slots__ = ("assignment", "context", "handler", "reported", "stop", "task", "timer")

    def __init__(self, assignment: Assignment, handler: Handler[Any], context: Context) -> None:
        self.assignment = assignment
        self.handler = handler
        self.context = context
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.stop: Stop | None = None
        self.reported = False
        """Its outcome is on the way to the database, or nobody wants it any more."""

    @property
    def lease(self) -> Lease:
        """The lease it runs under."""
        return self.assignment.lease

    def tell_to_stop(self, why: Stop) -> None:
        """Cancel an async handler; raise the flag that a plain function can look at."""
        if self.stop is None:
            self.stop = why
            self.context._cancelled = True  # noqa: SLF001 - the context is the run's own
            if self.task is not None and self.handler.is_async:
                self.task.cancel()

    def __str__(self) -> str:
        return f"job {self.assignment.job_id} ({self.assignment.topic})"


async def outcome_of(run: Run, threads: HandlerThreads) -> Outcome | None:
    """Run the handler; None means that the run no longer belongs to us."""
    contexts.enter(run.context)
    try:
        value = await _call(run, threads)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a job must not end its worker
        return _after_error(run, error)
    if run.stop is Stop.LOST:
        return None
    try:
        return Succeeded(run.handler.encode_result(value))
    except InvalidPayload as error:
        return Failed(clean_text(str(error)), final=True)


async def _call(run: Run, threads: HandlerThreads) -> Any:
    arguments = run.handler.decode(run.assignment.payload)
    function: Callable[..., Any] = run.handler.fn
    if run.handler.takes_context:
        function = functools.partial(function, run.context)
    if run.handler.is_async:
        return await function(**arguments)
    return await threads.run(functools.partial(function, **arguments))


def _after_error(run: Run, error: BaseException) -> Outcome | None:
    if isinstance(error, asyncio.CancelledError) and run.stop is not None:
        return outcome_of_stop(run)
    if run.stop is Stop.LOST:
        return None
    match error:
        case Snooze():
            return Snoozed(error.seconds)
        case RetryAfter():
            return Failed(clean_text(error.reason), _trace(error), delay=error.seconds)
        case NoRetry():
            return Failed(clean_text(error.reason), _trace(error), final=True)
        case _:
            return Failed(_describe(error), _trace(error))


def outcome_of_stop(run: Run) -> Outcome | None:
    """Return how a run ends that did not get to its own end."""
    match run.stop:
        case Stop.CANCELLED:
            return Cancelled()
        case Stop.TIMED_OUT:
            return Failed(f"timed out after {run.assignment.timeout:g} s")
        case Stop.ABORTED:
            return Released()
        case _:
            return None


def _describe(error: BaseException) -> str:
    """Return ``Type: message``, whatever the exception's own ``__str__`` does."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - somebody else's code
        message = "(its message cannot be shown)"
    name = type(error).__qualname__
    return clean_text(f"{name}: {message}" if message else name)


def _trace(error: BaseException) -> str:
    try:
        return clean_text("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001 - somebody else's code
        return "(its traceback cannot be shown)"

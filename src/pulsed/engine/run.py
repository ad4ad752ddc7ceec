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

    __slots__ = (
        "assignment", "context", "handler", "reported", "started", "stop", "task", "timer",
    )  # fmt: skip

    def __init__(self, assignment: Assignment, handler: Handler[Any], context: Context) -> None:
        self.assignment = assignment
        self.handler = handler
        self.context = context
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.stop: Stop | None = None
        self.started = False
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
            # A task that is cancelled before its first step never runs any of its code, and
            # could not report; it looks at ``stop`` when it begins.
            if self.task is not None and self.started and self.handler.is_async:
                self.task.cancel()

    def __str__(self) -> str:
        return f"job {self.assignment.job_id} ({self.assignment.topic})"


async def outcome_of(run: Run, threads: HandlerThreads) -> Outcome | None:
    """Run the handler; None means that the run no longer belongs to us. Never raises."""
    run.started = True
    if run.stop is not None:
        return outcome_of_stop(run)
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
    except BaseException as error:  # noqa: BLE001 - a result may bring its own code
        return Failed(_describe(error), _trace(error), final=True)


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
    if run.stop in (Stop.LOST, Stop.ABORTED):
        return outcome_of_stop(run)  # what it says now is about our interruption
    match error:
        case Snooze():
            return Snoozed(error.seconds)
        case RetryAfter():
            return Failed(_message(error), _trace(error), delay=error.seconds)
        case NoRetry():
            return Failed(_message(error), _trace(error), final=True)
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
    """Return ``Type: message``."""
    name, message = type(error).__qualname__, _message(error)
    return clean_text(f"{name}: {message}" if message else name)


def _message(error: BaseException) -> str:
    """Return an exception's text, whatever its own ``__str__`` does."""
    try:
        return clean_text(str(error))
    except BaseException:  # noqa: BLE001 - somebody else's code
        return "(its message cannot be shown)"


def _trace(error: BaseException) -> str:
    try:
        return clean_text("".join(traceback.format_exception(error)))
    except BaseException:  # noqa: BLE001 - somebody else's code
        return "(its traceback cannot be shown)"

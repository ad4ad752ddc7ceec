"""One run of a job: calls its handler and turns the result or error into an outcome.

An async handler is stepped by hand until it suspends. Many never do: they await nothing, or what
they await is ready. Those have ended by then, and cost no task. One that suspends becomes a
``Suspended``, whose rest is awaited in a task of its own. Either way ``run.outcome`` has the end.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack, ExitStack
from contextvars import Context as Variables
from contextvars import copy_context
from datetime import datetime
from enum import Enum
from types import CoroutineType
from typing import Any, TypeAlias

import msgspec

from pulsed.engine.around import NOTHING_AROUND, RunArounds, enter_all, enter_plain
from pulsed.engine.context import Context
from pulsed.engine.error_text import describe, message, trace
from pulsed.engine.job_logging import current
from pulsed.engine.workflow.calling import outlast
from pulsed.engine.workflow.flow import Workflow
from pulsed.engine.workflow.run_stream import on_loop
from pulsed.engine.workflow.suspension import Suspension, is_suspension
from pulsed.errors import InvalidPayload, NoRetry, RetryAfter, RunStopped, Snooze, WorkflowError
from pulsed.handler import Handler, clean_text
from pulsed.model.job import Assignment, Lease
from pulsed.model.outcome import (
    Cancelled,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Waiting,
)


class StopReason(Enum):
    """Why a run was told to stop before its handler had finished."""

    LOST = "its lease was lost"
    CANCELLED = "the job was cancelled"
    TIMED_OUT = "its timeout expired"
    ABORTED = "the worker is shutting down"


_making_context = threading.Lock()


class Run(msgspec.Struct, eq=False):
    """One execution of a claimed job in this worker."""

    assignment: Assignment
    handler: Handler[Any]
    make_context: Callable[[Assignment], Context]
    arounds: RunArounds = NOTHING_AROUND
    began: float = 0.0
    """When its handler was called, by the monotonic clock; 0: not yet…"""
    ended: float = 0.0
    """…and when it had ended, or was given up on."""
    outcome: Outcome | None = None
    """How it ended; None: not yet, or its lease was lost, so there is nothing to report."""
    made_context: Context | None = None
    """Its context, if anything has asked for it."""
    is_over: bool = False
    """Whether its handler has ended."""
    error: BaseException | None = None
    """What its handler raised, from its end until it has been logged."""
    task: asyncio.Task[None] | None = None
    """The run's own task, from when its handler first suspends."""
    timer: asyncio.TimerHandle | None = None
    stop: StopReason | None = None
    reported: bool = False
    """Its outcome is on the way to the database, or is no longer wanted."""
    # For its events; set by ``run_events`` if there are subscribers.
    claimed_at: datetime | None = None
    error_type: str = ""
    error_line: str = ""
    """The handler's line that raised the error, if it was raised in another process."""

    @property
    def lease(self) -> Lease:
        """The lease that it runs under."""
        return self.assignment.lease

    @property
    def context(self) -> Context:
        """What its handler may take as ``ctx``, made when it is first asked for, in any thread."""
        if self.made_context is None:
            with _making_context:
                if self.made_context is None:
                    self.made_context = self.make_context(self.assignment)
            self._tell_context()  # now that others see it: what happened before that
        return self.made_context

    def _tell_context(self) -> None:
        """Have its context, if it is made, know what happened to the run.

        In two threads at once, perhaps: so nothing is ever taken back.
        """
        context = self.made_context
        if context is None:
            return
        if self.task is not None:
            context._task = self.task  # noqa: SLF001 - the context is the run's own
        if self.stop is not None:
            context._stopped = self.stop.value  # noqa: SLF001 - as above
        if self.is_over:
            context._ended = True  # noqa: SLF001 - as above

    @property
    def flow(self) -> Workflow | None:
        """Its workflow, if it is one."""
        context = self.made_context
        return None if context is None else context._flow  # noqa: SLF001 - as above

    @property
    def starts_on_loop(self) -> bool:
        """Whether it starts on the event loop, if only to enter what surrounds its thread."""
        return self.handler.is_async or bool(self.arounds.on_loop)

    def tell_to_stop(self, why: StopReason) -> None:
        """Cancel an async handler; set the flag that a plain function can check.

        A run that has not started checks ``stop`` when it does.
        """
        if self.stop is None:
            self.stop = why
            self._tell_context()
            if self.task is not None:
                self.task.cancel()

    def keep(self, task: asyncio.Task[None] | None) -> None:
        """Have the task in which its handler has suspended for itself."""
        self.task = task
        self._tell_context()

    def end(self) -> Workflow | None:
        """Note that its handler has ended; returns its workflow, if it is one."""
        self.is_over = True
        if self.made_context is None:
            return None
        self._tell_context()
        flow = self.flow
        if flow is not None:
            flow.ended = True
        return flow

    def seconds(self) -> float:
        """Return for how long its handler has been running, or ran until its end."""
        return (self.ended or time.monotonic()) - self.began if self.began else 0.0

    def milliseconds(self) -> float:
        """Return the same in milliseconds, for a log record."""
        return round(self.seconds() * 1000, 3)

    def log_fields(self) -> dict[str, Any]:
        """Return its job as the ``extra`` of a log record."""
        job = self.assignment
        return {"job_id": str(job.job_id), "topic": job.topic, "attempt": job.attempt}

    def __str__(self) -> str:
        return f"job {self.assignment.job_id} ({self.assignment.topic})"


class Suspended:
    """The rest of an async handler that has suspended, with context variables of its own."""

    __slots__ = ("_awaited", "_coroutine", "_variables")

    def __init__(
        self, variables: Variables, coroutine: Coroutine[Any, Any, Any], awaited: Any
    ) -> None:
        self._variables = variables
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        """Do what ``await coroutine`` does, in the context variables that it started in."""
        run, coroutine, awaited = self._variables.run, self._coroutine, self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except GeneratorExit:
                    run(coroutine.close)
                    raise
                except BaseException as error:  # noqa: BLE001 - the handler's to deal with
                    awaited = run(coroutine.throw, error)
                else:
                    awaited = run(coroutine.send, sent)
        except StopIteration as returned:
            return returned.value


InThread: TypeAlias = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
"""Calls a function in a thread, and returns what it returns."""

_ENDED: Any = object()


def start(run: Run, in_thread: InThread) -> Suspended | None:
    """Start a run on the event loop; None: it has ended without suspending. Never raises."""
    if run.stop is not None:
        run.outcome = outcome_of_stop(run)
        return None
    variables = copy_context()
    coroutine = _executed(run, in_thread)
    # ``next`` with a default makes no StopIteration, which would take as long as all of this.
    awaited = variables.run(next, coroutine.__await__(), _ENDED)
    return None if awaited is _ENDED else Suspended(variables, coroutine, awaited)


async def _executed(run: Run, in_thread: InThread) -> None:
    """Call a handler, inside of what surrounds it, and note the outcome. Never raises."""
    current.set(run)
    try:
        if not run.handler.is_async:
            value = await _called_around_thread(run, in_thread)
        elif run.arounds.all:
            value = await _called_around(run)
        else:
            value = await _called(run)
    except StopIteration as error:  # of a wrapper, not of a coroutine
        failure = RuntimeError("the handler raised StopIteration")
        failure.__cause__ = error
        run.outcome = _after_error(run, failure)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a job must not end its worker
        run.outcome = _after_error(run, error)
    else:
        run.outcome = _after_return(run, value)


async def finish(run: Run, rest: Suspended) -> None:
    """Finish a run that has suspended. Never raises."""
    try:
        await rest
    except BaseException as error:  # noqa: BLE001 - its task is closed
        run.outcome = _after_error(run, error)
    await _end_steps(run)
    run.outcome = await written(run, run.outcome)


async def written(run: Run, outcome: Outcome | None) -> Outcome | None:
    """Wait until what a run has emitted is stored; returns the outcome to report then.

    If it cannot be stored, the run has failed, unless it has anyway.
    """
    context = run.made_context
    if context is None or context._stream is None:  # noqa: SLF001 - the context is the run's own
        return outcome
    stream = context._stream  # noqa: SLF001 - as above
    flushing = asyncio.ensure_future(stream.flush())
    await outlast(flushing)
    error = flushing.exception()
    if error is None or not isinstance(outcome, Succeeded | Waiting):
        return outcome
    run.error = error
    return Failed(describe(error), trace(error))


async def _end_steps(run: Run) -> None:
    flow = run.flow
    if flow is not None:
        await flow.end(stop=run.stop is not None)


def call(run: Run) -> Outcome | None:
    """Run a plain handler, in this thread. Never raises."""
    if run.stop is not None:
        return outcome_of_stop(run)
    run.began = time.monotonic()
    current.set(run)
    try:
        value = _called_in_thread(run)
    except BaseException as error:  # noqa: BLE001 - see above
        return _written_from_thread(run, _after_error(run, error))
    return _written_from_thread(run, _after_return(run, value))


def _written_from_thread(run: Run, outcome: Outcome | None) -> Outcome | None:
    context = run.made_context
    if context is None or context._stream is None:  # noqa: SLF001 - the context is the run's own
        return outcome
    return on_loop(context._shared().loop, written(run, outcome))  # noqa: SLF001


def _called_in_thread(run: Run) -> Any:
    """Call a plain handler, inside of what surrounds it in its thread."""
    if not run.arounds.in_thread:
        return _checked(run, _called(run))
    with ExitStack() as stack:
        enter_plain(stack, run.arounds.in_thread, run.context)
        return _checked(run, _called(run))
    return None  # one of them caught the handler's error


def _checked(run: Run, value: Any) -> Any:
    """Return what a plain handler returned, unless that is a coroutine."""
    if type(value) is CoroutineType:
        value.close()
        raise NoRetry(
            f"{run.handler.location} returned a coroutine that nothing awaits. A decorator of "
            "an async function must be written with `async def` and await it; on a plain "
            "function, leave `async` out."
        )
    return value


async def _called_around(run: Run) -> Any:
    """Call an async handler, inside of what surrounds it."""
    async with AsyncExitStack() as stack:
        await enter_all(stack, run.arounds.all, run.context)
        return await _called(run)
    return None  # one of them caught the handler's error


async def _called_around_thread(run: Run, in_thread: InThread) -> Any:
    """Call a plain handler in a thread, inside of what surrounds that on the event loop."""
    async with AsyncExitStack() as stack:
        await enter_all(stack, run.arounds.on_loop, run.context)
        return await in_thread(functools.partial(_called_unless_stopped, run))
    return None  # one of them caught the handler's error


def _called_unless_stopped(run: Run) -> Any:
    if run.stop is not None:
        raise asyncio.CancelledError(run.stop.value)
    return _called_in_thread(run)


def _called(run: Run) -> Any:
    handler, codec = run.handler, run.handler.codec
    arguments = codec.decode(run.assignment.payload)
    if codec.takes_context:
        return handler.fn(run.context, **arguments)
    return handler.fn(**arguments)


def _after_return(run: Run, value: Any) -> Outcome | None:
    flow = run.end()
    if run.stop is not None and run.stop in (StopReason.LOST, StopReason.TIMED_OUT):
        return outcome_of_stop(run)  # even if the handler caught its cancellation
    if flow is not None and flow.interrupted is not None:
        return _stayed(flow.interrupted)
    try:
        result = run.handler.codec.encode_result(value)
        return Succeeded(result, flow is not None and not run.handler.keep_steps)
    except InvalidPayload as error:
        return Failed(clean_text(str(error)), final=True)
    except BaseException as error:  # noqa: BLE001 - encoding may run user code
        return Failed(describe(error), trace(error), final=True)


def _after_error(run: Run, error: BaseException) -> Outcome | None:
    flow = run.end()
    if isinstance(error, asyncio.CancelledError | RunStopped) and run.stop is not None:
        return outcome_of_stop(run)
    if run.stop in (StopReason.LOST, StopReason.ABORTED):
        return outcome_of_stop(run)  # its error comes from being interrupted
    if run.stop is StopReason.TIMED_OUT and (isinstance(error, Snooze) or is_suspension(error)):
        return outcome_of_stop(run)  # it would go on later, but its attempt has failed
    if flow is not None and isinstance(flow.interrupted, Suspension):
        if is_suspension(error):
            return flow.interrupted.outcome
        return _stayed(flow.interrupted, error)
    run.error = error
    match error:
        case Snooze():
            return Snoozed(error.seconds)
        case RetryAfter():
            return Failed(message(error), trace(error), delay=error.seconds)
        case NoRetry():
            return Failed(message(error), trace(error), final=True)
        case WorkflowError() if error.job_id == run.assignment.job_id:
            return Failed(describe(error), trace(error), final=True)  # a replay would repeat it
        case _:
            repeated = flow is not None and error is flow.repeated
            return Failed(describe(error), trace(error), final=repeated)


def _stayed(interrupted: BaseException, error: BaseException | None = None) -> Outcome:
    """Return the outcome of a workflow whose handler did not unwind when interrupted."""
    if not isinstance(interrupted, Suspension):
        return Failed(describe(interrupted), trace(interrupted), final=True)
    did = "returned" if error is None else f"raised {describe(error)}"
    return Failed(
        "the handler caught the interruption that lets a workflow wait, and "
        f"{did}. Catch Exception, not BaseException, and do not return from `finally`.",
        trace(error) if error is not None else None,
        final=True,
    )


def outcome_of_stop(run: Run) -> Outcome | None:
    """Return the outcome of a run that was stopped; None: lease lost, nothing to report."""
    match run.stop:
        case StopReason.CANCELLED:
            return Cancelled()
        case StopReason.TIMED_OUT:
            return Failed(f"timed out after {run.assignment.timeout:g} s")
        case StopReason.ABORTED:
            return Released()
        case _:
            return None

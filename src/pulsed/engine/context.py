"""The context of a run: what your handler can read about it, and do with it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from datetime import datetime, timedelta
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, TypeVarTuple, Unpack, cast, overload
from uuid import UUID

from pulsed.engine.job_logging import JobLogger, current
from pulsed.engine.workflow import fan_out, steps, versions, waits
from pulsed.engine.workflow.calling import (
    Function,
    is_in_transaction,
    is_inside_step,
    plainly,
)
from pulsed.engine.workflow.fan_out import FanOut
from pulsed.engine.workflow.flow import Workflow
from pulsed.engine.workflow.run_stream import RunStream, on_loop
from pulsed.engine.workflow.shared import Workflows
from pulsed.engine.workflow.steps import StepOptions
from pulsed.engine.workflow.waits import Followed
from pulsed.errors import CannotSuspend, LeaseLost, RunEnded, RunStopped
from pulsed.handler import Call, HandlerContext
from pulsed.handler.payload import encode_untyped
from pulsed.handler.stream_item import encode_item
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Assignment
from pulsed.model.workflow import Strategy, fail_fast
from pulsed.store.base import Store
from pulsed.store.blocking import blocking, is_blocking

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger("pulsed.job")


class Context(HandlerContext):
    """The run that your handler is in. Take it as the handler's first parameter.

    ``job_id`` is the same in all runs of a job: use it as the idempotency key of side effects.
    ``lease_token`` is a fencing token, higher in every later run: a resource that has seen a higher
    one can refuse the writes of an older run that was believed dead and is not.

    Your job becomes a workflow when you call ``step``, ``sleep``, ``wait_signal``, ``wait_for``,
    ``fan_out`` or ``version``: their results are stored, and a later run continues after them.
    """

    _flow: Workflow | None = None
    """Set by the first call of such a method."""
    _stream: RunStream | None = None
    """Set by the first item that is emitted."""
    _ended = False
    """Whether the handler has ended; set by the run."""
    _task: asyncio.Task[Any] | None = None
    """The handler's own task, set by the runner; None until the handler first suspends."""

    def __init__(
        self, assignment: Assignment, store: Store, workflows: Workflows | None = None
    ) -> None:
        self._assignment = assignment
        self._store = store
        self._workflows = workflows
        self._stopped: str | None = None
        """Why the run was told to stop; set by the run."""

    @functools.cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the job on every line."""
        fields = {"job_id": str(self.job_id), "topic": self.topic, "attempt": self.attempt}
        return JobLogger(log, fields)

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return self._assignment.job_id

    @property
    def topic(self) -> str:
        """The name of the handler."""
        return self._assignment.topic

    @property
    def queue(self) -> str:
        """The queue the job was claimed from."""
        return self._assignment.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1, 2, … up to ``max_attempts``."""
        return self._assignment.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the job gets before it is dead-lettered."""
        return self._assignment.max_attempts

    @property
    def lease_token(self) -> int:
        """The fencing token: it rises with every run of the job."""
        return self._assignment.lease_token

    @property
    def worker_id(self) -> UUID:
        """The worker that runs the job."""
        return self._assignment.lease.worker_id

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the producer sent besides the arguments."""
        return self._assignment.headers

    @property
    def submitted_at(self) -> datetime:
        """When the job was enqueued."""
        return self._assignment.submitted_at

    @property
    def schedule_id(self) -> UUID | None:
        """The schedule that made the job, or None."""
        return self._assignment.schedule_id

    @property
    def occurrence(self) -> datetime | None:
        """The instant that the schedule was due, which may be before ``submitted_at``."""
        return self._assignment.occurrence

    @property
    def cancelled(self) -> bool:
        """Whether your handler should stop: cancelled, timed out, handed back, or its lease lost.

        Async handlers are cancelled. A plain function runs in a thread, which cannot be stopped
        from outside: if yours takes long, call ``check()`` from time to time.
        """
        return self._stopped is not None

    def check(self) -> None:
        """Raise ``RunStopped`` if your handler should stop; call it in long loops.

        Let it pass: it ends the run as the reason demands. ``except Exception`` does not catch it,
        ``finally`` and ``with`` clean up as usual.
        """
        if self._stopped is not None:
            raise RunStopped(f"job {self.job_id} ({self.topic}): {self._stopped}")

    async def aprogress(self, value: Any) -> None:
        """Store your progress (any JSON value); other processes read it as ``job.progress``.

        Raises ``LeaseLost`` if the run no longer holds its lease.
        """
        self._check_run("progress")
        if not await self._store_progress(encode_untyped("The progress", value)):
            raise LeaseLost.of(self.job_id, self.topic)

    progress = blocking(aprogress)

    async def _store_progress(self, text: str) -> bool:
        return await self._store.set_progress(self._assignment.lease, text)

    async def aemit(self, value: Any) -> None:
        """Append an item (any JSON value) to the job's stream, which ``app.stream(job)`` reads.

        It is queued and written while your handler goes on, and stored before the job ends; the
        call waits only if many items are queued. In a workflow, an item is not emitted again by a
        run that only replays what an earlier one has done. Raises ``LeaseLost`` if the run no
        longer holds its lease.
        """
        self._check_run("emit")
        if is_in_transaction():
            raise self._cannot(
                "emit() stands inside of a step with tx=True, and readers would see the item even "
                "if its transaction is rolled back. Return the value, and emit it after the step."
            )
        await self._emit(encode_item(value))

    emit = blocking(aemit)

    async def _emit(self, text: str) -> None:
        in_step = is_inside_step()
        if not is_blocking():
            await self._put_item(text, may_repeat=not in_step)
            return
        # The thread of a plain handler or step; that of an async handler may repeat items, too.
        may_repeat = self._task is not None and not in_step
        on_loop(self._shared().loop, self._put_item(text, may_repeat=may_repeat))

    async def _put_item(self, text: str, *, may_repeat: bool = False) -> None:
        """Queue an item, unless an earlier run has emitted it; in the worker's event loop."""
        if may_repeat:
            flow = self._workflow("emit", in_step=True)
            following = flow.next_seq  # before others can take it
            await flow.read()
            if flow.was_beyond(following):
                return
        if self._stream is None:
            self._stream = RunStream(self._assignment, self._shared())
            await asyncio.sleep(0)  # so that the run has a task, which can wait for the writes
        await self._stream.put(text)

    def _shared(self) -> Workflows:
        if self._workflows is None:
            self._workflows = Workflows(self._store)
        return self._workflows

    # -- workflows ------------------------------------------------------------------------------
    #
    # None of these is an ``async def``: the call itself raises on misuse, also in code that cannot
    # await it, and it takes its place in the workflow before it is awaited.

    @overload
    def step(
        self,
        fn: Callable[[Any, Unpack[Ts]], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: Literal[True],
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        fn: Callable[[Any, Unpack[Ts]], T],
        /,
        *args: *Ts,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: Literal[True],
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        fn: Callable[[Unpack[Ts]], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: Literal[False] = False,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        fn: Callable[[Unpack[Ts]], T],
        /,
        *args: *Ts,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: Literal[False] = False,
    ) -> Coroutine[Any, Any, T]: ...

    def step(  # type: ignore[misc] # it accepts them all
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        tx: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        """Run your function once in the life of this job; later runs get its stored result.

        Without ``retry``, an error passes through and nothing is stored: the job's own retry runs
        the step again. With ``retry``, a number of tries or a ``RetryPolicy``, the step is retried
        here, and the last failure raises ``StepFailed``. With ``tx``, your function gets a database
        connection as its first argument, and its writes there are committed with its result.
        """
        return self._run_as_step(
            fn, args, {}, name, steps.checked_step_options(retry, timeout, tx=tx)
        )

    def _run_as_step(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        name: str | None,
        options: StepOptions,
    ) -> Coroutine[Any, Any, Any]:
        """Do what ``step`` does, also with keyword arguments; for ``@app.step``."""
        function = Function(steps.name_of(fn, name), fn, args, kwargs)
        flow = self._workflow("step", in_step=True)
        if not is_inside_step():
            return steps.run_step(flow, function, options)
        if options.tx:
            raise self._cannot(
                "step(…, tx=True) stands inside of another step, which is not one "
                "transaction with it. Call the function itself there."
            )
        return plainly(function)

    def sleep(
        self, seconds: float | timedelta, *, name: str = "sleep"
    ) -> Coroutine[Any, Any, None]:
        """Sleep for ``seconds`` without occupying a slot; the sleep survives restarts."""
        return waits.sleep(self._workflow("sleep"), seconds, name)

    def sleep_until(self, until: datetime, *, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Sleep until ``until``, which must be timezone-aware, without occupying a slot."""
        return waits.sleep_until(self._workflow("sleep_until"), until, name)

    @overload
    def wait_signal(
        self, name: str, type: type[T], *, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def wait_signal(
        self, name: str, *, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def wait_signal(
        self, name: str, type: UnionType, *, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, Any]: ...

    def wait_signal(
        self,
        name: str,
        type: Any = Any,  # noqa: A002 - reads well at the call
        *,
        timeout: float | timedelta | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Wait for ``app.signal(job_id, name, payload)`` and return the payload.

        Raises ``SignalTimeout`` after ``timeout`` seconds. With 0, you get only a signal that has
        already arrived.
        """
        return waits.wait_signal(self._workflow("wait_signal"), name, type, timeout)

    @overload
    def signals(
        self, name: str, type: type[T], *, timeout: float | timedelta | None = None
    ) -> AsyncIterator[T]: ...
    @overload
    def signals(
        self, name: str, *, timeout: float | timedelta | None = None
    ) -> AsyncIterator[Any]: ...
    @overload
    def signals(
        self, name: str, type: UnionType, *, timeout: float | timedelta | None = None
    ) -> AsyncIterator[Any]: ...

    def signals(
        self,
        name: str,
        type: Any = Any,  # noqa: A002 - as above
        *,
        timeout: float | timedelta | None = None,
    ) -> AsyncIterator[Any]:
        """Iterate over a name's signals; ends when none arrives for ``timeout`` seconds."""
        self._workflow("signals")
        return waits.signals(lambda: self.wait_signal(name, type, timeout=timeout))

    @overload
    def wait_for(
        self, job: Followed[R], *, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def wait_for(
        self, job: UUID | str, *, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, Any]: ...

    def wait_for(
        self, job: Followed[Any] | UUID | str, *, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Wait for another job and return its result; if you pass only an id, as plain data.

        Raises ``JobFailed`` or ``JobCancelled`` if that job does not succeed (``NeverStarted`` if
        it expired), and ``WaitTimeout`` after ``timeout`` seconds; the other job goes on then.
        """
        return waits.wait_for(self._workflow("wait_for"), job, timeout)

    def fan_out(
        self,
        calls: Iterable[Call[R]],
        *,
        strategy: Strategy = fail_fast,
        timeout: float | timedelta | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        cancel_on_parent_failure: bool = True,
        name: str = "fan_out",
    ) -> Coroutine[Any, Any, FanOut[R]]:
        """Run many jobs, wait for them without occupying a slot, and return their results.

        Your ``strategy`` says when the wait is over. Raises ``FanOutFailed`` if too many children
        fail for it, and ``WaitTimeout`` after ``timeout`` seconds; the children that have not ended
        are cancelled then.
        """
        options = fan_out.checked_fan_out_options(
            strategy,
            timeout,
            queue=queue,
            max_attempts=max_attempts,
            cancel_on_parent_failure=cancel_on_parent_failure,
        )
        return fan_out.fan_out(self._workflow("fan_out"), calls, options, name)

    def version(
        self,
        change: str,
        min: int,  # noqa: A002 - they are what they are called
        max: int,  # noqa: A002
    ) -> Coroutine[Any, Any, int]:
        """Return which version of your code this workflow follows at a change.

        A workflow that was past this point before your change follows ``min``, every other follows
        ``max``. The answer stays the same for the rest of the workflow's life.
        """
        return versions.version(self._workflow("version", in_step=True), change, min, max)

    def _workflow(self, method: str, *, in_step: bool = False) -> Workflow:
        """Return this run's workflow, or raise if ``method`` cannot be called here."""
        self._check_run(method)
        loop = asyncio._get_running_loop()  # noqa: SLF001 - documented
        if loop is None or (self._workflows is not None and self._workflows.loop is not loop):
            raise self._cannot(
                f"{method}() needs the event loop of its worker, and this code runs in a thread. "
                "Make the handler an `async def` function."
            )
        if is_inside_step() and not in_step:
            raise self._cannot(
                f"{method}() stands inside of a step, and a step runs in one go. "
                "Wait in the handler itself, before or after the step."
            )
        if self._flow is None:
            task = self._task or asyncio.current_task()
            self._flow = Workflow(self._assignment, self._shared(), task, lambda: self._stream)
        elif self._flow.interrupted is not None:
            raise self._flow.interrupted
        return self._flow

    def _check_run(self, method: str) -> None:
        if self._ended:
            raise RunEnded(
                f"Job {self.job_id} ({self.topic}): ctx.{method}() was called after the handler "
                "had ended. Await the tasks and join the threads that use the context before the "
                "handler returns.",
                job_id=self.job_id,
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Context belongs to its run and cannot be pickled; pass what you need of it, such as "
            "ctx.job_id."
        )

    def _cannot(self, why: str) -> CannotSuspend:
        return CannotSuspend(f"Job {self.job_id} ({self.topic}): ctx.{why}", job_id=self.job_id)


def current_context() -> Context | None:
    """Return the context of the job that your code runs in, or None outside of a job."""
    run = current.get()
    return None if run is None else cast("Context", run.context)

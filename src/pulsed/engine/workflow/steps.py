"""Steps: functions whose result is stored, so that they run once in the life of a workflow."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pulsed.engine.around import enter_all
from pulsed.engine.error_text import describe
from pulsed.engine.workflow.calling import (
    Function,
    Returned,
    as_transaction,
    call,
    outlast,
    without_partial,
)
from pulsed.engine.workflow.flow import Place, Workflow, checked_step_name
from pulsed.engine.workflow.step_value import ValueCodec, codec_of
from pulsed.errors import (
    ConfigError,
    InvalidOption,
    JobError,
    NoRetry,
    RetryAfter,
    Snooze,
    StepFailed,
    StorageError,
    TransientStorageError,
)
from pulsed.handler.options import checked_timeout
from pulsed.model.backoff import RetryPolicy
from pulsed.model.step import Checkpoint, StepKind, StepState
from pulsed.store.retrying import retrying
from pulsed.store.workflows import CommitUnknown, Transaction

log = logging.getLogger("pulsed.job")

MOST_LOSSES = 5
"""Sessions that a step in a transaction may lose before it counts as the cause itself."""


class StepCall(NamedTuple):
    """A call of a step's function; a stored result needs none."""

    job_id: UUID
    topic: str
    name: str
    """The step's name."""
    tries: int
    """1 for the first try in this run."""


class StepOptions(NamedTuple):
    """The checked options of a step, made from the arguments of ``ctx.step``."""

    retry: RetryPolicy | None = None
    timeout: float | None = None
    tx: bool = False


def checked_step_options(
    retry: int | RetryPolicy | None, timeout: float | timedelta | None, *, tx: bool
) -> StepOptions:
    """Return the options of a step, or raise if one is invalid."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        retry = RetryPolicy(max_attempts=retry)
    return StepOptions(retry, None if timeout is None else checked_timeout(timeout), bool(tx))


def name_of(fn: Callable[..., Any], name: str | None) -> str:
    """Return the name of a step: the given one, or that of its function."""
    if name is None:
        inner = without_partial(fn)
        name = getattr(inner, "__name__", type(inner).__name__)
        if name == "<lambda>":
            raise InvalidOption("A lambda has no name of its own: give the step one, with name=…")
    return checked_step_name(name)


def run_step(flow: Workflow, function: Function, options: StepOptions) -> Coroutine[Any, Any, Any]:
    """Take the next place for a step, and return the coroutine that runs it."""
    inputs = (*function.args, function.kwargs) if function.kwargs else function.args
    place = flow.place(StepKind.STEP, function.name, *inputs)
    return _Step(flow, place, function, options).value()


class _Tried(NamedTuple):
    text: str
    """The value as it is stored."""
    cancelled: asyncio.CancelledError | None
    """Arrived meanwhile; to be raised once the value is stored."""


class _OwnError(Exception):
    """A storage error from the step's own code: not retried like one of the run's database."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(error)
        self.error = error


class _Step:
    """One step of one run."""

    def __init__(
        self, flow: Workflow, place: Place, function: Function, options: StepOptions
    ) -> None:
        self._flow = flow
        self._place = place
        self._function = function
        self._options = options
        self._losses = 0

    async def value(self) -> Any:
        """Return the stored value; if there is none, run the function first."""
        stored = await self._flow.stored(self._place)
        codec = codec_of(self._function.name, self._function.fn)
        if stored is None:
            with self._flow.running(self._place):
                return codec.decode(await self._run(codec))
        if stored.state is StepState.FAILED:
            raise self._failed(stored)
        return codec.decode(stored.value)

    async def _run(self, codec: ValueCodec) -> str:
        """Run the function until a try succeeds; returns the value as it is stored."""
        began = time.perf_counter()
        tries = 1
        while True:
            try:
                text, cancelled = await self._try(codec, tries, began)
                break
            except Exception as error:
                if not self._is_failed_try(error):
                    raise
                delay = self._pause_after(error, tries)
                if delay is None:
                    raise await self._give_up(error, tries, began) from error
                log.warning("%s: try %d failed (%s)", self, tries, describe(error))
            await self._flow.pause(delay)
            tries += 1
        if not self._options.tx:
            await self._flow.record(self._checkpoint(tries, began, value=text))
        if cancelled is not None:
            raise cancelled
        return text

    async def _try(self, codec: ValueCodec, tries: int, began: float) -> _Tried:
        arounds = self._flow.arounds.steps
        if not arounds:
            return await self._try_alone(codec, tries, began)
        step = StepCall(self._flow.job_id, self._flow.topic, self._function.name, tries)
        async with AsyncExitStack() as stack:
            await enter_all(stack, arounds, step)
            return await self._try_alone(codec, tries, began)
        raise ConfigError(f"{self}: @app.around_step caught its error; let it pass, or raise.")

    async def _try_alone(self, codec: ValueCodec, tries: int, began: float) -> _Tried:
        if self._options.tx:
            again = functools.partial(self._in_transaction, codec, tries, began)
            try:
                events = self._flow.store.events
                return await self._flow.ask(
                    lambda: retrying(RetryPolicy(), again, what=str(self), events=events)
                )
            except _OwnError as own:
                raise own.error from own.error.__cause__
        returned = await call(self._function, within=self._options.timeout)
        return _Tried(self._encoded(codec, returned), returned.cancelled)

    async def _in_transaction(self, codec: ValueCodec, tries: int, began: float) -> _Tried:
        """Run the function in a transaction, and commit its writes with its checkpoint."""
        flow, cancelled = self._flow, None
        plain = not self._function.is_async
        try:
            async with flow.store.workflows.transaction(flow.lease, plain=plain) as tx:
                returned = await self._call_on(tx)
                if returned.cancelled is not None:
                    raise returned.cancelled
                text = self._encoded(codec, returned)
                checkpoint = self._checkpoint(tries, began, value=text)
                commit = asyncio.ensure_future(tx.commit(checkpoint))
                cancelled = await outlast(commit)
                commit.result()
        except CommitUnknown as error:
            if cancelled is not None:  # the next run finds whether it was committed
                raise cancelled from error
            if not await flow.ask(lambda: tx.was_committed(checkpoint)):
                raise TransientStorageError(f"{self} was not committed: {error}") from error
        return _Tried(text, cancelled)

    async def _call_on(self, tx: Transaction) -> Returned:
        """Call the function with a transaction's connection."""
        function = replace(self._function, args=(tx.connection, *self._function.args))
        # Never abandoned: a thread that goes on would write beside the rollback.
        try:
            with as_transaction():
                return await call(function, within=self._time_for(tx), when_late=tx.revoke)
        except StorageError as error:
            raise _OwnError(error) from error
        except Exception as error:
            if self._losses >= MOST_LOSSES or not await tx.was_lost(error):
                raise
            self._losses += 1
            raise TransientStorageError(f"{self} lost its session: {describe(error)}") from error

    def _time_for(self, tx: Transaction) -> float | None:
        """Return the timeout of a try; short where its transaction blocks all other writers."""
        given = self._options.timeout
        if tx.limit is None:
            return given
        most = min(tx.limit, self._flow.lease_seconds / 3)
        return most if given is None else min(given, most)

    def _encoded(self, codec: ValueCodec, returned: Returned) -> str:
        try:
            return codec.encode(returned.value)
        except Exception as error:
            raise StepFailed(
                f"{self} has run, but what it returned cannot be stored. {error}",
                job_id=self._flow.job_id,
            ) from error

    def _is_failed_try(self, error: Exception) -> bool:
        """Whether an error counts as a failed try, and is not about the run as a whole."""
        if self._options.retry is None or isinstance(error, Snooze):
            return False
        return not (isinstance(error, JobError) and error.job_id == self._flow.job_id)

    def _pause_after(self, error: Exception, tries: int) -> float | None:
        """Return the backoff before the next try in seconds; None: no more tries."""
        retry = self._options.retry
        assert retry is not None
        if isinstance(error, NoRetry) or tries >= retry.max_attempts:
            return None
        return error.seconds if isinstance(error, RetryAfter) else retry.delay(tries)

    async def _give_up(self, error: Exception, tries: int, began: float) -> StepFailed:
        """Store that the step has failed for good; returns the error to raise."""
        checkpoint = self._checkpoint(tries, began, state=StepState.FAILED, error=describe(error))
        await self._flow.record(checkpoint)
        return self._failed(checkpoint)

    def _failed(self, checkpoint: Checkpoint) -> StepFailed:
        tries = "1 try" if checkpoint.tries == 1 else f"{checkpoint.tries} tries"
        return self._flow.repeats(
            StepFailed(
                f"{self} failed after {tries}: {checkpoint.error}",
                job_id=self._flow.job_id,
            )
        )

    def _checkpoint(
        self, tries: int, began: float, state: StepState = StepState.DONE, **fields: Any
    ) -> Checkpoint:
        took = time.perf_counter() - began
        return self._place.checkpoint(state, tries=tries, took=took, **fields)

    def __str__(self) -> str:
        return f"Step {str(self._place.key)!r} of job {self._flow.job_id} ({self._flow.topic})"

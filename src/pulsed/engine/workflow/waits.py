"""Waits: a workflow gives up its slot, and another run continues when the wait is over."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import msgspec

from pulsed.engine.workflow.flow import Place, Workflow, checked_step_name
from pulsed.errors import (
    LONGEST_DELAY,
    InvalidHandler,
    InvalidOption,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    NeverStarted,
    SignalTimeout,
    WaitTimeout,
    WorkflowError,
    checked_seconds,
)
from pulsed.handler.codec import decoder_for
from pulsed.handler.envelope import readable
from pulsed.handler.options import checked_due
from pulsed.model.job import Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.outcome import EXPIRED
from pulsed.model.step import Checkpoint, StepKind, StepState, Wait
from pulsed.model.workflow import JobOutcome

R_co = TypeVar("R_co", covariant=True)


class Followed(Protocol[R_co]):
    """A job that can be waited for: the ``Job`` of a client."""

    @property
    def id(self) -> UUID:
        """The job's id."""

    def decode_result(self, text: str | None) -> R_co:
        """Return the decoded result of its handler."""


# -- time -----------------------------------------------------------------------------------------


def sleep(flow: Workflow, seconds: float | timedelta, name: str) -> Coroutine[Any, Any, None]:
    """Return a coroutine that suspends the workflow for ``seconds``."""
    delay = max(0.0, checked_span("ctx.sleep(seconds)", seconds, least=-LONGEST_DELAY))
    return _sleep(flow, flow.place(StepKind.SLEEP, checked_step_name(name)), delay=delay)


def sleep_until(flow: Workflow, until: datetime, name: str) -> Coroutine[Any, Any, None]:
    """Return a coroutine that suspends the workflow until an instant."""
    instant = checked_due("ctx.sleep_until(until)", until)
    return _sleep(flow, flow.place(StepKind.SLEEP, checked_step_name(name)), until=instant)


async def _sleep(
    flow: Workflow, place: Place, *, delay: float | None = None, until: datetime | None = None
) -> None:
    flow.refuse_beside_handler("sleep")
    stored = await flow.stored(place)
    if stored is not None:  # the first run fixed its end, whatever the code says now
        delay, until = None, stored.until
    if delay == 0 or (until is not None and until <= await flow.now()):
        return
    flow.suspend(
        Wait(kind=StepKind.SLEEP, delay=delay, until=until), place.checkpoint(StepState.OPEN)
    )


# -- signals --------------------------------------------------------------------------------------


def wait_signal(
    flow: Workflow, name: str, kind: Any, timeout: float | timedelta | None
) -> Coroutine[Any, Any, Any]:
    """Return a coroutine that waits for a signal and returns its payload."""
    decoder = _signal_decoder(checked_step_name(name), kind)
    seconds = checked_wait("ctx.wait_signal(timeout=…)", timeout)
    return _wait_signal(flow, flow.place(StepKind.SIGNAL, name), decoder, seconds)


async def signals(again: Callable[[], Coroutine[Any, Any, R_co]]) -> AsyncIterator[R_co]:
    """Yield the payloads of signals until none arrives in time."""
    while True:
        try:
            signal = await again()
        except SignalTimeout:
            return
        yield signal


async def _wait_signal(
    flow: Workflow,
    place: Place,
    decoder: msgspec.json.Decoder[Any],
    timeout: float | None,  # noqa: ASYNC109 - of a wait that takes days
) -> Any:
    flow.refuse_beside_handler("wait_signal")
    stored = await flow.stored(place)
    if stored is None or stored.state is StepState.OPEN:
        until = stored.until if stored is not None else None
        if stored is None and timeout == 0:
            until = await flow.now()  # the deadline is now: a later signal is too late
        checkpoint = place.checkpoint(StepState.OPEN, until=until)
        taken = await flow.ask(
            lambda: flow.store.workflows.take_signal(flow.lease, place.key.name, checkpoint)
        )
        if taken is None:
            flow.suspend(_wait_again(place, place.key.name, stored, timeout), checkpoint)
        stored = taken
    if stored.state is StepState.TIMED_OUT:
        raise flow.repeats(
            SignalTimeout(
                f"Job {flow.job_id} ({flow.topic}): no signal {place.key.name!r} came in time.",
                job_id=flow.job_id,
            )
        )
    text = readable(f"The signal {place.key.name!r} of job {flow.job_id}", stored.value or "null")
    return _decoded_signal(flow, place, decoder, text)


def _decoded_signal(
    flow: Workflow, place: Place, decoder: msgspec.json.Decoder[Any], text: str
) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise flow.repeats(
            WorkflowError(
                f"Job {flow.job_id} ({flow.topic}): the signal {place.key.name!r} carries "
                f"{text:.100}, which is not what the workflow waits for: {error}.",
                job_id=flow.job_id,
            )
        ) from error


def _signal_decoder(name: str, kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _decoder_of(kind)
    except InvalidHandler as error:
        raise InvalidOption(f"ctx.wait_signal({name!r}, type): {error}") from error


@functools.lru_cache(maxsize=1_000)
def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    return decoder_for("a workflow", "a signal", kind)


# -- other jobs -----------------------------------------------------------------------------------


class _Target(NamedTuple):
    id: UUID
    decode: Callable[[str | None], Any]


def wait_for(
    flow: Workflow, job: Followed[Any] | UUID | str, timeout: float | timedelta | None
) -> Coroutine[Any, Any, Any]:
    """Return a coroutine that waits for another job and returns its result."""
    target = _target(job)
    if target.id == flow.job_id:
        raise InvalidOption(f"Job {flow.job_id} ({flow.topic}) would wait for itself.")
    seconds = checked_wait("ctx.wait_for(timeout=…)", timeout)
    place = flow.place(StepKind.JOB, "wait_for", str(target.id))
    return _wait_for(flow, place, target, seconds)


async def _wait_for(
    flow: Workflow,
    place: Place,
    target: _Target,
    timeout: float | None,  # noqa: ASYNC109 - of a wait that takes days
) -> Any:
    flow.refuse_beside_handler("wait_for")
    stored = await flow.stored(place)
    if stored is None or stored.state is StepState.OPEN:
        ended = await flow.ask(lambda: flow.store.workflows.watch(flow.lease, target.id))
        if ended is None:
            raise JobNotFound(f"There is no job {target.id} to wait for.", job_id=target.id)
        if ended.status in TERMINAL:
            stored = _end_of(place, ended)
        elif await is_over(flow, stored, timeout):
            stored = place.checkpoint(StepState.TIMED_OUT)
        else:
            wait = _wait_again(place, str(target.id), stored, timeout)
            flow.suspend(wait, place.checkpoint(StepState.OPEN))
        await flow.record(stored)
    if stored.state is StepState.DONE:
        return target.decode(stored.value)
    raise flow.repeats(_error_of(flow, target.id, stored))


def _end_of(place: Place, ended: JobOutcome) -> Checkpoint:
    """Return the waiting workflow's checkpoint of how a job ended."""
    if ended.status is Status.SUCCEEDED:
        readable(f"The result of job {ended.id} ({ended.topic})", ended.result or "null")
        return place.checkpoint(value=ended.result)
    which = msgspec.json.encode([ended.status, ended.topic, ended.outcome]).decode()
    return place.checkpoint(StepState.FAILED, value=which, error=ended.error)


def _error_of(flow: Workflow, job_id: UUID, stored: Checkpoint) -> JobError:
    if stored.state is StepState.TIMED_OUT:
        return WaitTimeout(
            f"Job {flow.job_id} ({flow.topic}): job {job_id} did not end in time. "
            "It was not cancelled.",
            job_id=flow.job_id,
        )
    status, topic, *outcome = msgspec.json.decode(stored.value or "[null, null]")
    if outcome == [EXPIRED]:
        return NeverStarted(f"Job {job_id} ({topic}) expired before it started.", job_id=job_id)
    if status == Status.CANCELLED:
        return JobCancelled(f"Job {job_id} ({topic}) was cancelled.", job_id=job_id)
    return JobFailed(f"Job {job_id} ({topic}) was dead-lettered: {stored.error}", job_id=job_id)


def _target(job: Followed[Any] | UUID | str) -> _Target:
    if isinstance(job, UUID | str):
        try:
            return _Target(job if isinstance(job, UUID) else UUID(job), _plain)
        except ValueError:
            pass
    elif isinstance(getattr(job, "id", None), UUID):
        return _Target(job.id, job.decode_result)
    raise InvalidOption(f"ctx.wait_for(job) takes a job or its id, not {job!r:.100}.")


def _plain(text: str | None) -> Any:
    return msgspec.json.decode(text or "null")


# -- deadlines ------------------------------------------------------------------------------------


def checked_span(what: str, value: float | timedelta, *, least: float = 0.0) -> float:
    """Return a duration in seconds, or raise if it is invalid."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return checked_seconds(what, seconds, least=least)


def checked_wait(what: str, timeout: float | timedelta | None) -> float | None:
    """Return the timeout of a wait in seconds; None: no timeout."""
    return None if timeout is None else checked_span(what, timeout)


async def is_over(flow: Workflow, stored: Checkpoint | None, timeout: float | None) -> bool:  # noqa: ASYNC109
    """Whether the deadline of a wait has passed."""
    if stored is None:
        return timeout == 0
    return stored.until is not None and stored.until <= await flow.now()


def _wait_again(place: Place, key: str, stored: Checkpoint | None, timeout: float | None) -> Wait:
    """Return the wait of a place: a new one, or the rest of one that has begun."""
    if stored is None or stored.until is None:  # a replayed wait gets its full timeout again
        return Wait(kind=place.kind, key=key, delay=timeout)
    return Wait(kind=place.kind, key=key, until=stored.until)

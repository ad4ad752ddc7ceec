"""Fan-outs: many child jobs at once, and their results.

The ids of the children are derived from the parent and their index, so a run that was interrupted
while it added them adds the same ones again. The parent's checkpoint stores which children failed,
and which had not ended when the fan-out was decided; the values of the others stay in their rows.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar
from uuid import UUID

import msgspec

from pulsed.batches import TRANSACTION, Limits, batches, text_size
from pulsed.engine.enqueuing import enqueuing, publish_enqueued
from pulsed.engine.workflow.flow import Place, Workflow, checked_step_name
from pulsed.engine.workflow.waits import checked_wait, is_over
from pulsed.errors import FanOutFailed, InvalidOption, WaitTimeout, WorkflowError
from pulsed.handler import Call, checked_options, clean_text, job_maker
from pulsed.handler.envelope import readable
from pulsed.model.job import NewJob, Status
from pulsed.model.step import Checkpoint, StepKind, StepState, Wait
from pulsed.model.workflow import FAILED_CHILD, JobOutcome, Strategy, child_ids, family, verdict

R = TypeVar("R")
T = TypeVar("T")

CHILDREN = Limits(1_000, TRANSACTION.bytes)
"""Children stored, read or cancelled in one batch."""

FIRST_BATCH = 100
"""Children stored first, so that workers can start on them while the rest is stored."""

MOST_ERRORS, LONGEST_ERROR = 100, 1_000
"""How many errors of children the parent stores, and how much of each; their rows have the rest."""


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """A child that did not succeed."""

    index: int
    """Its index among the calls."""
    job_id: UUID
    topic: str
    status: Status | None
    """None: the job was deleted."""
    error: str | None


@dataclass(frozen=True, slots=True)
class FanOut(Generic[R]):
    """The results of a fan-out's children."""

    values: list[R]
    """The results of the children that succeeded, in the order of the calls."""
    failures: list[ChildFailure]
    left: list[int]
    """The children that had not ended when the fan-out was decided, by index among the calls."""
    total: int

    @property
    def ok(self) -> bool:
        """Whether every child succeeded."""
        return len(self.values) == self.total


class FanOutOptions(NamedTuple):
    """The checked options of a fan-out, made from the arguments of ``ctx.fan_out``."""

    strategy: Strategy
    timeout: float | None
    children: Mapping[str, Any]
    outlives: bool | None


class _Outcome(msgspec.Struct):
    """The children listed in the parent's checkpoint, by index; all others have succeeded."""

    failed: dict[int, tuple[Status | None, str | None]]
    left: list[int]


def checked_fan_out_options(
    strategy: Strategy,
    timeout: float | timedelta | None,
    *,
    queue: str | None,
    max_attempts: int | None,
    cancel_on_parent_failure: bool,
) -> FanOutOptions:
    """Return the options of a fan-out, or raise if one is invalid."""
    if not isinstance(strategy, Strategy):
        raise InvalidOption(
            "ctx.fan_out(strategy=…) takes fail_fast, collect_all or threshold(share), "
            f"not {strategy!r}."
        )
    return FanOutOptions(
        strategy,
        checked_wait("ctx.fan_out(timeout=…)", timeout),
        checked_options({"queue": queue, "max_attempts": max_attempts}),
        None if cancel_on_parent_failure else True,
    )


def fan_out(
    flow: Workflow, calls: Iterable[Call[R]], options: FanOutOptions, name: str
) -> Coroutine[Any, Any, FanOut[R]]:
    """Take the next place for a fan-out, and return the coroutine that runs it."""
    calls = list(calls)
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidOption(
                f"ctx.fan_out() takes calls like ship.bind(order=1), not {call!r:.100}."
            )
    inputs = [text for call in calls for text in (call.topic, call.payload)]
    place = flow.place(StepKind.FAN_OUT, checked_step_name(name), inputs)
    return _FanOut(flow, place, calls, options).result()


class _FanOut(Generic[R]):
    """One fan-out of one run."""

    def __init__(
        self, flow: Workflow, place: Place, calls: Sequence[Call[R]], options: FanOutOptions
    ) -> None:
        self._flow = flow
        self._place = place
        self._calls = calls
        self._options = options
        self._family = ""
        self._ids: list[UUID] = []
        self._children: list[JobOutcome | None] = []

    async def result(self) -> FanOut[R]:
        flow = self._flow
        flow.refuse_beside_handler("fan_out")
        stored = await flow.stored(self._place)
        if not self._calls:
            return FanOut([], [], [], 0)
        history = await flow.read()
        self._family = family(self._place.key, history.generation)
        self._ids = child_ids(flow.job_id, self._family, len(self._calls))
        if stored is None:
            await self._add_children()
            self._suspend(None)
        if stored.state is StepState.OPEN:
            stored = await self._decided(stored)
        outcome = msgspec.json.decode(stored.value or "{}", type=_Outcome)
        # Store the decision before cancelling: cancelled children must not count as ended by
        # themselves. A run that dies in between has no later checkpoint, so the next run cancels.
        if stored.state is not StepState.DONE and not flow.was_beyond(self._place.seq + 1):
            await self._stop(outcome.left)
        return await self._replayed(stored, outcome)

    async def _add_children(self) -> None:
        flow, children = self._flow, self._new_jobs()
        for part in (islice(children, FIRST_BATCH), children):
            for jobs in batches(part, _size_of, CHILDREN):
                with enqueuing(flow.arounds.enqueues, jobs) as ready:
                    await flow.ask(partial(flow.store.workflows.add_children, flow.lease, ready))
                publish_enqueued(flow.store.events, ready)

    def _new_jobs(self) -> Iterator[NewJob]:
        options = self._options
        parent = {
            "parent_id": self._flow.job_id,
            "parent_step": self._family,
            "outlives": options.outlives,
        }
        alike: Call[R] | None = None
        for job_id, call in zip(self._ids, self._calls, strict=True):
            if alike is None or not _alike(call, alike):  # most calls are alike
                alike = call
                given = {**call.options, **options.children}
                make = partial(job_maker(call.topic, call.handler, given), **parent)
            yield make(id=job_id, payload=call.payload)

    def _suspend(self, stored: Checkpoint | None) -> NoReturn:
        strategy, total = self._options.strategy, len(self._ids)
        until = stored.until if stored is not None else None
        wait = Wait(
            kind=StepKind.FAN_OUT,
            key=self._family,
            enough=strategy.enough(total),
            too_many=strategy.too_many(total),
            delay=self._options.timeout if until is None else None,
            until=until,
        )
        self._flow.suspend(wait, self._place.checkpoint(StepState.OPEN))

    # -- the end ----------------------------------------------------------------------------------

    async def _decided(self, stored: Checkpoint) -> Checkpoint:
        """Store the children's outcome; suspend again if it is not decided yet."""
        flow = self._flow
        children = self._children = await self._outcomes(self._ids)
        statuses = [child.status if child is not None else None for child in children]
        success = verdict(self._options.strategy, statuses)
        if success is None and not await is_over(flow, stored, None):
            self._suspend(stored)
        state = {True: StepState.DONE, False: StepState.FAILED, None: StepState.TIMED_OUT}[success]
        value = msgspec.json.encode(_outcome_of(children)).decode()
        checkpoint = self._place.checkpoint(state, value=value)
        await flow.record(checkpoint)
        return checkpoint

    async def _stop(self, indexes: list[int]) -> None:
        """Cancel children whose results are no longer awaited."""
        flow = self._flow
        for ids in _chunks([self._ids[index] for index in indexes]):
            await flow.ask(lambda ids=ids: flow.store.cancel(ids))  # type: ignore[misc]

    async def _replayed(self, stored: Checkpoint, outcome: _Outcome) -> FanOut[R]:
        """Return the stored results, or raise the stored failure."""
        results = await self._results(outcome)
        job_id, who = self._flow.job_id, f"Fan-out {str(self._place.key)!r}"
        of_job = f"of job {job_id} ({self._flow.topic})"
        if stored.state is StepState.TIMED_OUT:
            raise self._flow.repeats(
                WaitTimeout(
                    f"{who} {of_job}: {len(outcome.left)} of {results.total} children did not end "
                    "in time; they are cancelled.",
                    job_id=job_id,
                )
            )
        if stored.state is StepState.FAILED:
            first = results.failures[0]
            raise self._flow.repeats(
                FanOutFailed(
                    f"{who} {of_job} failed: {len(results.failures)} of {results.total} children "
                    f"did not succeed. The first of them, job {first.job_id} ({first.topic}): "
                    f"{first.error or first.status or 'it was removed'}",
                    job_id=job_id,
                    results=results,
                )
            )
        return results

    async def _results(self, outcome: _Outcome) -> FanOut[R]:
        failures = [
            ChildFailure(index, self._ids[index], self._calls[index].topic, status, error)
            for index, (status, error) in sorted(outcome.failed.items())
        ]
        rest = {*outcome.failed, *outcome.left}
        succeeded = [index for index in range(len(self._ids)) if index not in rest]
        if self._children:  # decided in this run, so read already
            children = [self._children[index] for index in succeeded]
        else:
            children = await self._outcomes([self._ids[index] for index in succeeded])
        values = [
            self._value(index, child) for index, child in zip(succeeded, children, strict=True)
        ]
        return FanOut(values, failures, outcome.left, len(self._ids))

    def _value(self, index: int, child: JobOutcome | None) -> R:
        if child is None or child.status is not Status.SUCCEEDED:
            raise WorkflowError(
                f"Job {self._flow.job_id} ({self._flow.topic}) needs the result of its child "
                f"{self._ids[index]} again, and that was removed or run anew. Retry it afresh.",
                job_id=self._flow.job_id,
            )
        handler = self._calls[index].handler
        text = readable(f"The result of job {child.id} ({child.topic})", child.result or "null")
        value: R = handler.decode_result(text) if handler else msgspec.json.decode(text)
        return value

    async def _outcomes(self, ids: Sequence[UUID]) -> list[JobOutcome | None]:
        flow = self._flow
        found: dict[UUID, JobOutcome] = {}
        for chunk in _chunks(ids):
            found |= await flow.ask(lambda chunk=chunk: flow.store.workflows.outcomes(chunk))  # type: ignore[misc]
        return [found.get(child) for child in ids]


def _outcome_of(children: Sequence[JobOutcome | None]) -> _Outcome:
    outcome = _Outcome({}, [])
    for index, child in enumerate(children):
        if child is None:
            outcome.failed[index] = (None, None)
        elif child.status in FAILED_CHILD:
            told = child.error if len(outcome.failed) < MOST_ERRORS else None
            error = None if told is None else clean_text(told, LONGEST_ERROR)
            outcome.failed[index] = (child.status, error)
        elif child.status is not Status.SUCCEEDED:
            outcome.left.append(index)
    return outcome


def _alike(one: Call[Any], other: Call[Any]) -> bool:
    """Whether the jobs of two calls differ only in their payload."""
    same = one.handler is other.handler and one.options is other.options
    return same and one.topic == other.topic


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CHILDREN.items):
        yield items[start : start + CHILDREN.items]


def _size_of(job: NewJob) -> int:
    return text_size(job.payload)

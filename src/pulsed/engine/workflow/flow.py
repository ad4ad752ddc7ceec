"""One run of a workflow: the checkpoints of earlier runs, and the places of its calls.

Every call that is stored has a place: its number among the calls of the run, its name, and which
use of that name it is. The place is taken when the method is called, not when it is awaited, so
that concurrent steps have the same places in every run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from pulsed.engine.workflow.calling import outlast
from pulsed.engine.workflow.outage import retry_through_outage
from pulsed.engine.workflow.run_stream import RunStream
from pulsed.engine.workflow.shared import Workflows
from pulsed.engine.workflow.suspension import Suspension
from pulsed.errors import CannotSuspend, InvalidOption, LeaseLost, NonDeterministic, WorkflowError
from pulsed.handler.envelope import is_envelope, readable
from pulsed.handler.options import checked_name
from pulsed.handler.payload import to_plain
from pulsed.model.job import Assignment
from pulsed.model.outcome import Waiting
from pulsed.model.step import Checkpoint, StepKey, StepKind, StepState, Wait
from pulsed.model.workflow import History, Record

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

log = logging.getLogger("pulsed.job")

_INPUT_ENCODER = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic")


class Place(NamedTuple):
    """Where in a workflow a call is, and the hash of its arguments."""

    kind: StepKind
    key: StepKey
    seq: int
    input_hash: str

    def checkpoint(self, state: StepState = StepState.DONE, **fields: Any) -> Checkpoint:
        """Return a checkpoint for this place."""
        return Checkpoint(
            name=self.key.name,
            nth=self.key.nth,
            seq=self.seq,
            kind=self.kind,
            state=state,
            input_hash=self.input_hash,
            **fields,
        )

    def __str__(self) -> str:
        return f"{self.kind.lower()} {str(self.key)!r}"


class Workflow:
    """The checkpoints of a run; made when they are first needed."""

    def __init__(
        self,
        assignment: Assignment,
        shared: Workflows,
        task: asyncio.Task[Any] | None,
        stream: Callable[[], RunStream | None],
    ) -> None:
        self.lease = assignment.lease
        self.job_id = assignment.job_id
        self.topic = assignment.topic
        self.lease_seconds = assignment.lease_seconds
        self.store = shared.store
        self.arounds = shared.arounds
        self.pause = shared.pause
        self.interrupted: Suspension | NonDeterministic | None = None
        """Why the handler has to unwind; if it does not, every later call raises this again."""
        self.repeated: BaseException | None = None
        """The last error that came from a checkpoint, so that another run would raise it again."""
        self.ended = False
        """The handler has returned or raised: no step may start any more."""
        self._recorder = shared.recorder
        self._strict = shared.is_strict(assignment.topic)
        self._task = task
        self._stream = stream
        self._seq = 0
        self._last_stored = 0
        self._uses: dict[str, int] = {}
        self._history: History | None = None
        self._reading = asyncio.Lock()
        self._by_seq: dict[int, Checkpoint] = {}
        self._by_key: dict[StepKey, Checkpoint] = {}
        self._beside: dict[asyncio.Future[None], asyncio.Task[Any]] = {}

    # -- places -----------------------------------------------------------------------------------

    def place(self, kind: StepKind, name: str, *inputs: Any) -> Place:
        """Take the next place."""
        self._seq += 1
        nth = self._uses[name] = self._uses.get(name, 0) + 1
        return Place(kind, StepKey(name, nth), self._seq, input_hash(inputs))

    @property
    def next_seq(self) -> int:
        """The number that the next call will have."""
        return self._seq + 1

    async def stored(self, place: Place) -> Checkpoint | None:
        """Return the checkpoint of an earlier run for this place; a different call is refused."""
        await self.read()
        checkpoint = self._by_key.get(place.key)
        there = self._by_seq.get(place.seq)
        if checkpoint is None and there is None:
            # Before the call can be stored: a later run emits nothing again that is before it.
            if (cancelled := await self._flush_stream()) is not None:
                raise cancelled
            return None
        if checkpoint is None or checkpoint is not there or not _same(checkpoint, place):
            self._differs(place, there or checkpoint)
        return checkpoint

    async def read(self) -> History:
        """Return the history, read once per run."""
        async with self._reading:
            if self._history is None:
                history = await self.ask(lambda: self.store.workflows.history(self.job_id))
                for checkpoint in history.checkpoints:
                    if checkpoint.value is not None and is_envelope(checkpoint.value):
                        what = f"Step {str(checkpoint.key)!r} of job {self.job_id}"
                        readable(what, checkpoint.value)
                for checkpoint in history.checkpoints:
                    self._by_key[checkpoint.key] = checkpoint
                    if checkpoint.kind is not StepKind.VERSION:
                        self._by_seq[checkpoint.seq] = checkpoint
                self._last_stored = max(self._by_seq, default=0)
                self._history = history
        return self._history

    async def now(self) -> datetime:
        """Return the database's time when the history was read."""
        return (await self.read()).now

    async def find(self, key: StepKey) -> Checkpoint | None:
        """Return the checkpoint of a key, whatever its number."""
        await self.read()
        return self._by_key.get(key)

    def was_beyond(self, seq: int) -> bool:
        """Whether an earlier run has stored this call, or a later one."""
        return seq <= self._last_stored

    def _differs(self, place: Place, stored: Checkpoint | None) -> None:
        """Refuse a call that differs from the stored one, unless the handler matches by name."""
        assert stored is not None
        difference = _difference(place, stored)
        by_name = self._by_key.get(place.key)
        if not self._strict and (by_name is None or by_name.kind is place.kind):
            log.warning("job %s (%s): %s; going by names", self.job_id, self.topic, difference)
            return
        self.interrupted = NonDeterministic(
            f"Job {self.job_id} ({self.topic}): {difference}. A workflow's code must make the same "
            "calls in every run. If it was changed while this one was under way, keep the old way "
            "behind `await ctx.version(...)`, or retry the job afresh.",
            job_id=self.job_id,
        )
        raise self.interrupted

    # -- the database -----------------------------------------------------------------------------

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a query, retried for as long as the database is away."""
        return await retry_through_outage(call, f"job {self.job_id} ({self.topic})")

    async def record(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint; a cancellation does not interrupt that, and is raised after it.

        What the step has emitted is stored first: it is not called again to emit it.
        """
        interrupted = await self._flush_stream()
        answer = self._recorder.put(Record(self.lease, checkpoint))
        cancelled = await outlast(answer) or interrupted
        if not answer.result():
            raise LeaseLost.of(self.job_id, self.topic)
        self._by_key[checkpoint.key] = checkpoint
        if cancelled is not None:
            raise cancelled

    async def _flush_stream(self) -> asyncio.CancelledError | None:
        """Wait until what was emitted is stored; returns a cancellation that came meanwhile."""
        stream = self._stream()
        if stream is None:
            return None
        flushing = asyncio.ensure_future(stream.flush())
        cancelled = await outlast(flushing)
        flushing.result()
        return cancelled

    # -- steps beside the handler -----------------------------------------------------------------

    @contextmanager
    def running(self, place: Place) -> Iterator[None]:
        """Track a step while it runs, so that ``end`` can wait for it.

        Raises if the handler has ended.
        """
        if self.ended:
            raise WorkflowError(
                f"Job {self.job_id} ({self.topic}): {place} was to begin when the handler had "
                "ended. Await every step before the handler ends.",
                job_id=self.job_id,
            )
        task = asyncio.current_task()
        if task is None or task is self._task:
            yield
            return
        over = asyncio.get_running_loop().create_future()
        self._beside[over] = task
        try:
            yield
        finally:
            del self._beside[over]
            over.set_result(None)

    async def end(self, *, stop: bool) -> None:
        """Wait for the steps in flight beside a handler that has ended; its lease is still held.

        Abandoned, they would have side effects and no checkpoint, and the next run would start
        them again beside these. They are cancelled with the run.
        """
        self.ended = True
        if stop:
            self._cancel_beside()
        while self._beside:
            await outlast(next(iter(self._beside)), interrupt=self._cancel_beside)

    def tasks_beside(self) -> set[asyncio.Task[Any]]:
        """Return the tasks of the steps in flight beside the handler."""
        return set(self._beside.values())

    def _cancel_beside(self) -> None:
        for task in self.tasks_beside():
            task.cancel()

    # -- leaving ----------------------------------------------------------------------------------

    def suspend(self, wait: Wait, checkpoint: Checkpoint) -> NoReturn:
        """Unwind the handler; another run goes on when the wait is over."""
        self.interrupted = Suspension(Waiting(wait, checkpoint))
        raise self.interrupted

    def refuse_beside_handler(self, method: str) -> None:
        """Raise in a task other than the handler's own: only that one can unwind the handler."""
        if asyncio.current_task() is not self._task:
            raise CannotSuspend(
                f"Job {self.job_id} ({self.topic}) awaits ctx.{method}() in a task beside its "
                "handler (asyncio.gather, TaskGroup, create_task), and only the handler itself can "
                "wait. Await it there; steps may run side by side.",
                job_id=self.job_id,
            )

    def repeats(self, error: E) -> E:
        """Return ``error``, and remember it as one that a later run would raise again."""
        self.repeated = error
        return error


def checked_step_name(name: Any) -> str:
    """Return ``name``, or raise if a call cannot be stored under it."""
    checked_name("name of a step", name)
    if "|" in name:
        raise InvalidOption(f"The name of a step must not contain '|': {name!r}.")
    return str(name)


def input_hash(inputs: tuple[Any, ...]) -> str:
    """Return a hash of a call's arguments; if one cannot be JSON, only its type counts."""
    if not inputs:
        return ""
    digest = blake2b(digest_size=8)
    for value in inputs:
        data = _encoded_input(value)
        digest.update(b"%d " % len(data))
        digest.update(data)
    return digest.hexdigest()


def _encoded_input(value: Any) -> bytes:
    try:
        return _INPUT_ENCODER.encode(value)
    except Exception:  # noqa: BLE001 - also what a model's own code raises
        return f"\0{type(value).__qualname__}".encode(errors="replace")


def _same(stored: Checkpoint, place: Place) -> bool:
    return stored.kind is place.kind and stored.input_hash == place.input_hash


def _difference(place: Place, stored: Checkpoint) -> str:
    before = Place(stored.kind, stored.key, stored.seq, stored.input_hash)
    if before.key == place.key and before.kind is place.kind and before.seq == place.seq:
        return f"call {place.seq}, {place}, has other arguments than the stored one"
    return f"call {place.seq} is {place}, but {before} is stored as call {before.seq}"

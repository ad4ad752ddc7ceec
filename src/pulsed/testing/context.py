"""A context to call a handler with, without a database and without a worker.

The handler's own calls run the code of production: a step is called, retried and its result encoded
as for a checkpoint. Only what would suspend the handler is given by the test.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from pulsed.engine.context import Context
from pulsed.engine.worker.run import StopReason
from pulsed.engine.workflow.flow import Workflow
from pulsed.engine.workflow.shared import Workflows
from pulsed.engine.workflow.waits import checked_span
from pulsed.errors import LONGEST_DELAY, ConfigError
from pulsed.handler import encode_untyped
from pulsed.handler.options import checked_due
from pulsed.model.ids import new_job_id
from pulsed.model.job import DEFAULT_QUEUE, Assignment, Lease
from pulsed.model.step import Checkpoint, StepState
from pulsed.model.workflow import History, Record
from pulsed.store.base import Store
from pulsed.store.event_bus import Events
from pulsed.store.workflows import Transaction


class DirectContext(Context):
    """A context for calling a handler in a test. Make one with ``context``."""

    def __init__(self, assignment: Assignment, given: _Given, *, cancelled: bool) -> None:
        super().__init__(assignment, cast("Store", given))
        self._given = given
        self._stopped = StopReason.CANCELLED.value if cancelled else None
        self.slept: list[float | datetime] = []
        """What the handler slept for, in seconds, or until."""
        self.reported: list[Any] = given.progress
        """The progress that it reported."""
        self.emitted: list[Any] = []
        """The items that it emitted."""

    async def _emit(self, text: str) -> None:
        self.emitted.append(msgspec.json.decode(text))

    def sleep(
        self, seconds: float | timedelta, *, name: str = "sleep"
    ) -> Coroutine[Any, Any, None]:
        """Note the sleep, and go on at once."""
        self._workflow("sleep")
        del name
        return self._slept(checked_span("ctx.sleep(seconds)", seconds, least=-LONGEST_DELAY))

    def sleep_until(self, until: datetime, *, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Note the sleep, and go on at once."""
        self._workflow("sleep_until")
        del name
        return self._slept(checked_due("ctx.sleep_until(until)", until))

    async def _slept(self, span: float | datetime) -> None:
        self.slept.append(span)

    def wait_signal(
        self,
        name: str,
        type: Any = Any,  # noqa: A002 - as in a worker's context
        *,
        timeout: float | timedelta | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Return the next of the given signals; without one, the wait times out."""
        if timeout is None and not self._given.has_signal(name):
            raise ConfigError(
                f"The handler waits for a signal {name!r}, and the test gives none: "
                f"context(signals={{{name!r}: […]}})."
            )
        return super().wait_signal(name, type, timeout=timeout)

    def _workflow(self, method: str, *, in_step: bool = False) -> Workflow:
        if method in ("wait_for", "fan_out"):
            raise ConfigError(
                f"ctx.{method}() is about other jobs, and this context has no database: test the "
                "handler in a sandbox, with pulsed.testing.override(app)."
            )
        if self._workflows is None and asyncio._get_running_loop() is not None:  # noqa: SLF001
            self._workflows = Workflows(self._store)
            self._workflows.pause = self._slept
        return super()._workflow(method, in_step=in_step)


class _Given:
    """The store of such a context: no checkpoints, and what the test gives."""

    def __init__(self, signals: Mapping[str, Sequence[Any]], connection: Any) -> None:
        self.workflows = self
        self.events = Events()
        self.connection = connection
        self.progress: list[Any] = []
        self._signals = {name: list(payloads) for name, payloads in signals.items()}

    async def history(self, _job_id: UUID) -> History:
        return History([], 0, datetime.now(UTC))

    async def record(self, records: Sequence[Record]) -> set[Lease]:
        return {record.lease for record in records}

    async def set_progress(self, _lease: Lease, progress: str) -> bool:
        self.progress.append(msgspec.json.decode(progress))
        return True

    def has_signal(self, name: str) -> bool:
        return bool(self._signals.get(name))

    async def take_signal(self, _lease: Lease, name: str, checkpoint: Checkpoint) -> Checkpoint:
        if not self.has_signal(name):
            return replace(checkpoint, state=StepState.TIMED_OUT)
        value = encode_untyped(f"The signal {name!r}", self._signals[name].pop(0))
        return replace(checkpoint, state=StepState.DONE, value=value)

    @asynccontextmanager
    async def transaction(self, _lease: Lease, *, plain: bool) -> AsyncIterator[Transaction]:
        del plain
        if self.connection is None:
            raise ConfigError(
                "This step writes to the database, with tx=True: pass a connection for it, "
                "context(connection=…), or test the handler in a sandbox."
            )
        yield _GivenTransaction(self.connection)


class _GivenTransaction(Transaction):
    """The connection of the test, which commits or rolls back itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def connection(self) -> Any:
        return self._connection

    async def commit(self, checkpoint: Checkpoint) -> None: ...

    async def was_committed(self, checkpoint: Checkpoint) -> bool:
        del checkpoint
        return True


def context(
    *,
    topic: str = "test",
    job_id: UUID | None = None,
    queue: str = DEFAULT_QUEUE,
    attempt: int = 1,
    max_attempts: int = 3,
    headers: Mapping[str, str] | None = None,
    submitted_at: datetime | None = None,
    occurrence: datetime | None = None,
    signals: Mapping[str, Sequence[Any]] | None = None,
    cancelled: bool = False,
    connection: Any = None,
) -> DirectContext:
    """Return a context to call a handler with: ``await remind(context(attempt=2), "ada")``.

    Its steps run at once, and its sleeps end at once. ``signals`` has, for each name, the payloads
    that ``wait_signal`` returns one after the other; when there is none left, a wait with a timeout
    times out. ``connection`` is what a step with ``tx=True`` gets.
    """
    now = datetime.now(UTC)
    assignment = Assignment(
        lease=Lease(job_id or new_job_id(), 1, uuid.uuid4()),
        topic=topic,
        queue=queue,
        priority=0,
        payload="{}",
        attempt=attempt,
        max_attempts=max_attempts,
        lease_seconds=30.0,
        timeout=None,
        headers=dict(headers or {}),
        next_run_at=submitted_at or now,
        submitted_at=submitted_at or now,
        occurrence=occurrence,
    )
    return DirectContext(assignment, _Given(signals or {}, connection), cancelled=cancelled)

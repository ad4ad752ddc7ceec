"""Steps with a transaction of their own (``tx=True``), on the one database of a run.

The transaction is the product's (``store/sqlite/step_transaction.py``), with its guard, its last
statement and its COMMIT. A process that has begun one holds the database's write lock: the calls
of all others wait, as they do for a file. If it dies, the database rolls back.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pulsed.errors import TransientStorageError
from pulsed.model.job import Lease
from pulsed.store.fork import Gate
from pulsed.store.sqlite.errors import translate
from pulsed.store.sqlite.step_transaction import step_transaction
from pulsed.store.workflows import CommitUnknown, Transaction
from tests.simulation.faults import Kind

if TYPE_CHECKING:
    from tests.simulation.fleet import Process, SimulatedStore

T = TypeVar("T")


class LentConnection:
    """The database's connection while a step has it; closing it rolls back what is left."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._database = process.run.database
        self._database.lock(process)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database.connection, name)

    def close(self) -> None:
        if self._database.holder is self._process:
            self._database.unlock()


class StepCalls:
    """In the place of the thread of step transactions: its calls meet faults, as others do."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._run = process.run
        self.turn = asyncio.Lock()
        self.rest = 0.0

    def leave_alone_for(self, seconds: float) -> None:
        """Do nothing: the database is not a file whose lock others poll for."""

    async def open(self, fn: Callable[[], T], close: Callable[[T], object]) -> T:
        """Wait for the write lock, then begin."""
        event = await self._run.storage.before_commit(self._process)
        opened = fn()
        try:
            await self._run.storage.after_commit(self._process, event, TransientStorageError)
        except BaseException:
            close(opened)
            raise
        return opened

    async def call(self, fn: Callable[..., T], *args: Any) -> T:
        """Commit, or end, the transaction."""
        if getattr(fn, "__name__", "") != "_commit":
            return fn(*args)
        event = self._run.plan.next()
        await asyncio.sleep(event.before)
        if event.kind is Kind.DIES_BEFORE:
            await self._run.die(self._process)
        if event.kind is Kind.REFUSED:
            raise TransientStorageError("The simulated connection was lost.")
        answer = fn(*args)
        self._run.storage.committed(self._process, "step", event.number)
        await self._run.storage.after_commit(self._process, event, CommitUnknown)
        return answer


class StepStore:
    """What a step's transaction needs of an SQLite store."""

    path = Path("simulated")

    def __init__(self, store: SimulatedStore, process: Process) -> None:
        self.engine, self.run = store.engine, store.run
        self.micros = process.run.clock.micros
        self.steps = Gate()

    def write_first(self) -> None:
        """Do nothing: no verb is queued."""

    def translated(self, error: Any, verb: str) -> Exception:
        return translate(error, verb, "the simulated database")


def simulated_step(
    store: SimulatedStore, process: Process, calls: StepCalls, lease: Lease
) -> AbstractAsyncContextManager[Transaction]:
    """Open a step's transaction on the database of a run."""
    steps: Any = StepStore(store, process)
    connect: Any = functools.partial(LentConnection, process)
    return step_transaction(steps, cast("Any", calls), connect, lease)

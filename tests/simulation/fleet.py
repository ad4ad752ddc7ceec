"""The processes of a run: each has a store of its own on the shared database, and may die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pulsed.engine.worker.worker import Worker
from pulsed.errors import StorageError
from pulsed.model.job import Lease
from pulsed.model.outcome import Report
from pulsed.store.listener import Listener
from pulsed.store.results import Accepted
from pulsed.store.sql_store.store import SqlStore, StoreOptions
from pulsed.store.submitter import Submitter
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Verb
from pulsed.store.workflows import Transaction
from tests.simulation.event_loop import Life, SimulatedLoop

if TYPE_CHECKING:
    from tests.simulation.run import Run

T = TypeVar("T")


class Process(Life):
    """One process, with its connection to the database."""

    def __init__(self, run: Run, loop: SimulatedLoop, name: str) -> None:
        super().__init__(loop)
        self.name = name
        self.run = run
        self.store = SimulatedStore(self, run.engine)
        self.is_over = False
        """Whether the run is over: then its calls fail, and only its tasks are left to end."""
        self.worker: Worker | None = None

    def start(self, main: Callable[[], Any]) -> asyncio.Task[Any]:
        """Run a coroutine function in this process."""
        loop = asyncio.get_running_loop()
        return loop.create_task(main(), name=self.name, context=self.context)


class SimulatedStore(SqlStore):
    """The store of one process: its calls reach the database when and if the run lets them."""

    def __init__(self, process: Process, engine: Engine) -> None:
        super().__init__(engine, StoreOptions(), clock=process.run.clock)
        self._process = process
        self._schema_is_good = True
        self.reported: set[tuple[bytes, int, bytes]] = set()
        """The leases that it has sent reports for."""

    async def perform(self, verb: Verb[T]) -> T:
        if self._process.is_over:
            raise StorageError("The run is over.")
        return await self._process.run.call(self._process, verb)

    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> Accepted:
        self._note(reports)
        return await super().settle(reports, within=within)

    async def settle_free(self, reports: Sequence[Report]) -> Any:
        self._note(reports)
        return await super().settle_free(reports)

    def _note(self, reports: Sequence[Report]) -> None:
        for report in reports:
            job_id, token, worker_id = report.lease
            self.reported.add((job_id.bytes, token, worker_id.bytes))

    async def hint(self, queues: set[str]) -> None:
        self.owe_hint(queues)

    def owe_hint(self, queues: set[str]) -> None:
        del queues
        self._process.run.notify()

    @asynccontextmanager
    async def _listening(self, wake: Callable[[], None]) -> AsyncIterator[Listener]:
        entry = (self._process, wake)
        self._process.run.listeners.append(entry)
        try:
            yield _Healthy()
        finally:
            self._process.run.listeners.remove(entry)

    def listen(
        self, queues: Sequence[str], wake: Callable[[], None]
    ) -> AbstractAsyncContextManager[Listener]:
        del queues
        return self._listening(wake)

    def joined(self, connection: Any) -> Submitter:
        return _not_simulated(connection)

    def step_transaction(
        self, lease: Lease, *, plain: bool
    ) -> AbstractAsyncContextManager[Transaction]:
        return _not_simulated(lease, plain)

    async def check(self) -> Mapping[str, str]:
        return {}

    async def aclose(self) -> None:
        return None


def _not_simulated(*_: object) -> NoReturn:
    raise NotImplementedError("a simulation has no connection to lend")


class _Healthy(Listener):
    healthy = True

"""The processes of a run: each has a store of its own on the shared database, and may die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pulsed.engine.worker.worker import Worker
from pulsed.errors import StorageError
from pulsed.model.job import Lease
from pulsed.model.outcome import Released, Report, Successes
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.server.server import Server
from pulsed.store.base import Store
from pulsed.store.listener import Listener, Wake
from pulsed.store.results import Accepted
from pulsed.store.sql_store.store import SqlStore, StoreOptions
from pulsed.store.submitter import Submitter
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Verb
from pulsed.store.workflows import Transaction
from tests.simulation.event_loop import Life, SimulatedLoop
from tests.simulation.steps import StepCalls, simulated_step

if TYPE_CHECKING:
    from tests.simulation.run import Run

T = TypeVar("T")


class Role(StrEnum):
    """What a process does."""

    WORKER = "worker"
    CLIENT = "client"
    SERVER = "server"


class Process(Life):
    """One process, with its connection to the database, or to the servers at a URL."""

    def __init__(
        self, run: Run, loop: SimulatedLoop, name: str, role: Role, place: str | None = None
    ) -> None:
        super().__init__(loop)
        self.name = name
        self.role = role
        self.run = run
        self.local = SimulatedStore(self, run.engine)
        self.place = place
        """The address of a server; of another process, the servers' URL, or None."""
        self.is_near = role is Role.SERVER or place is None
        """Whether it uses the database itself."""
        self.store: Store = self.local if self.is_near else RemoteStore(str(place))
        self.is_over = False
        """Whether the run is over: then its calls fail, and only its tasks are left to end."""
        self.worker: Worker | None = None
        self.server: Server | None = None

    def start(self, main: Callable[[], Any]) -> asyncio.Task[Any]:
        """Run a coroutine function in this process."""
        loop = asyncio.get_running_loop()
        return loop.create_task(main(), name=self.name, context=self.context)


class InOrder(dict[Any, None]):
    """A set that keeps its order: that of objects in a set depends on where they are in memory."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class SimulatedStore(SqlStore):
    """The store of one process: its calls reach the database when and if the run lets them."""

    def __init__(self, process: Process, engine: Engine) -> None:
        super().__init__(engine, StoreOptions(), clock=process.run.clock)
        self._process = process
        self._schema_is_good = True
        self._step_calls = StepCalls(process)
        self.reported: set[tuple[bytes, int, bytes]] = set()
        """The leases that it has sent reports for."""
        self.given_back: set[tuple[bytes, int]] = set()
        """The runs that it has given back, as if they had never begun."""

    async def perform(self, verb: Verb[T]) -> T:
        if self._process.is_over:
            raise StorageError("The run is over.")
        return await self._process.run.storage.call(self._process, verb)

    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> Accepted:
        self._note(reports)
        return await super().settle(reports, within=within)

    async def settle_successes(self, runs: Successes) -> bool:
        for job_id, token in zip(runs.job_ids, runs.tokens, strict=True):
            self.reported.add((job_id.bytes, token, runs.worker_id.bytes))
        return await super().settle_successes(runs)

    async def settle_free(self, reports: Sequence[Report]) -> Any:
        self._note(reports)
        return await super().settle_free(reports)

    def _note(self, reports: Sequence[Report]) -> None:
        for report in reports:
            job_id, token, worker_id = report.lease
            self.reported.add((job_id.bytes, token, worker_id.bytes))
            if isinstance(report.outcome, Released):
                self.given_back.add((job_id.bytes, token))

    async def hint(self, queues: set[str]) -> None:
        self.owe_hint(queues)

    def owe_hint(self, queues: set[str]) -> None:
        self._process.run.notify(queues)

    @asynccontextmanager
    async def _listening(self, wake: Wake) -> AsyncIterator[Listener]:
        entry = (self._process, wake)
        self._process.run.listeners.append(entry)
        try:
            yield _Healthy()
        finally:
            self._process.run.listeners.remove(entry)

    def listen(self, queues: Sequence[str], wake: Wake) -> AbstractAsyncContextManager[Listener]:
        del queues
        return self._listening(wake)

    def joined(self, connection: Any) -> Submitter:
        return _not_simulated(connection)

    def step_transaction(
        self, lease: Lease, *, plain: bool
    ) -> AbstractAsyncContextManager[Transaction]:
        del plain
        return simulated_step(self, self._process, self._step_calls, lease)

    async def check(self) -> Mapping[str, str]:
        return {}

    async def aclose(self) -> None:
        return None


def _not_simulated(*_: object) -> NoReturn:
    raise NotImplementedError("a simulation has no connection to lend")


class _Healthy(Listener):
    healthy = True

"""Faults that a drain injects: crashes, reports that get lost, leases that are lost.

A worker that crashes in a drain is abandoned. Its handlers are never resumed, so, as after a kill,
no ``finally`` of theirs runs; and no call of theirs reaches the database any more. The job is then
handed back, which stands for the expiry of its lease: that would take half a minute of the
sandbox's time, and an attempt.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, cast
from uuid import UUID

from pulsed.model.job import Assignment, Lease, NewJob, TopicPolicy
from pulsed.model.outcome import Outcome, Released, Report, Succeeded
from pulsed.model.step import Checkpoint
from pulsed.model.workflow import Record
from pulsed.store.base import Store
from pulsed.store.listener import Listener
from pulsed.store.results import Accepted
from pulsed.store.workflows import Transaction

T = TypeVar("T")

Crash: TypeAlias = Literal["after_every_checkpoint", "before_every_checkpoint"]
"""When a worker dies: as soon as a checkpoint is stored, or when it was about to be."""

_abandoned: list[object] = []
"""Tasks that are never resumed. If one were garbage collected, its ``finally`` blocks would run."""


@dataclass(slots=True)
class Faults:
    """The faults of one drain, and where each has struck already. Each strikes once."""

    crash: Crash | None = None
    deliver_twice: bool = False
    lose_lease_of: Collection[str] = ()
    """Topics."""
    _struck: set[tuple[Any, ...]] = field(default_factory=set)

    def strikes(self, *where: Any) -> bool:
        """Whether this is the first time at a place."""
        if where in self._struck:
            return False
        self._struck.add(where)
        return True

    def reported(self, job: Assignment, outcome: Outcome | None) -> Outcome | None:
        """Return what becomes of a run's report: a success is withheld once."""
        withheld = self.deliver_twice and isinstance(outcome, Succeeded)
        return Released() if withheld and self.strikes("delivered", job.job_id) else outcome


class Process:
    """The life of one worker in a drain."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self.faults = faults
        self.died = asyncio.Event()
        self.store = cast("Store", _MortalStore(store, self))
        self._calls: set[asyncio.Future[Any]] = set()

    async def checkpoint(self, when: Crash, *where: Any) -> None:
        """Die here, if that is asked for and it is the first time at this place."""
        if self.died.is_set() or (self.faults.crash == when and self.faults.strikes(*where)):
            await self.die()

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Make a call that reaches the database even if the process dies meanwhile."""
        if self.died.is_set():
            await self.die()
        call = asyncio.ensure_future(function(*args, **options))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if not self.died.is_set():  # the drain was cancelled, and its calls with it
                call.cancel()
                await self.calls_have_ended()
            raise

    async def calls_have_ended(self) -> None:
        """Wait for the calls in flight: only then it is known what the dead process has leased."""
        if self._calls:
            await asyncio.wait(self._calls)

    async def die(self) -> NoReturn:
        """End the worker: this call never returns, and neither does any later one."""
        self.died.set()
        if (task := asyncio.current_task()) is not None:
            abandon(task)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a dead worker was resumed")


def abandon(task: asyncio.Task[Any]) -> None:
    """Never resume a task, and have the event loop forget it."""
    _abandoned.append(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - it is meant
    asyncio._unregister_task(task)  # noqa: SLF001 - documented for such uses


def abandon_all() -> None:
    """Never resume any other task of the running event loop."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        abandon(task)


class _Mortal:
    """Passes calls on to a part of a store, until its process has died."""

    def __init__(self, real: Any, process: Process) -> None:
        self._real = real
        self._process = process

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if self._process.died.is_set() and inspect.iscoroutinefunction(found):
            return lambda *_args, **_options: self._process.die()
        return found


class _Deaf(Listener):
    """The subscription of a drain: it polls by turns, and needs no notification."""

    healthy = True


class _MortalStore(_Mortal):
    """A store whose claims can lose their leases, and whose calls may outlive their process."""

    def __init__(self, real: Store, process: Process) -> None:
        super().__init__(real, process)
        self.workflows = _MortalWorkflows(real.workflows, process)

    @asynccontextmanager
    async def listen(self, *_args: Any) -> AsyncIterator[Listener]:
        """Subscribe to nothing: a drain asks by turns."""
        yield _Deaf()

    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> list[Assignment]:
        """Claim jobs; those to lose their lease are handed back behind the worker's back."""
        asked = worker_id, queue, topics, limit
        claimed: list[Assignment] = await self._process.call(self._real.claim, *asked)
        faults = self._process.faults
        robbed = [
            Report.of(job, Released())
            for job in claimed
            if job.topic in faults.lose_lease_of and faults.strikes("lease", job.job_id)
        ]
        if robbed:
            await self._real.settle(robbed)
        return claimed

    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> Accepted:
        """Report how runs have ended."""
        return await self._process.call(self._real.settle, reports, within=within)


class _MortalWorkflows(_Mortal):
    """Checkpoints around which a worker can die."""

    async def record(self, records: Sequence[Record]) -> set[Lease]:
        """Store checkpoints, and die before or after that."""
        for record in records:
            await self._before(record.lease, record.checkpoint)
        held: set[Lease] = await self._real.record(records)
        for record in records:
            await self._after(record.lease, record.checkpoint)
        return held

    async def take_signal(
        self, lease: Lease, name: str, checkpoint: Checkpoint
    ) -> Checkpoint | None:
        """Take a signal, and die before or after that."""
        await self._before(lease, checkpoint)
        taken: Checkpoint | None = await self._real.take_signal(lease, name, checkpoint)
        if taken is not None:
            await self._after(lease, checkpoint)
        return taken

    async def add_children(self, lease: Lease, jobs: Sequence[NewJob]) -> None:
        """Store children, and die before or after that."""
        place = (lease.job_id, "children", jobs[0].id)
        await self._process.checkpoint("before_every_checkpoint", *place)
        await self._real.add_children(lease, jobs)
        await self._process.checkpoint("after_every_checkpoint", *place)

    @asynccontextmanager
    async def transaction(self, lease: Lease, *, plain: bool) -> AsyncIterator[Transaction]:
        """Open a transaction; dies once it is over, so that it keeps no lock and no connection."""
        async with self._real.transaction(lease, plain=plain) as real:
            transaction = _MortalTransaction(real, self._process, lease)
            yield cast("Transaction", transaction)
        if transaction.is_doomed:
            await self._process.die()
        if transaction.stored is not None:
            await self._after(lease, transaction.stored)

    async def _before(self, lease: Lease, checkpoint: Checkpoint) -> None:
        await self._process.checkpoint("before_every_checkpoint", *_place(lease, checkpoint))

    async def _after(self, lease: Lease, checkpoint: Checkpoint) -> None:
        await self._process.checkpoint("after_every_checkpoint", *_place(lease, checkpoint))


class _MortalTransaction(_Mortal):
    """A step's transaction that remembers what it stored, or that it must not."""

    def __init__(self, real: Transaction, process: Process, lease: Lease) -> None:
        super().__init__(real, process)
        self._lease = lease
        self.stored: Checkpoint | None = None
        self.is_doomed = False
        """The process dies before the commit, so nothing is committed."""

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Commit, unless the process is to die first."""
        faults, place = self._process.faults, _place(self._lease, checkpoint)
        if faults.crash == "before_every_checkpoint" and faults.strikes(*place):
            self.is_doomed = True
            return
        await self._real.commit(checkpoint)
        self.stored = checkpoint


def _place(lease: Lease, checkpoint: Checkpoint) -> tuple[Any, ...]:
    return lease.job_id, checkpoint.kind, checkpoint.name, checkpoint.nth

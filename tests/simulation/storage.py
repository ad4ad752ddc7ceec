"""Storage calls: when, in which order and whether they reach the one database of a run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, TypeVar

from pulsed.errors import TransientStorageError
from pulsed.store.verbs.script import Verb
from tests.simulation.checker import Caller
from tests.simulation.faults import Event, Kind

if TYPE_CHECKING:
    from tests.simulation.fleet import Process
    from tests.simulation.run import Run

T = TypeVar("T")

BUSY_TIMEOUT = 10.0
"""Seconds that a call waits for a step which holds the write lock."""


class Storage:
    """Takes the calls of all processes to the database, with the faults of the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = run.loop
        self._away_until = 0.0
        self._trace = hashlib.sha256()

    @property
    def trace(self) -> str:
        """What two runs of a seed must have in common: who committed what, and when."""
        return self._trace.hexdigest()[:16]

    def calm(self) -> None:
        """End an outage."""
        self._away_until = 0.0

    async def call(self, process: Process, verb: Verb[T]) -> T:
        """Run a verb for a process."""
        event = await self.before_commit(process)
        answer = self._run.database.perform(verb)
        self.committed(process, verb.name, event.number)
        await self.after_commit(process, event, TransientStorageError)
        return answer

    async def before_commit(self, process: Process) -> Event:
        """Let a call get to the database, or fail on its way."""
        event = self._run.plan.next()
        kind = event.kind
        if kind is Kind.OUTAGE:
            self._away_until = self._loop.time() + event.seconds
        await asyncio.sleep(event.before + (event.seconds / 2 if kind is Kind.SLOW else 0.0))
        if self._loop.time() < self._away_until:
            raise TransientStorageError("The simulated database is away.")
        if kind is Kind.REFUSED:
            raise TransientStorageError("The simulated connection was lost.")
        if kind is Kind.DIES_BEFORE:
            await self._run.die(process)
        if self._run.database.holder is not None:
            await self._until_unlocked()
        return event

    async def _until_unlocked(self) -> None:
        database, give_up_at = self._run.database, self._loop.time() + BUSY_TIMEOUT
        while database.holder is not None:
            if self._loop.time() >= give_up_at:
                raise TransientStorageError("The simulated database is locked.")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(give_up_at):
                    await database.unlocked.wait()

    def committed(self, process: Process, what: str, number: int) -> None:
        """Have the checker see what a call has changed."""
        caller = Caller(process.name, what, process.local.reported, process.local.given_back)
        self._run.checker.committed(caller, self._run.clock.micros())
        self._trace.update(f"{number} {process.name} {what} {self._loop.time()}\n".encode())

    async def after_commit(
        self, process: Process, event: Event, unanswered: type[Exception]
    ) -> None:
        """Let the answer of a call get back, or not."""
        kind = event.kind
        if kind is Kind.DIES_AFTER:
            await self._run.die(process)
        if kind is Kind.FREEZES:
            process.freeze(event.seconds)
        await asyncio.sleep(event.after + (event.seconds if kind is Kind.SLOW else 0.0))
        if kind is Kind.UNANSWERED:
            raise unanswered("The simulated answer was lost.")

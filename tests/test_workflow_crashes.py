"""A workflow whose worker dies at every storage call in turn comes to the same end.

Steps, a sleep, a signal, a fan-out and a step in a transaction of the jobs' database, which a
server does not lend. Whatever was stored when the process died never runs again; what the
transaction did is done once. The suite dies at every call on SQLite and at one of each kind on the
others; `dev.py chaos --workflows` dies at every call on all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.context import Context
from pulsed.handler import Registry
from pulsed.model.backoff import Backoff
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, JobRow, NewJob, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.workflow import Signal
from tests.support.backends import Backend, RemoteBackend, RemoteUnderTest
from tests.support.jobs import reap
from tests.support.mortal import Fate, Process, When
from tests.support.workers import handler, registry_of
from tests.support.workflows import call_of

CHILDREN = 3
HOUR = 3600.0
OPTIONS: dict[str, Any] = {"max_attempts": 9, "backoff": Backoff.fixed(0)}
ANSWER = {"charged": 1, "booked": 2, "approved": True, "shipped": [0, 10, 20], "closed": "ok"}


EMBEDDED = {
    "claim", "history", "record", "begin", "commit", "suspend", "settle",
    "take_signal", "add_children", "outcomes",
}  # fmt: skip
BEHIND_A_SERVER = {
    "claim", "GetHistory", "Checkpoint", "ReportResults", "TakeSignal", "FanOut", "GetOutcomes",
}  # fmt: skip
"""The calls that such a life makes."""


class World:
    """One life of the workflow: what was run, what is stored, and who dies when."""

    def __init__(self, backend: Backend, fate: Fate) -> None:
        self.backend = backend
        self.fate = fate
        self.ran: list[str] = []
        self.kept: set[str] = set()
        """What was stored when a process died."""
        self.woken = 0
        self.calm: Any = backend.open()
        self.remote = isinstance(self.calm, RemoteUnderTest)
        self.registry = self._registry()
        self.signal_id = new_job_id()

    def _registry(self) -> Registry:
        ran = self.ran

        async def charge() -> int:
            ran.append("charge")
            return 1

        async def book(connection: Any) -> int:
            ran.append("book")
            done = connection.execute("INSERT INTO effects (n) VALUES (2)")
            if asyncio.iscoroutine(done):
                await done
            return 2

        async def note() -> int:
            ran.append("book")
            return 2

        def close() -> str:
            ran.append("close")
            return "ok"

        async def ship(n: int) -> int:
            ran.append(f"ship {n}")
            return n * 10

        shipping = handler(ship, **OPTIONS)

        async def order(ctx: Context) -> dict[str, Any]:
            charged = await ctx.step(charge)
            if self.remote:
                booked = await ctx.step(note)
            else:
                booked = await ctx.step(book, tx=True)
            await ctx.sleep(HOUR)
            approved = await ctx.wait_signal("approved", bool)
            calls = [call_of(shipping, n=n) for n in range(CHILDREN)]
            shipped = await ctx.fan_out(calls, queue="children")
            closed = await ctx.step(close)
            return {
                "charged": charged, "booked": booked, "approved": approved,
                "shipped": shipped.values, "closed": closed,
            }  # fmt: skip

        return registry_of(handler(order, **OPTIONS), shipping)

    async def live(self) -> JobRow:
        """Submit the workflow and keep the world turning until it has ended."""
        job = NewJob(id=new_job_id(), topic="order", payload="{}", queue="parents")
        await self.calm.submit([job])
        process = self._process()
        for _ in range(60):
            worked = await process.work()
            if process.dead:
                await self._recover(process, job.id)
                process = self._process()
            elif not worked and await self._ended_after_a_while(job.id):
                break
        self.woken += process.woken
        await process.bury()
        ended: JobRow = (await self.calm.get([job.id]))[job.id]
        return ended

    def _process(self) -> Process:
        if self.remote:
            store: Any = RemoteUnderTest(self.calm.server, self.calm.options)
        else:
            # It is the process that dies, not the machine: nothing has to reach the disk.
            sqlite = self.backend.engine == "sqlite"
            hurried: dict[str, Any] = {"synchronous": "NORMAL"} if sqlite else {}
            store = self.backend.open(**hurried)
        return Process(store, self.registry, self.fate)

    async def _recover(self, process: Process, job_id: UUID) -> None:
        """Let the leases of a dead process run out."""
        self.woken += process.woken
        await process.bury()
        self.kept = await self._stored(job_id)
        self.ran.append("-- died --")
        await self._reap()

    async def _stored(self, job_id: UUID) -> set[str]:
        history = await self.calm.workflows.history(job_id)
        children = await self.calm.list_jobs(JobFilter(parent=job_id))
        shipped = {
            f"ship {json.loads(child.payload)['n']}"
            for child in children
            if child.status in TERMINAL
        }
        steps = {one.name for one in history.checkpoints if one.kind == "STEP"}
        return shipped | {"book" if name == "note" else name for name in steps}

    async def _reap(self) -> None:
        self.backend.clock.advance(31)
        await reap(self.calm)

    async def _ended_after_a_while(self, job_id: UUID) -> bool:
        """All workers are idle: send what is waited for, and let time pass."""
        found = (await self.calm.get([job_id]))[job_id]
        if found.status is Status.WAITING and found.wait_kind == "SIGNAL":
            signal = Signal(id=self.signal_id, job_id=job_id, name="approved", payload="true")
            assert (await self.calm.workflows.signal(signal)).stored
        elif found.status is Status.WAITING and found.wait_kind == "SLEEP":
            self.backend.clock.advance(HOUR)
        else:  # what a lost claim has leased
            await self._reap()
        return found.status in TERMINAL


async def a_life(backend: Backend, at: int, when: When) -> World:
    """Live once, and check that it came out as it should."""
    backend.empty()
    backend.execute("DELETE FROM effects")
    world = World(backend, Fate(at, when))
    job = await world.live()
    where = f"{when} call {at} ({world.fate.struck}): {world.ran}"
    assert job.status is Status.SUCCEEDED, f"{where}: {job.status} {job.last_error}"
    assert job.result is not None
    assert json.loads(job.result) == ANSWER, where
    # The effect of the transaction, and the children: each once.
    effects = 0 if world.remote else 1
    assert backend.execute("SELECT count(*) FROM effects") == [(effects,)], where
    children = await world.calm.list_jobs(JobFilter(parent=job.id))
    assert [child.status for child in children] == [Status.SUCCEEDED] * CHILDREN, where
    # What was stored when the process died did not run again; nothing ran three times.
    after = world.ran[world.ran.index("-- died --") :] if "-- died --" in world.ran else []
    assert not world.kept & set(after), where
    runs = Counter(world.ran)
    runs.pop("-- died --", None)
    assert set(runs) == {"charge", "book", "close", *(f"ship {n}" for n in range(CHILDREN))}
    twice = [name for name, count in runs.items() if count > 1]
    assert len(twice) <= 1, where
    assert max(runs.values()) <= 2, where
    # At most one wake for each of its two waits that others end; time ends the third.
    assert world.woken <= 1, where
    await world.calm.aclose()
    return world


def points(backend: Backend, calls: list[str], *, every: bool = False) -> list[int]:
    """Return at which calls something happens: all of them, or the last one of each kind."""
    embedded = not isinstance(backend, RemoteBackend) and backend.engine == "sqlite"
    if (every and embedded) or os.environ.get("PULSED_EVERY_CRASH"):
        return list(range(1, len(calls) + 1))
    return sorted({name: at for at, name in enumerate(calls, 1)}.values())


@pytest.fixture
async def calls(backend: Backend) -> Any:
    """The storage calls of an undisturbed life."""
    store = backend.open()
    await store.now()
    await store.aclose()
    backend.execute("DROP TABLE IF EXISTS effects")
    backend.execute("CREATE TABLE effects (n INTEGER)")
    undisturbed = await a_life(backend, 0, "before")
    assert undisturbed.woken == (0 if undisturbed.remote else 1)
    assert "-- died --" not in undisturbed.ran
    yield undisturbed.fate.calls
    backend.execute("DROP TABLE IF EXISTS effects")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_at_any_call_loses_and_repeats_nothing(backend, calls, when):
    struck = set()
    for at in points(backend, calls, every=True):
        struck.add((await a_life(backend, at, when)).fate.struck)
    assert (BEHIND_A_SERVER if isinstance(backend, RemoteBackend) else EMBEDDED) <= struck


@pytest.mark.parametrize("when", ["blinks before", "blinks after"])
async def test_a_database_that_blinks_at_any_call_makes_no_difference(backend, calls, when):
    found = points(backend, calls)
    if isinstance(backend, RemoteBackend) and when == "blinks before":
        found = found[-1:]  # a request that is lost and sent again is sent once, whichever it is
    for at in found:
        world = await a_life(backend, at, when)
        assert world.fate.struck
        repeated = [name for name, count in Counter(world.ran).items() if count > 1]
        assert repeated in ([], ["book"]), world.ran  # a transaction that was undone

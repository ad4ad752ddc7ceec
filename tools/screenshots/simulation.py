"""Jobs that happened at given times: scripts that move a clock, and a store that reads it.

A script is an asynchronous generator: it calls verbs of the store, and yields the seconds until it
continues. The simulation runs all of them in the order of time, so the store sees what it would
see of real producers and workers. What a script would do after the end does not happen: its jobs
stay as they are then, pending, running or waiting.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime, timedelta
from hashlib import sha1
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from pulsed.model.ids import computed_id
from pulsed.model.job import Assignment, NewJob, Status, TopicPolicy
from pulsed.model.outcome import Outcome, Report
from pulsed.store.sqlite.store import SqliteStore

Script: TypeAlias = AsyncGenerator[float, None]


class Try(NamedTuple):
    """One attempt of a job: how long it runs, and how that ends."""

    seconds: float
    outcome: Outcome


class Simulation:
    """Runs scripts against a store whose clock it moves."""

    def __init__(
        self, store: Callable[[Callable[[], datetime]], SqliteStore], end: datetime
    ) -> None:
        self.now = self.end = end
        self.store = store(lambda: self.now)
        self.random = random.Random(7)  # noqa: S311 - the same pictures every time
        self._events: list[tuple[datetime, int, Script]] = []
        self._made = 0

    def start(self, ago: float, script: Script) -> None:
        """Let a script begin so many seconds before the end."""
        self._push(self.end - timedelta(seconds=ago), script)

    def spawn(self, script: Script) -> None:
        """Let a script begin now."""
        self._push(self.now, script)

    def _push(self, at: datetime, script: Script) -> None:
        self._made += 1
        heapq.heappush(self._events, (at, self._made, script))

    async def run(self) -> None:
        """Run all scripts until the end."""
        while self._events:
            at, _, script = heapq.heappop(self._events)
            if at <= self.end:
                self.now = at
                try:
                    pause = await anext(script)
                except StopAsyncIteration:
                    continue
                self._push(at + timedelta(seconds=pause), script)
            else:
                await script.aclose()
        self.now = self.end

    # -- what scripts are made of -----------------------------------------------------------------

    def job_id(self) -> UUID:
        """Return an id that begins with the time, like a real one, but is the same every time."""
        self._made += 1
        digest = sha1(f"job {self._made}".encode(), usedforsecurity=False).digest()
        return computed_id(int(self.now.timestamp() * 1000), digest)

    async def submit(self, topic: str, payload: Any, **options: Any) -> UUID:
        """Enqueue a job."""
        job = NewJob(
            id=self.job_id(), topic=topic, payload=msgspec.json.encode(payload).decode(), **options
        )
        await self.store.submit([job])
        return job.id

    async def claim(
        self, worker: UUID, queue: str, policy: TopicPolicy, limit: int = 1
    ) -> Sequence[Assignment]:
        """Claim the oldest due jobs of a topic."""
        self.store.claims.floors.clear()  # they follow the real clock, which stands still
        return await self.store.claim(worker, queue, [policy], limit)

    async def settle(self, run: Assignment, outcome: Outcome) -> None:
        """End a run."""
        await self.store.settle([Report.of(run, outcome)])

    async def attempts(
        self, worker: UUID, queue: str, policy: TopicPolicy, tries: Sequence[Try]
    ) -> Script:
        """Claim a job of a topic, and run it with these outcomes until it is over."""
        for each in tries:
            while not (runs := await self.claim(worker, queue, policy)):
                yield 1.0
            yield each.seconds
            await self.settle(runs[0], each.outcome)
            row = (await self.store.get([runs[0].job_id]))[runs[0].job_id]
            if row.status is not Status.RETRYING:
                return
            yield (row.next_run_at - self.now).total_seconds() + 0.2

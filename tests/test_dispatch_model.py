"""Random lives of streams with the real dispatcher, a store made of lists, and time that jumps.

Networks are slow, workers freeze, claims fail, streams end, workers withdraw. There is no poll: who
misses news has missed it for ever. Run with ``--hypothesis-profile=long`` for many more seeds.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import settings

from pulsed.model.job import Lease
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.rpc.server.wait_list import Grant
from pulsed.store.base import Store
from tests.support.chance_workers import PAUSES, Chance, Jobs, Worker
from tests.support.jumping_loop import run_jumping

PARTS = 4
UNTIL_CALM = 10.0


class Life:
    """One server with its workers, as the seed has it."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = Chance(seed)
        self.faults: list[str] = []
        self.ran: dict[UUID, Lease] = {}
        names = ["a", "b", "c"][: chance.randint(1, 3)]
        self.jobs: Any = Jobs(chance, names)
        self.dispatcher = Dispatcher(cast("Store", self.jobs), poll=0.01)
        self.failing = chance.choice([0.0, 0.0, 0.2])
        self.ending = chance.choice([0.0, 0.0, 0.3])
        self.withdrawing = chance.choice([0.0, 0.0, 0.2])
        self.surprises = chance.choice([0.0, 0.1, 0.3])
        self.jobs.meanwhile = self.surprise
        self.storming = False
        self.lingering = chance.choice([0.0, 0.3, 0.7, 1.0])
        self.workers = [Worker(self, names) for _ in range(chance.choice([1, 1, 2, 3, 6]))]

    def expect(self, holds: object, otherwise: str) -> None:
        if not holds:
            self.faults.append(otherwise)

    async def run(self) -> list[str]:
        loops = [loop() for each in self.workers for loop in (each.run, each.read, each.write)]
        tasks = [asyncio.ensure_future(loop) for loop in (self.dispatcher.run(), *loops)]
        for _ in range(self.chance.randint(3, 10)):
            await self.storm()
            self.jobs.failing, self.storming = 0.0, False
            if self.failing:
                self.dispatcher.hint()  # a failed claim leaves the others to the poll
            await asyncio.sleep(UNTIL_CALM)
            self.check_calm()
        await self.storm()
        self.dispatcher.answer_all()
        await self.chance.pause()
        self.storming = False
        for worker in self.workers:
            worker.stop()
        await asyncio.sleep(UNTIL_CALM)
        self.check_drained()
        self.faults += [f"{task} died" for task in tasks[:1] if task.done()]
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        self.faults += [repr(end) for end in ends if isinstance(end, Exception)]
        return self.faults

    async def storm(self) -> None:
        self.jobs.failing, self.storming = self.failing, True
        for _ in range(self.chance.randint(1, 6)):
            self.something_happens()
            await asyncio.sleep(self.chance.choice([*PAUSES, 0.02, 0.2]))

    def surprise(self) -> None:
        if self.storming and self.chance.happens(self.surprises):
            self.something_happens()

    def something_happens(self) -> None:
        for _ in range(self.chance.choice([0, 1, 1, 1, 2, 8])):
            self.dispatcher.hint((self.jobs.submit(),))
        worker = self.chance.choice(self.workers)
        if self.chance.happens(self.ending):
            worker.end_stream()
        if self.chance.happens(self.withdrawing):
            worker.withdraw()

    def check_calm(self) -> None:
        self.expect(not any(self.jobs.queues.values()), "missed jobs")
        self.check_turns_and_leases()
        for worker in self.workers:
            line = {wait_list.queue: [*wait_list.waiting] for wait_list in worker.wait_lists()}
            standing = {each for line in line.values() for each in line if isinstance(each, Grant)}
            mine = {grant.id for grant in standing if grant.stream is worker.stream}
            self.expect(mine == set(worker.asked), "a grant neither stands nor was answered")
            self.expect(worker.stream.unanswered == len(mine), "wrong count of the unanswered")
            self.expect(not worker.withdrew, "a grant outlasted a withdrawal")
            for queue in worker.quiet:
                hears = [getattr(each, "stream", each) for each in line.get(queue, ())]
                self.expect(worker.stream in hears, "waits for offers, but not in line")

    def check_drained(self) -> None:
        self.check_turns_and_leases()
        waiting = [
            each for wait_list in self.dispatcher._wait_lists.values() for each in wait_list.waiting
        ]
        self.expect(not waiting, "somebody waits for a server that is going away")
        for worker in self.workers:
            self.expect(not worker.asked, "a grant was not answered by a server going away")
            self.expect(worker.stream.unanswered == 0, "wrong count at the end")

    def check_turns_and_leases(self) -> None:
        turns = [wait_list._turn for wait_list in self.dispatcher._wait_lists.values()]
        self.expect(not any(turns), "a wait list is stuck")
        self.expect(self.ran == self.jobs.leases, "jobs that nobody got were not given back")


@pytest.mark.parametrize("part", range(PARTS))
def test_streams_get_what_they_are_promised_whatever_happens(part):
    seeds = range(part, 4 * settings().max_examples, PARTS)
    assert {seed: faults for seed in seeds if (faults := run_jumping(Life(seed).run()))} == {}

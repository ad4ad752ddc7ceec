"""Workers and a store for the model of the dispatcher: all that they do is left to chance."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, Protocol
from uuid import UUID

from pulsed.errors import TransientStorageError
from pulsed.model.job import Assignment, Lease
from pulsed.model.outcome import Report
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.rpc.server.wait_list import OFFER_TIMEOUT, Grant, Stream
from pulsed.store.results import Assignments
from tests.support.jobs import TOPIC, a_policy

PAUSES = (0.0, 0.0, 0.0, 0.001, 0.002, 0.005)
FROZEN = 2 * OFFER_TIMEOUT
WAITS = (0.002, 0.01, 0.05, 1_000.0)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Chance(Random):
    """What happens, and when."""

    async def pause(self) -> None:
        await asyncio.sleep(self.choice(PAUSES))

    def happens(self, share: float) -> bool:
        return self.random() < share


class Jobs:
    """A store made of lists."""

    doubtful_claims = 0

    def __init__(self, chance: Chance, queues: list[str]) -> None:
        self.chance = chance
        self.queues: dict[str, list[UUID]] = {queue: [] for queue in queues}
        self.leases: dict[UUID, Lease] = {}
        self.numbers = itertools.count(1)
        self.failing = 0.0
        self.meanwhile: Callable[[], None] = lambda: None
        """Is called when a claim has seen what there is, and has not answered yet."""

    def submit(self) -> str:
        """Add a job; returns its queue."""
        queue = self.chance.choice(list(self.queues))
        self.queues[queue].append(UUID(int=next(self.numbers)))
        return queue

    async def claim(self, worker_id: UUID, queue: str, _: Any, most: int) -> Assignments:
        await self.chance.pause()
        if self.chance.happens(self.failing):
            raise TransientStorageError("away")
        taken, self.queues[queue] = self.queues[queue][:most], self.queues[queue][most:]
        leases = [Lease(job_id, next(self.numbers), worker_id) for job_id in taken]
        self.leases |= {lease.job_id: lease for lease in leases}
        self.meanwhile()
        await self.chance.pause()
        return Assignments(_assignment(lease, queue) for lease in leases)

    async def settle_free(self, reports: list[Report]) -> tuple[set[Lease], set[Lease]]:
        await self.chance.pause()
        if self.chance.happens(self.failing):
            raise TransientStorageError("away")
        for lease, *_ in reports:
            if self.leases.get(lease.job_id) == lease:
                del self.leases[lease.job_id]
                self.queues[self.chance.choice(list(self.queues))].append(lease.job_id)
        return {lease for lease, *_ in reports}, set()


def _assignment(lease: Lease, queue: str) -> Assignment:
    return Assignment(lease, TOPIC, queue, 0, "{}", 1, 1, 30.0, None, {}, LONG_AGO, LONG_AGO)


class NumberedStream(Stream):
    """Hashes by its number, so that a seed gives the same run every time."""

    def __hash__(self) -> int:
        return hash(self.worker_id)


class Surroundings(Protocol):
    """What a worker knows of the life it is part of."""

    chance: Chance
    dispatcher: Dispatcher
    lingering: float
    ran: dict[UUID, Lease]

    def expect(self, holds: object, otherwise: str) -> None: ...


class Worker:
    """Does what workers do: claims from one queue after the other, lingers, waits for an offer."""

    def __init__(self, life: Surroundings, queues: list[str]) -> None:
        self.life, self.chance, self.dispatcher = life, life.chance, life.dispatcher
        self.queues = self.chance.sample(queues, len(queues))
        self.slots = self.chance.choice([1, 2, 3, 10])
        self.running = 0
        self.numbers = itertools.count(1)
        self.asked: dict[int, tuple[Grant, asyncio.Future[int]]] = {}
        self.quiet: set[str] = set()
        self.inbox: asyncio.Queue[tuple[Stream, list[Assignment], Callable[[], None]]]
        self.inbox, self.woken, self.slot_freed = asyncio.Queue(), asyncio.Event(), asyncio.Event()
        self.outbox: asyncio.Queue[tuple[Stream, Callable[[], None]]] = asyncio.Queue()
        self.was_busy = self.withdrew = self.stopping = False
        self.stream = self.opened()

    def opened(self) -> Stream:
        topics = [a_policy(lease=self.chance.choice([30.0, 30.0, 60.0]))]

        def send(claimed: list[Assignment], receive: Callable[[], None]) -> None:
            self.life.expect(not (stream.closed and claimed), "jobs for a closed stream")
            self.inbox.put_nowait((stream, claimed, receive))

        def offer(queue: str) -> None:
            self.life.expect(not stream.closed, "an offer for a closed stream")
            self.life.expect(not stream.withdrawn, "an offer for one that withdrew")
            send([], partial(self.take_offer, queue))

        stream = NumberedStream(
            UUID(int=self.chance.getrandbits(64)),
            tuple(self.queues),
            topics,
            wants_offers=True,
            deliver=lambda grant, claimed: send(claimed, partial(self.take, grant, claimed)),
            offer=offer,
            fail=lambda _: send([], self.end_stream),
        )
        self.dispatcher.join(stream)
        return stream

    def wait_lists(self) -> list[Any]:
        wait_lists = self.dispatcher._wait_lists.items()
        return [wait_list for (_, key), wait_list in wait_lists if key == self.stream.key]

    async def run(self) -> None:
        while not self.stopping:
            if await self.drain_queues() and not await self.linger():
                await self.woken.wait()

    async def drain_queues(self) -> bool:
        while self.running >= self.slots:
            self.slot_freed.clear()
            await self.slot_freed.wait()
        self.woken.clear()
        if self.withdrew:  # nothing is in flight; it starts again
            self.withdrew = False
            self.quiet.clear()
        for queue in self.chance.sample(self.queues, len(self.queues)):
            free = self.slots - self.running
            if free <= 0 or (queue not in self.quiet and await self.ask([queue], free) == free):
                return False
        return True

    async def linger(self) -> bool:
        most = min(2, self.slots - self.running)
        if (
            most <= 0
            or self.withdrew
            or not self.was_busy
            or not self.chance.happens(self.life.lingering)
        ):
            return False
        self.was_busy = False
        return await self.ask(self.queues, most, self.chance.choice(WAITS)) > 0

    async def ask(self, queues: list[str], credit: int, wait: float = 0.0) -> int:
        grant = Grant(self.stream, next(self.numbers), credit, tuple(queues), wait)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked[grant.id] = grant, answer
        self.outbox.put_nowait((self.stream, partial(self.dispatcher.grant, grant)))
        return await answer

    async def write(self) -> None:
        while True:
            stream, say = await self.outbox.get()
            await self.chance.pause()
            if not stream.closed:
                say()

    async def read(self) -> None:
        while True:
            stream, claimed, receive = await self.inbox.get()
            await self.chance.pause()
            if self.chance.happens(0.02):
                await asyncio.sleep(FROZEN)
            if stream.closed:
                self.dispatcher.give_back(claimed)
            else:
                receive()

    def take(self, grant: Grant, claimed: list[Assignment]) -> None:
        if grant.id not in self.asked:
            self.life.expect(holds=False, otherwise="a grant was answered twice")
            return
        _, answer = self.asked.pop(grant.id)
        self.life.expect(len(claimed) <= grant.credits, "more than was asked for")
        if len(claimed) < grant.credits:
            self.quiet.update(grant.queues)
        else:
            self.quiet.difference_update(grant.queues)
        for each in claimed:
            self.begin(each.lease)
        answer.set_result(len(claimed))

    def begin(self, lease: Lease) -> None:
        self.life.expect(lease.job_id not in self.life.ran, "a job was given to two")
        self.life.ran[lease.job_id] = lease
        self.was_busy = True
        self.running += 1
        self.life.expect(self.running <= self.slots, "more than there are slots")
        asyncio.get_running_loop().call_later(self.chance.choice(PAUSES), self.end_run)

    def end_run(self) -> None:
        self.running -= 1
        self.slot_freed.set()

    def take_offer(self, queue: str) -> None:
        self.quiet.discard(queue)
        self.woken.set()

    def end_stream(self) -> None:
        self.dispatcher.leave(self.stream)
        for _, answer in self.asked.values():
            answer.set_result(0)
        self.asked.clear()
        self.quiet.clear()
        self.withdrew = False  # the new stream does not know of it
        self.stream = self.opened()
        self.woken.set()

    def withdraw(self) -> None:
        self.withdrew = True
        self.outbox.put_nowait((self.stream, partial(self.dispatcher.answer_all, self.stream)))
        self.woken.set()

    def stop(self) -> None:
        self.stopping = True
        self.woken.set()
        self.slot_freed.set()

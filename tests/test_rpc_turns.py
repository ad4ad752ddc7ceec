"""The dispatcher's turns: no stream can keep the others from being served."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from pulsed.model.job import Status, TopicPolicy
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.rpc.server.wait_list import Grant, Stream
from pulsed.store.results import Assignments
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import TOPIC, row, submitted
from tests.support.raw_streams import raw_client
from tests.support.waiting import until


class CountingStore:
    """Has no jobs, and records which queues were claimed from."""

    doubtful_claims = 0

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def claim(self, worker_id, queue, topics, limit):
        self.asked.append(queue)
        await asyncio.sleep(0)
        return Assignments()


def a_stream(*queues: str, topic: str = TOPIC) -> Stream:
    return Stream(
        uuid4(),
        queues,
        [TopicPolicy(topic=topic)],
        wants_offers=False,
        deliver=lambda grant, claimed: None,
        offer=lambda queue: None,
        fail=lambda error: None,
    )


class TestTurns:
    async def test_a_grant_of_many_queues_lets_others_in_between(self):
        store = CountingStore()
        dispatcher = Dispatcher(store)  # type: ignore[arg-type]
        many = tuple(f"q{n}" for n in range(50))
        greedy, modest = a_stream(*many), a_stream("mine")
        for stream in (greedy, modest):
            dispatcher.join(stream)
        dispatcher.grant(Grant(greedy, 1, 1, many, 0.0))
        dispatcher.grant(Grant(modest, 1, 1, ("mine",), 0.0))
        await served(dispatcher, [greedy, modest])
        assert store.asked.index("mine") == 1
        assert store.asked.count("mine") == 1
        assert len(store.asked) == 51

    async def test_a_queue_named_twice_is_looked_at_once(self, guarded, keys):
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            await stream.hello(queues=["default"] * 20_000)
            await stream.grant(1, 1)
            await stream.batch()
            await stream.grant(2, 1, queues=["other"] * 20_000)
            await stream.batch()
            assert guarded.server.dispatcher.claims == 2

    async def test_queues_and_wait_lists_of_those_who_left_are_forgotten(self):
        store = CountingStore()
        dispatcher = Dispatcher(store)  # type: ignore[arg-type]
        staying = a_stream("mine")
        dispatcher.join(staying)
        for number in range(20):
            passing = a_stream("mine", f"q{number}")
            dispatcher.join(passing)
            dispatcher.grant(Grant(passing, 1, 1, ("mine", f"q{number}", f"r{number}"), 0.0))
            await served(dispatcher, [passing])
            dispatcher.leave(passing)
        dispatcher.grant(Grant(staying, 1, 1, ("mine",), 0.0))
        await served(dispatcher, [staying])
        assert set(dispatcher._queues) == {"mine"}
        assert [queue for queue, _ in dispatcher._wait_lists] == ["mine"]

    async def test_what_a_grant_found_so_far_is_given_back_when_its_stream_leaves(self, database):
        """Between two of its queues."""
        near = SqliteStore(database)
        job_id = await submitted(near, queue="a")
        dispatcher = Dispatcher(near)
        stream = a_stream("a", "b")
        dispatcher.join(stream)
        dispatcher.grant(grant := Grant(stream, 1, 2, ("a", "b"), 0.0))
        stream.grants.clear()
        await dispatcher.serve(grant)
        assert [each.job_id for each in grant.claimed] == [job_id]
        dispatcher.leave(stream)
        await dispatcher.given_back()
        assert (await row(near, job_id)).status is Status.PENDING


async def served(dispatcher: Dispatcher, waiting: list[Stream]) -> None:
    running = asyncio.create_task(dispatcher.run())
    await until(lambda: not any(stream.unanswered for stream in waiting))
    running.cancel()

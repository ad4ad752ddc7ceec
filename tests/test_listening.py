"""More queues for a listener: nothing that arrives while they are added is missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pulsed.store.listener import Listener, Wake
from tests.support.jobs import a_job
from tests.support.raw_streams import raw_client
from tests.support.servers import PATIENCE, ServerThread
from tests.support.waiting import until

pytestmark = pytest.mark.embedded("a server hears for those behind it")

NEVER = 3600.0


async def test_a_listener_wakes_for_the_queues_that_it_is_told_of_later(backend):
    here, elsewhere = backend.open(own_clock=False), backend.open(own_clock=False)
    woken = asyncio.Event()
    async with here.listen(["mail"], lambda _: woken.set()) as listener, asyncio.timeout(PATIENCE):
        await until(lambda: listener.healthy)
        for producer in (elsewhere, here):
            for queue in ("sms", "pdf"):
                listener.hear([queue])
                woken.clear()
                await producer.submit([a_job(queue=queue)])
                await woken.wait()
    for store in (here, elsewhere):
        await store.aclose()


async def test_without_a_connection_that_listens_they_are_heard_of_in_the_same_process(backend):
    if backend.engine != "postgres":
        pytest.skip("a file is watched without a connection")
    store = backend.open(own_clock=False, prepared_statements=False)
    woken = asyncio.Event()
    async with store.listen(["mail"], lambda _: woken.set()) as listener, asyncio.timeout(PATIENCE):
        assert not listener.healthy
        listener.hear(["sms"])
        await store.submit([a_job(queue="sms")])
        await woken.wait()
    await store.aclose()


class Subscriptions:
    """Counts how often a store was listened to."""

    def __init__(self, store: Any) -> None:
        self.begun = 0
        self.listeners: list[Listener] = []
        self._listen = store.listen
        store.listen = self._counting

    @asynccontextmanager
    async def _counting(self, queues: Sequence[str], wake: Wake) -> AsyncIterator[Listener]:
        self.begun += 1
        async with self._listen(queues, wake) as listener:
            self.listeners.append(listener)
            yield listener


async def test_a_server_goes_on_listening_while_streams_bring_new_queues(backend):
    """It never polls here, so every job arrives by a notification."""
    made: list[Subscriptions] = []

    def make_store() -> Any:
        store = backend.open(own_clock=False)
        made.append(Subscriptions(store))
        return store

    producer = backend.open(own_clock=False)
    with ServerThread(make_store, poll=NEVER) as server:
        (subscriptions,) = made
        async with raw_client(server.host) as client:
            await until(lambda: any(one.healthy for one in subscriptions.listeners))
            for number, queue in enumerate(("mail", "sms", "pdf")):
                stream = client.stream()
                await stream.hello(queues=[queue])
                await stream.grant(1, 1, wait=PATIENCE)
                await until(lambda: server.server.dispatcher.claims > number)  # noqa: B023
                job = a_job(queue=queue)
                await producer.submit([job])
                assert [each.job_id for each in (await stream.batch()).assignments] == [str(job.id)]
        assert subscriptions.begun == 1
    await producer.aclose()

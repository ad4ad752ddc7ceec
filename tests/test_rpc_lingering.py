"""A worker that had something to do a moment ago is handed the next job without an offer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import grpc
import pytest

from pulsed.engine.worker import claimer as claiming
from pulsed.engine.worker.worker import Exit
from pulsed.errors import TransientStorageError
from pulsed.model.job import Status
from pulsed.rpc.client import claim_stream as claims
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.server import job_stream as streams
from pulsed.rpc.server import wait_list
from pulsed.rpc.server.wait_list import Grant
from pulsed.store.listener import Listener
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.jobs import a_job, row
from tests.support.raw_streams import raw_client
from tests.support.servers import ServerThread
from tests.support.silent_proxy import SilentProxy
from tests.support.workers import (
    NEVER,
    all_finished,
    finished,
    handler,
    in_status,
    submit,
    submit_many,
    until,
    working,
)

LONG = 60.0
"""Seconds that a grant may stand at most."""
KEEPALIVE = 0.4
BOTH = ("first", "second")


@pytest.fixture
def server(database):
    """A server that never polls, and never takes an offer back."""
    with ServerThread(lambda: SqliteStore(database), poll=NEVER) as server:
        yield server


class NoHints(Listener):
    healthy = False


class Deaf(SqliteStore):
    """Sends no notifications."""

    @asynccontextmanager
    async def listen(self, queues, wake):
        yield NoHints()


@pytest.fixture
def deaf(database):
    """A server that is notified of jobs only by the test."""
    with ServerThread(lambda: Deaf(database), poll=NEVER) as server:
        yield server


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(wait_list, "OFFER_TIMEOUT", NEVER)


@pytest.fixture
async def client(deaf):
    async with raw_client(deaf.host) as client:
        yield client


@pytest.fixture
async def far(server):
    store = RemoteStore(server.url, RemoteOptions(**AT_ONCE_OPTIONS))
    yield store
    await store.aclose()


@pytest.fixture
def offers(monkeypatch):
    """The queues of all offers that a server makes."""
    made: list[str] = []
    offer = streams.JobStream._offer

    def noted(self, queue):
        made.append(queue)
        offer(self, queue)

    monkeypatch.setattr(streams.JobStream, "_offer", noted)
    return made


async def submit_to(server, queue="default"):
    """Submit a job and notify the server."""
    job = a_job(queue=queue)

    async def arrive(server):
        await server.store.submit([job])
        server.dispatcher.hint()

    server.do(arrive)
    return str(job.id)


def jobs_of(batch):
    return [assignment.job_id for assignment in batch.assignments]


async def let_stand(server, stream, number, credits, wait=LONG):  # noqa: A002
    """Grant, and wait until that stands."""
    before = server.do(_standing)
    await stream.grant(number, credits, wait=wait)
    await until(lambda: server.do(_standing) > before)


async def _hint(server, names):
    return server.dispatcher.hint(names)


async def _standing(server):
    wait_lists = server.dispatcher._wait_lists.values()
    return sum(isinstance(each, Grant) for wait_list in wait_lists for each in wait_list.waiting)


async def one_that_looked(client, **hello):
    """Return a stream of a worker that wants offers, and has just found nothing."""
    stream = client.stream()
    await stream.hello(wants_offers=True, **hello)
    await stream.grant(1, 2)
    assert jobs_of(await stream.batch()) == []
    return stream


async def one_that_hears_of_the_second_queue_first(client):
    """Return a stream that claims from the first one first, but asked for the second one before."""
    stream = client.stream()
    await stream.hello(queues=BOTH)
    await stream.grant(1, 1, queues=["second"])
    assert jobs_of(await stream.batch()) == []
    return stream


class TestGrantsThatStand:
    async def test_it_stands_without_a_look_where_its_stream_has_looked(self, client, deaf):
        stream = await one_that_looked(client)
        looks = deaf.server.dispatcher.claims
        await let_stand(deaf, stream, 2, 2)
        job_id = await submit_to(deaf)
        batch = await stream.batch()
        assert (batch.grant_id, jobs_of(batch)) == (2, [job_id])
        assert deaf.server.dispatcher.claims == looks + 1

    async def test_no_offer_is_made_while_it_stands(self, client, deaf, offers):
        stream = await one_that_looked(client)
        await let_stand(deaf, stream, 2, 2)
        await submit_to(deaf)
        await stream.batch()
        assert offers == []

    async def test_the_offers_come_back_when_it_was_answered(self, client, deaf):
        stream = await one_that_looked(client)
        await let_stand(deaf, stream, 2, 2)
        await submit_to(deaf)
        assert len(jobs_of(await stream.batch())) == 1
        await submit_to(deaf)
        assert (await stream.read()).WhichOneof("kind") == "offer"

    async def test_the_offers_come_back_when_its_time_is_over(self, client, deaf):
        stream = await one_that_looked(client)
        await stream.grant(2, 2, wait=0.01)
        assert jobs_of(await stream.batch()) == []
        await submit_to(deaf)
        assert (await stream.read()).WhichOneof("kind") == "offer"

    async def test_when_its_time_is_over_nobody_looks_for_what_others_have_seen_to(
        self, client, deaf, offers
    ):
        other, stream = await one_that_looked(client), await one_that_looked(client)
        await let_stand(deaf, stream, 2, 2, wait=0.2)
        await submit_to(deaf)
        assert (await other.read()).WhichOneof("kind") == "offer"
        await other.grant(2, 2)
        assert len(jobs_of(await other.batch())) == 1
        assert jobs_of(await stream.batch()) == []
        assert offers == ["default"]

    async def test_one_who_took_all_that_it_could_is_offered_nothing(self, client, deaf, offers):
        stream, other = await one_that_looked(client), await one_that_looked(client)
        await let_stand(deaf, stream, 2, 1)
        await submit_to(deaf)
        assert (await other.read()).WhichOneof("kind") == "offer"  # it was first in line
        await other.grant(2, 1)
        assert len(jobs_of(await other.batch())) == 1
        await submit_to(deaf)
        assert len(jobs_of(await stream.batch())) == 1
        await submit_to(deaf)
        assert offers == ["default"]

    async def test_it_is_answered_once_when_several_queues_have_news_at_once(
        self, client, deaf, monkeypatch
    ):
        """Nor is a notification lost that arrives during a claim."""
        claim, jobs = deaf.store.claim, [a_job(queue=queue) for queue in ("first", "second")]

        async def claim_and_hear_news(worker_id, queue, topics, limit):
            claimed = await claim(worker_id, queue, topics, limit)
            if queue == "second":
                await deaf.store.submit(jobs)  # again and again, but stored once
                deaf.server.dispatcher.hint()
            return claimed

        monkeypatch.setattr(deaf.store, "claim", claim_and_hear_news)
        stream = client.stream()
        await stream.hello(queues=("first", "second"))
        for number, job in enumerate(jobs, 1):
            await stream.grant(number, 1, wait=LONG)
            batch = await stream.batch()
            assert (batch.grant_id, jobs_of(batch)) == (number, [str(job.id)])
        assert deaf.do(_unanswered) == 0

    async def test_a_notification_wakes_those_who_wait_in_its_queue_and_says_so(self, client, deaf):
        one, other = client.stream(), client.stream()
        for stream, queue in ((one, "first"), (other, "second")):
            await stream.hello(queues=[queue])
            await let_stand(deaf, stream, 1, 2)
        looks = deaf.server.dispatcher.claims
        assert deaf.do(partial(_hint, names=("first",))) is True
        assert deaf.do(partial(_hint, names=("third",))) is False
        await until(lambda: deaf.do(_standing) == 2)
        assert deaf.server.dispatcher.claims == looks + 1

    async def test_news_in_several_queues_call_one_that_looks_in_all_of_them(self, client, deaf):
        one, other = client.stream(), client.stream()
        for stream in (one, other):
            await stream.hello(queues=BOTH)
            await let_stand(deaf, stream, 1, 2)
        looks = deaf.server.dispatcher.claims
        job_id = await submit_to(deaf, "second")
        assert jobs_of(await one.batch()) == [job_id]
        await one.grant(2, 1, queues=["third"])  # is served after the stream that was offered jobs
        await one.batch()
        assert deaf.server.dispatcher.claims == looks + len(BOTH) + 1

    async def test_one_that_has_enough_leaves_no_other_queue_deaf(self, client, deaf):
        """It was called because of the second queue, and found enough in the first."""
        stream = await one_that_hears_of_the_second_queue_first(client)
        await let_stand(deaf, stream, 2, 1)
        first = await submit_to(deaf, "first")
        assert jobs_of(await stream.batch()) == [first]
        assert deaf.do(_turns) == 0
        await let_stand(deaf, stream, 3, 1)
        second = await submit_to(deaf, "second")
        assert jobs_of(await stream.batch()) == [second]

    async def test_one_whose_look_failed_leaves_no_other_queue_deaf(
        self, client, deaf, monkeypatch
    ):
        stream = await one_that_hears_of_the_second_queue_first(client)
        await let_stand(deaf, stream, 2, 1)
        with monkeypatch.context() as patch:
            patch.setattr(deaf.store, "claim", _away)
            await submit_to(deaf, "first")
            with pytest.raises(grpc.RpcError):
                await stream.batch()
        assert deaf.do(_turns) == 0

    async def test_an_offer_that_its_answer_overtook_is_made_again(self, client, deaf, monkeypatch):
        """The worker takes the answer for the later word: nothing is left in the first queue."""
        claim, job = deaf.store.claim, a_job(queue="first")

        async def claim_and_hear_news(worker_id, queue, topics, limit):
            claimed = await claim(worker_id, queue, topics, limit)
            if queue == "second" and (await deaf.store.submit([job])).new:
                deaf.server.dispatcher.hint()
            return claimed

        monkeypatch.setattr(deaf.store, "claim", claim_and_hear_news)
        await submit_to(deaf, "second")
        stream = client.stream()
        await stream.hello(queues=BOTH, wants_offers=True)
        await stream.grant(1, 2, queues=["first"])
        await stream.batch()
        await stream.grant(2, 2, wait=LONG)
        assert len(jobs_of(await stream.batch())) == 1
        offered = [(await stream.read()).offer.queue for _ in BOTH]
        assert set(offered) == set(BOTH)

    async def test_all_are_answered_when_the_server_is_going_away(self, client, deaf):
        """Also one whose turn it becomes because another one leaves, and one that comes late."""
        for _ in range(5):
            await one_that_looked(client)
        lingering = [await one_that_looked(client) for _ in range(5)]
        for stream in lingering:
            await let_stand(deaf, stream, 2, 2)
        deaf.do(_hint_and_answer_all)
        for number in (2, 3):
            for stream in lingering:
                batch = await stream.batch()
                assert (batch.grant_id, jobs_of(batch)) == (number, [])
                await stream.grant(number + 1, 2, wait=LONG)

    async def test_news_that_comes_while_the_first_in_line_looks_goes_to_the_next(
        self, client, deaf, monkeypatch
    ):
        claim, late = deaf.store.claim, a_job()

        async def claim_and_hear_news(*asked):
            claimed = await claim(*asked)
            if claimed and await deaf.store.submit([late]):
                deaf.server.dispatcher.hint()
            return claimed

        monkeypatch.setattr(deaf.store, "claim", claim_and_hear_news)
        first, second = client.stream(), client.stream()
        for stream in (first, second):
            await stream.hello()
            await let_stand(deaf, stream, 1, 2)
        job_id = await submit_to(deaf)
        assert jobs_of(await first.batch()) == [job_id]
        assert jobs_of(await second.batch()) == [str(late.id)]

    async def test_who_withdraws_is_offered_nothing_more(self, client, deaf, offers):
        stream = await one_that_looked(client)
        await let_stand(deaf, stream, 2, 2)
        await stream.call.write(pb.StreamJobsRequest(withdraw=pb.Withdraw()))
        assert jobs_of(await stream.batch()) == []
        other = await one_that_looked(client)
        await submit_to(deaf)
        assert (await other.read()).WhichOneof("kind") == "offer"
        assert offers == ["default"]

    async def test_an_offer_to_one_who_withdraws_goes_to_the_next(self, client, deaf):
        stream, other = await one_that_looked(client), await one_that_looked(client)
        await submit_to(deaf)
        assert (await stream.read()).WhichOneof("kind") == "offer"
        await stream.call.write(pb.StreamJobsRequest(withdraw=pb.Withdraw()))
        assert (await other.read()).WhichOneof("kind") == "offer"


async def _turns(server):
    """How many wait lists have given a turn."""
    return sum(wait_list._turn is not None for wait_list in server.dispatcher._wait_lists.values())


async def _hint_and_answer_all(server):
    server.dispatcher.hint()
    server.dispatcher.answer_all()


async def _away(*_):
    raise TransientStorageError("away")


async def _unanswered(server):
    return sum(stream.unanswered for stream in server.dispatcher.streams)


async def job(n: int) -> int:
    return n


def counted(monkeypatch, owner, name):
    """Return a list that grows with every call of a function."""
    calls: list[str] = []
    function = getattr(owner, name)

    def noted(*args):
        calls.append(name)
        return function(*args)

    monkeypatch.setattr(owner, name, noted)
    return calls


def lingers(far, worker):
    """Whether a worker may be handed jobs, or is about to let that happen."""
    return worker._claimer._was_busy or far.connection.here().streams_of(worker.id)[0]._asked


class TestWorkers:
    async def test_the_next_job_comes_without_an_offer(
        self, far, near, server, offers, monkeypatch
    ):
        monkeypatch.setattr(claiming, "LINGER", LONG)
        async with working(far, handler(job, lease=10 * LONG), poll=NEVER):
            await finished(near, await submit(far, "job", n=0))
            offered = len(offers)
            for n in range(5):
                await until(lambda: server.do(_standing) == 1)
                await finished(near, await submit(far, "job", n=n))
            assert len(offers) == offered

    async def test_one_that_lingered_in_vain_is_offered_jobs_and_given_none(
        self, far, near, offers, monkeypatch
    ):
        monkeypatch.setattr(claiming, "LINGER", 0.01)
        async with working(far, job, poll=NEVER) as it:
            await finished(near, await submit(far, "job", n=0))
            await until(lambda: not lingers(far, it.worker))
            before = len(offers)
            await finished(near, await submit(far, "job", n=1))
            assert len(offers) == before + 1

    async def test_one_that_lingered_in_vain_grants_nothing_more(self, far, near, monkeypatch):
        monkeypatch.setattr(claiming, "LINGER", 0.01)
        grants = counted(monkeypatch, claims, "grant_message")
        polls = counted(monkeypatch, claiming.Claimer, "_fill_slots")
        async with working(far, job, poll=0.01) as it:
            await finished(near, await submit(far, "job", n=0))
            await until(lambda: not lingers(far, it.worker))
            granted, polled = len(grants), len(polls)
            await until(lambda: len(polls) >= polled + 5)
            assert len(grants) == granted

    async def test_more_than_it_was_handed_is_asked_for_at_once(
        self, far, near, server, monkeypatch
    ):
        monkeypatch.setattr(claiming, "LINGER", LONG)
        async with working(far, handler(job, lease=10 * LONG), poll=NEVER, concurrency=50):
            await finished(near, await submit(far, "job", n=0))
            await until(lambda: server.do(_standing) == 1)
            looks = server.server.dispatcher.claims
            rows = await all_finished(near, await submit_many(far, "job", 40))
            assert server.server.dispatcher.claims - looks < 10
        assert {(each.status, each.attempts) for each in rows} == {(Status.SUCCEEDED, 1)}

    async def test_no_job_comes_ahead_of_its_slot(self, far, near, server, monkeypatch):
        monkeypatch.setattr(claiming, "LINGER", LONG)
        go = asyncio.Event()
        begun: list[int] = []

        async def waits(n: int) -> None:
            begun.append(n)
            await go.wait()

        async with working(far, handler(waits, lease=10 * LONG), concurrency=2, poll=NEVER):
            ids = [await submit(far, "waits", n=0)]
            await until(lambda: server.do(_standing) == 1)
            ids += await submit_many(far, "waits", 4)
            await until(lambda: len(begun) == 2)
            statuses = Counter([(await row(near, each)).status for each in ids])
            assert statuses == {Status.RUNNING: 2, Status.PENDING: 3}
            go.set()
            await all_finished(near, ids)

    async def test_a_worker_that_lingers_ends_when_it_is_told_to(self, far, near, monkeypatch):
        monkeypatch.setattr(claiming, "LINGER", LONG)
        async with working(far, handler(job, lease=10 * LONG), drain_timeout=LONG) as it:
            await finished(near, await submit(far, "job", n=0))
            await until(lambda: lingers(far, it.worker))
            began = time.monotonic()
            assert await it.stop() is Exit.DRAINED
            assert time.monotonic() - began < LONG / 2

    async def test_a_worker_that_lingers_goes_to_another_server_without_a_doubt(
        self, database, near, server, monkeypatch
    ):
        monkeypatch.setattr(claiming, "LINGER", LONG)
        with ServerThread(lambda: SqliteStore(database)) as other:
            far = RemoteStore(f"{server.url},{other.host}", RemoteOptions(**AT_ONCE_OPTIONS))
            async with working(far, handler(job, lease=10 * LONG), poll=NEVER) as it:
                await finished(near, await submit(near, "job", n=0))
                await until(lambda: lingers(far, it.worker))
                await asyncio.to_thread(server.drain)
                await finished(near, await submit(near, "job", n=1))
                assert far.doubtful_claims == 0
            await far.aclose()

    async def test_a_job_that_was_lost_on_its_way_is_found_and_run(self, server, near, monkeypatch):
        """The server has handed it out; the worker, which asked for nothing, never got it."""
        monkeypatch.setattr(claiming, "LINGER", LONG)
        quick = RemoteOptions(**AT_ONCE_OPTIONS | {"keepalive": KEEPALIVE})
        with SilentProxy(server.url) as proxy:
            far = RemoteStore(proxy.url, quick)
            async with working(far, handler(job, lease=10 * LONG)) as it:
                await finished(near, await submit(near, "job", n=0))
                await until(lambda: lingers(far, it.worker))
                proxy.silence()
                lost = await submit(server.store, "job", n=1)
                await in_status(near, lost, Status.RUNNING)
                done = await finished(near, lost)
            await far.aclose()
        assert (done.status, done.attempts) == (Status.SUCCEEDED, 1)

"""What a server claims for a worker while it makes it an offer: ready when the worker grants,
never more than it said it could take, and back in the queue when it does not come for it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from pulsed.errors import StorageError
from pulsed.job import Status
from pulsed.rpc import lanes
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.store.base import Listener
from pulsed.store.sqlite import SqliteStore
from tests.support import workers
from tests.support.jobs import EVERYTHING, a_job, row
from tests.support.raw_streams import raw_client
from tests.support.servers import ServerThread
from tests.support.waiting import until
from tests.support.workers import in_status

NEVER = 3600.0


class Gate:
    """Stands before the server's claims: counts them, holds them up, or breaks them."""

    def __init__(self, store):
        self._claim = store.claim
        self.begun = 0
        self.open = asyncio.Event()
        self.open.set()
        self.broken = False
        self.blind = 0
        """So many claims find nothing."""
        self.lost_answers = 0
        self._store = store

    async def claim(self, *args):
        self.begun += 1
        if self.broken:
            raise StorageError("on fire")
        self.blind -= 1
        claimed = [] if self.blind >= 0 else await self._claim(*args)
        await self.open.wait()
        self._store.doubtful_claims += self.lost_answers
        return claimed


class Silence(Listener):
    """Hears nothing."""

    healthy = True


class DeafStore(SqliteStore):
    """Nothing is heard from it: the test says when there is news."""

    @asynccontextmanager
    async def listen(self, queues, wake):
        yield Silence()


@pytest.fixture
def server(database):
    """A server that neither hears nor polls: what it claims, it claims for a reason."""
    with ServerThread(lambda: DeafStore(database), poll=NEVER) as server:
        yield server


@pytest.fixture
def gate(server, monkeypatch):
    gate = Gate(server.store)
    monkeypatch.setattr(server.store, "claim", gate.claim)
    return gate


@pytest.fixture
async def client(server):
    async with raw_client(server.host) as client:
        yield client


@pytest.fixture
def patient(monkeypatch):
    """No offer is withdrawn."""
    monkeypatch.setattr(lanes, "OFFER_PATIENCE", NEVER)


async def submit(near, server, count=1, **options):
    """Submit from another process, and see that the server hears of it; returns the ids."""
    jobs = [a_job(**options) for _ in range(count)]
    await near.submit(jobs)
    server.do(_hint)
    return [job.id for job in jobs]


async def _hint(server):
    server.dispatcher.hint()


async def idle(client, room, *, queues=("default",), may_hold=True):
    """A stream whose worker has found nothing, in any queue, and is waiting for offers."""
    stream = client.stream()
    await stream.hello(wants_offers=True)
    for number, queue in enumerate(queues):
        await stream.grant(number, room, queues=[queue], may_hold=may_hold)
        assert jobs_of(await stream.batch()) == []
    return stream


def jobs_of(batch):
    return [UUID(assignment.job_id) for assignment in batch.assignments]


async def offer_to(stream):
    """Read the next message, which is an offer; returns its queue."""
    message = await stream.read()
    assert message.WhichOneof("kind") == "offer", message
    return message.offer.queue


async def running(near, count):
    """Wait until so many jobs are leased."""

    async def are_running():
        return (await near.counts(EVERYTHING)).get(Status.RUNNING) == count

    await workers.until(are_running)


async def back(near, *ids):
    """Wait until jobs are in the queue as if nobody had claimed them."""
    for job_id in ids:
        assert (await in_status(near, job_id, Status.PENDING)).attempts == 0


async def test_a_grant_finds_the_jobs_claimed_already(client, near, gate, patient, server):
    stream = await idle(client, 3)
    (job_id,) = await submit(near, server)
    await in_status(near, job_id, Status.RUNNING)  # nobody has granted anything yet
    gate.broken = True
    await stream.grant(9, 3)
    batch = await stream.batch()
    assert (batch.grant_id, jobs_of(batch)) == (9, [job_id])
    (got,) = batch.assignments
    stored = await row(near, job_id)
    assert (stored.lease_token, stored.locked_by) == (got.lease_token, stream.worker_id)


async def test_a_grant_that_comes_during_the_claim_is_answered_by_it(
    client, near, gate, patient, server
):
    stream = await idle(client, 3)
    gate.open.clear()
    (job_id,) = await submit(near, server)
    await offer_to(stream)
    await in_status(near, job_id, Status.RUNNING)
    await stream.grant(9, 3)
    await until(lambda: _waiting_grants(server) == 1)
    assert [lane._timer for lane in server.server.dispatcher._lanes.values()] == [None]
    claims = gate.begun
    server.do(lambda _: _set(gate.open))
    assert jobs_of(await stream.batch()) == [job_id]
    assert gate.begun == claims


def _waiting_grants(server):
    streams = server.server.dispatcher.streams
    return sum(hold.grant is not None for each in streams for hold in each.holds.values())


async def _set(event):
    event.set()


async def test_nothing_is_claimed_for_a_worker_that_did_not_say_so(
    client, near, gate, patient, server
):
    stream = await idle(client, 3, may_hold=False)
    claims = gate.begun
    (job_id,) = await submit(near, server)
    await offer_to(stream)
    await client("GetTime", pb.GetTimeRequest())
    assert gate.begun == claims
    assert (await row(near, job_id)).status is Status.PENDING


async def test_no_more_is_held_than_the_worker_could_take(client, near, patient, server):
    stream = client.stream()
    await stream.hello(wants_offers=True)
    first = await submit(near, server, 2)
    await stream.grant(1, 5, may_hold=True)
    assert jobs_of(await stream.batch()) == first
    ids = await submit(near, server, 10)
    await offer_to(stream)
    await running(near, len(first) + 3)
    await stream.grant(2, 3)
    assert jobs_of(await stream.batch()) == ids[:3]
    assert (await near.counts(EVERYTHING))[Status.PENDING] == 7


async def test_queues_share_what_a_worker_could_take(client, near, server, patient):
    stream = await idle(client, 3, queues=("a", "b"))
    await submit(near, server, 2, queue="a")
    await offer_to(stream)
    await running(near, 2)
    await submit(near, server, 2, queue="b")
    await offer_to(stream)
    (held,) = [list(each.holds.values()) for each in server.server.dispatcher.streams]
    assert sum(hold.most for hold in held) <= 3


async def test_who_takes_fewer_than_are_held_leaves_the_others(client, near, patient, server):
    stream = await idle(client, 3)
    ids = await submit(near, server, 3)
    await running(near, 3)
    await stream.grant(9, 1)
    assert jobs_of(await stream.batch()) == ids[:1]
    await back(near, *ids[1:])


async def test_who_takes_more_than_are_held_is_offered_the_others_at_once(
    client, near, patient, server
):
    stream = await idle(client, 1)
    ids = await submit(near, server, 3)
    await running(near, 1)
    await offer_to(stream)
    await stream.grant(8, 3, may_hold=True)
    assert jobs_of(await stream.batch()) == ids[:1]
    await offer_to(stream)
    await stream.grant(9, 2)
    assert jobs_of(await stream.batch()) == ids[1:]


async def test_what_a_frozen_worker_does_not_take_goes_to_the_next(client, near, server):
    frozen, alive = await idle(client, 3), await idle(client, 3)
    (job_id,) = await submit(near, server)
    await offer_to(frozen)
    await offer_to(alive)
    await alive.grant(9, 3)
    got = jobs_of(await alive.batch())
    if not got:  # it was just being given back
        await offer_to(alive)
        await alive.grant(10, 3)
        got = jobs_of(await alive.batch())
    assert got == [job_id]
    stored = await row(near, job_id)
    assert (stored.locked_by, stored.attempts) == (alive.worker_id, 1)


@pytest.mark.parametrize("may_hold", [True, False], ids=["while it is claimed", "unclaimed"])
async def test_the_next_is_asked_before_anything_was_found(client, near, gate, server, may_hold):
    frozen = await idle(client, 3, may_hold=may_hold)
    alive = await idle(client, 3, may_hold=False)
    gate.open.clear()
    await submit(near, server)
    await offer_to(frozen)
    await offer_to(alive)
    server.do(lambda _: _set(gate.open))


async def test_a_grant_of_all_queues_finds_what_is_held_in_one(client, near, gate, patient, server):
    stream = await idle(client, 3, queues=("a", "b"))
    (job_id,) = await submit(near, server, queue="a")
    await in_status(near, job_id, Status.RUNNING)
    await stream.grant(9, 1, queues=["a", "b"])
    assert jobs_of(await stream.batch()) == [job_id]


async def test_what_nobody_takes_is_back_in_the_queue(client, near, server):
    stream = await idle(client, 3)
    ids = await submit(near, server, 2)
    await offer_to(stream)
    await back(near, *ids)
    await stream.grant(9, 3)  # late is not never
    assert jobs_of(await stream.batch()) == ids


async def test_a_claim_that_comes_back_too_late_is_given_back(client, near, gate, server):
    stream = await idle(client, 3)
    gate.open.clear()
    (job_id,) = await submit(near, server)
    await offer_to(stream)
    await in_status(near, job_id, Status.RUNNING)
    await until(lambda: not any(each.holds for each in server.server.dispatcher.streams))
    server.do(lambda _: _set(gate.open))
    await back(near, job_id)


@pytest.mark.parametrize("during", [True, False], ids=["during the claim", "after it"])
async def test_what_is_held_for_a_stream_that_ends_is_given_back(
    client, near, gate, patient, server, during
):
    stream = await idle(client, 3)
    if during:
        gate.open.clear()
    (job_id,) = await submit(near, server)
    await offer_to(stream)
    await in_status(near, job_id, Status.RUNNING)
    stream.call.cancel()
    await until(lambda: not server.server.dispatcher.streams)
    server.do(lambda _: _set(gate.open))
    await back(near, job_id)


async def test_what_is_held_is_given_back_when_the_worker_says_goodbye(
    client, near, patient, server
):
    stream = await idle(client, 3)
    (job_id,) = await submit(near, server)
    await offer_to(stream)
    await in_status(near, job_id, Status.RUNNING)
    await stream.call.done_writing()
    await back(near, job_id)


async def test_a_claim_that_fails_is_made_again_for_the_grant(client, near, gate, patient, server):
    stream = await idle(client, 3)
    gate.broken = True
    claims = gate.begun
    (job_id,) = await submit(near, server)
    await offer_to(stream)
    await until(lambda: gate.begun > claims)
    gate.broken = False
    await stream.grant(9, 3)
    assert jobs_of(await stream.batch()) == [job_id]


async def test_after_news_an_empty_hand_is_filled_again(client, near, gate, patient, server):
    """A hint may come before what it is about can be seen."""
    await idle(client, 3)
    gate.blind, claims = 1, gate.begun
    (job_id,) = await submit(near, server)
    await until(lambda: gate.begun > claims)
    server.do(_hint)
    await in_status(near, job_id, Status.RUNNING)


async def test_after_news_an_empty_hand_is_no_answer(client, near, gate, patient, server):
    stream = await idle(client, 3)
    gate.blind, claims = 1, gate.begun
    gate.open.clear()
    (job_id,) = await submit(near, server)
    await until(lambda: gate.begun > claims)
    await stream.grant(9, 3)
    await until(lambda: _waiting_grants(server) == 1)
    server.do(_hint)
    server.do(lambda _: _set(gate.open))
    batch = await stream.batch()
    assert (batch.grant_id, jobs_of(batch)) == (9, [job_id])


async def test_a_worker_that_will_look_for_lost_jobs_has_none_held(
    client, near, gate, patient, server
):
    """It would take what is held for lost, and give it back although it is about to get it."""
    stream = await idle(client, 3, queues=("a", "b"))
    (held,) = await submit(near, server, queue="a")
    await in_status(near, held, Status.RUNNING)
    gate.lost_answers = 1
    (job_id,) = await submit(near, server, queue="b")
    await stream.grant(8, 2, queues=["b"], may_hold=True)
    batch = await stream.batch()
    assert batch.lost_answers >= 1
    assert jobs_of(batch) == [job_id]
    await back(near, held)
    assert not any(each.holds or each.room for each in server.server.dispatcher.streams)

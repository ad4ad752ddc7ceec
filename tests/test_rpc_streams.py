"""StreamJobs as the contract says it, seen by a worker that knows nothing but the proto."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from uuid import UUID

import grpc
import pytest
from grpc import aio

from pulsed.errors import StorageError
from pulsed.model.job import Status
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import PART
from pulsed.rpc.server import job_stream as streams
from pulsed.rpc.server import wait_list
from pulsed.rpc.server.checks import items as checks
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import EVERYTHING, TOPIC, a_job, row, submitted
from tests.support.raw_streams import raw_client
from tests.support.servers import ServerThread
from tests.support.waiting import until
from tests.support.workers import in_status

NEVER = 3600.0


@pytest.fixture
def server(database):
    """A server that never polls: what arrives here arrived for a reason."""
    with ServerThread(lambda: SqliteStore(database), poll=NEVER) as server:
        yield server


async def submit(client, count=1, **options):
    """Submit through the server."""
    jobs = [a_job(**options) for _ in range(count)]
    messages = [pb.NewJob(id=str(job.id), topic=job.topic, payload=job.payload) for job in jobs]
    await client("SubmitJobs", pb.SubmitJobsRequest(jobs=messages))
    return [str(job.id) for job in jobs]


def jobs_of(batch):
    return [assignment.job_id for assignment in batch.assignments]


class TestGrants:
    async def test_a_grant_is_answered_by_a_batch_of_at_most_its_credits(self, client):
        ids = await submit(client, 5)
        stream = client.stream()
        await stream.hello()
        await stream.grant(7, 3)
        batch = await stream.batch()
        assert (batch.grant_id, jobs_of(batch)) == (7, ids[:3])
        await stream.grant(8, 3)
        assert jobs_of(await stream.batch()) == ids[3:]

    async def test_large_jobs_come_in_parts_and_none_is_lost(self, client, server):
        """The first can start while the next are on their way, however slow the line is."""
        jobs = [a_job(payload=json.dumps({"text": "x" * 900_000})) for _ in range(7)]
        for job in jobs:
            message = pb.NewJob(id=str(job.id), topic=job.topic, payload=job.payload)
            await client("SubmitJobs", pb.SubmitJobsRequest(jobs=[message]))
        stream = client.stream()
        await stream.hello(wants_offers=True)
        got: list[str] = []
        for number in range(4):
            await stream.grant(number, 10 - len(got))
            batch = await stream.batch()
            assert batch.ByteSize() <= PART.bytes
            assert batch.grant_id == number
            got += jobs_of(batch)
            if len(got) < len(jobs):
                assert (await stream.read()).offer.queue == "default"  # ask again, at once
            server.do(lambda each: each.dispatcher.given_back())
        assert Counter(got) == Counter(str(job.id) for job in jobs)
        claimed = await client("CountJobs", pb.CountJobsRequest())
        assert {each.status: each.jobs for each in claimed.counts if each.jobs} == {
            pb.JOB_STATUS_RUNNING: 7
        }

    async def test_an_assignment_has_all_that_a_worker_needs(self, client, near):
        job = pb.NewJob(
            id="0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69",
            topic=TOPIC,
            payload='{"to":"ada"}',
            timeout_seconds=12.5,
            lease_seconds=20,
            headers={"trace": "1"},
        )
        await client("SubmitJobs", pb.SubmitJobsRequest(jobs=[job]))
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 1)
        (got,) = (await stream.batch()).assignments
        assert (got.job_id, got.topic, got.queue, got.payload) == (
            job.id, TOPIC, "default", '{"to":"ada"}',
        )  # fmt: skip
        assert (got.attempt, got.max_attempts) == (1, 3)
        assert (got.lease_seconds, got.timeout_seconds) == (20, 12.5)
        assert dict(got.headers) == {"trace": "1"}
        stored = await row(near, UUID(job.id))
        assert (stored.lease_token, stored.locked_by) == (got.lease_token, stream.worker_id)

    async def test_nothing_to_do_is_said_at_once_without_a_wait(self, client):
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 3)
        batch = await stream.batch()
        assert (batch.grant_id, len(batch.assignments)) == (1, 0)

    async def test_nothing_to_do_is_said_when_the_wait_is_over(self, client):
        stream = client.stream()
        await stream.hello()
        began = time.monotonic()
        await stream.grant(1, 3, wait=0.2)
        assert len((await stream.batch()).assignments) == 0
        assert time.monotonic() - began >= 0.2

    async def test_a_submitted_job_reaches_a_waiting_worker_without_a_poll(self, client):
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 3, wait=30)
        await asyncio.sleep(0.05)
        ids = await submit(client)
        batch = await stream.batch()
        assert (batch.grant_id, jobs_of(batch)) == (1, ids)

    async def test_so_does_one_that_another_process_submitted(self, client, near):
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 3, wait=30)
        await asyncio.sleep(0.05)
        job_id = await submitted(near)
        assert jobs_of(await stream.batch()) == [str(job_id)]

    async def test_one_job_goes_to_one_of_the_waiting_and_costs_one_claim(self, client, server):
        waiting = [client.stream() for _ in range(20)]
        for stream in waiting:
            await stream.hello()
            await stream.grant(1, 5, wait=2)
        await until(lambda: server.server.dispatcher.claims >= 20)
        before = server.server.dispatcher.claims
        await submit(client)
        batches = [await stream.batch() for stream in waiting]
        assert sorted(len(batch.assignments) for batch in batches) == [0] * 19 + [1]
        # One for the job; the change of the file during the claim is a notification or two more.
        assert server.server.dispatcher.claims - before <= 5

    async def test_streams_are_served_in_turn(self, client):
        greedy, modest = client.stream(), client.stream()
        for stream in (greedy, modest):
            await stream.hello()
        got: Counter[str] = Counter()

        async def work(name, stream):
            for number in range(10):
                await stream.grant(number, 1, wait=5)
                got[name] += len((await stream.batch()).assignments)

        working = asyncio.gather(work("greedy", greedy), work("modest", modest))
        for _ in range(20):
            await submit(client)
        await working
        assert got == {"greedy": 10, "modest": 10}

    async def test_other_topics_and_queues_are_left_alone(self, client, near):
        await submitted(near, topic="other")
        await submitted(near, queue="elsewhere")
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 5)
        assert len((await stream.batch()).assignments) == 0
        await stream.grant(2, 5, queues=["elsewhere"])
        assert len((await stream.batch()).assignments) == 1

    async def test_when_our_side_is_closed_the_stream_ends_after_the_last_answer(self, client):
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 1, wait=0.1)
        await stream.call.done_writing()
        await stream.batch()
        assert await stream.read() is aio.EOF
        assert await stream.call.code() is grpc.StatusCode.OK

    async def test_a_grant_that_is_withdrawn_is_answered_at_once(self, client, monkeypatch):
        monkeypatch.setattr(checks, "LONGEST_WAIT", NEVER)
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 1, wait=NEVER)
        await stream.call.write(pb.StreamJobsRequest(withdraw=pb.Withdraw()))
        await stream.call.done_writing()
        assert len((await stream.batch()).assignments) == 0
        assert await stream.read() is aio.EOF


class TestOffers:
    async def test_a_worker_that_wants_offers_gets_one_and_no_job(self, client, near):
        stream = client.stream()
        await stream.hello(wants_offers=True)
        await stream.grant(1, 3)
        assert len((await stream.batch()).assignments) == 0
        (job_id,) = await submit(client)
        message = await stream.read()
        assert (message.WhichOneof("kind"), message.offer.queue) == ("offer", "default")
        assert (await row(near, UUID(job_id))).status is Status.PENDING
        await stream.grant(2, 3)
        assert jobs_of(await stream.batch()) == [job_id]

    async def test_an_offer_that_is_not_taken_goes_to_the_next(self, client):
        frozen, alive = client.stream(), client.stream()
        for stream in (frozen, alive):
            await stream.hello(wants_offers=True)
            await stream.grant(1, 3)
            await stream.batch()
        (job_id,) = await submit(client)
        assert (await frozen.read()).offer.queue == "default"
        assert (await alive.read()).offer.queue == "default"
        await alive.grant(2, 3)
        assert jobs_of(await alive.batch()) == [job_id]

    async def test_who_took_all_it_could_leaves_the_rest_to_the_next(self, client, monkeypatch):
        monkeypatch.setattr(wait_list, "OFFER_TIMEOUT", NEVER)
        first, second = client.stream(), client.stream()
        for stream in (first, second):
            await stream.hello(wants_offers=True)
            await stream.grant(1, 1)
            await stream.batch()
        ids = await submit(client, 2)
        assert (await first.read()).WhichOneof("kind") == "offer"
        await first.grant(2, 1)
        assert jobs_of(await first.batch()) == ids[:1]
        assert (await second.read()).WhichOneof("kind") == "offer"

    async def test_one_that_left_is_offered_nothing(self, client, monkeypatch):
        monkeypatch.setattr(wait_list, "OFFER_TIMEOUT", NEVER)
        gone, there = client.stream(), client.stream()
        for stream in (gone, there):
            await stream.hello(wants_offers=True)
            await stream.grant(1, 1)
            await stream.batch()
        await submit(client)
        await gone.read()
        gone.call.cancel()
        assert (await there.read()).WhichOneof("kind") == "offer"


class TestEnds:
    async def test_what_was_claimed_for_a_stream_that_ended_is_given_back(
        self, client, near, server, monkeypatch
    ):
        job_id = await submitted(near, max_attempts=1)
        claim = server.store.claim
        claimed, go = asyncio.Event(), asyncio.Event()

        async def slow(*args):
            found = await claim(*args)
            claimed.set()
            await go.wait()
            return found

        monkeypatch.setattr(server.store, "claim", slow)
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 1)
        await until(claimed.is_set)
        assert (await row(near, job_id)).status is Status.RUNNING
        stream.call.cancel()
        await until(lambda: not server.server.dispatcher.streams)
        server.do(lambda _: _set(go))

        server.do(lambda it: it.dispatcher.given_back())
        found = await in_status(near, job_id, Status.PENDING)
        assert found.attempts == 0

    async def test_so_is_what_was_claimed_before_a_claim_from_the_next_queue_failed(
        self, client, near, server, monkeypatch
    ):
        job_id = await submitted(near, queue="first", max_attempts=1)
        claim = server.store.claim
        claimed, go = asyncio.Event(), asyncio.Event()

        async def fail_at_the_second(worker_id, queue, *args):
            if queue == "first":
                return await claim(worker_id, queue, *args)
            claimed.set()
            await go.wait()
            raise StorageError("on fire")

        monkeypatch.setattr(server.store, "claim", fail_at_the_second)
        stream = client.stream()
        await stream.hello(queues=("first", "second"))
        await stream.grant(1, 2)
        await until(claimed.is_set)
        assert (await row(near, job_id)).status is Status.RUNNING
        stream.call.cancel()
        await until(lambda: not server.server.dispatcher.streams)
        server.do(lambda _: _set(go))
        found = await in_status(near, job_id, Status.PENDING)
        assert found.attempts == 0

    async def test_a_worker_that_does_not_read_is_dropped_and_its_jobs_are_given_back(
        self, client, near, server, monkeypatch
    ):
        monkeypatch.setattr(streams, "SLOW_READER", 0.3)
        claim, claimed = server.store.claim, []

        async def counted(*args):
            claimed.extend(found := await claim(*args))
            return found

        monkeypatch.setattr(server.store, "claim", counted)
        payload = '{"text":"%s"}' % ("x" * 500_000)
        await near.submit([a_job(payload=payload) for _ in range(40)])
        stream = client.stream()
        await stream.hello()
        for number in range(40):
            await stream.grant(number, 1)
        await until(lambda: server.server.dispatcher.streams)
        answers = 0
        while server.server.dispatcher.streams:  # it is not read; others are served
            await client("GetTime", pb.GetTimeRequest())
            answers += 1
        assert answers > 1
        server.do(lambda it: it.dispatcher.given_back())
        counts = await near.counts(EVERYTHING)
        # What was sent may have arrived, as far as the server knows; all the rest is back.
        assert counts[Status.RUNNING] < len(claimed)
        assert counts[Status.PENDING] == 40 - counts[Status.RUNNING]

    async def test_a_database_in_trouble_ends_the_stream_as_unavailable(
        self, client, server, monkeypatch
    ):
        async def broken(*args):
            raise StorageError("on fire")

        monkeypatch.setattr(server.store, "claim", broken)
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 1)
        with pytest.raises(aio.AioRpcError, match="on fire"):
            await stream.read()


class TestRefusals:
    @pytest.mark.parametrize(
        "message, problem",
        [
            (pb.StreamJobsRequest(grant=pb.Grant(credits=1)), "must be a Hello"),
            (pb.StreamJobsRequest(hello=pb.Hello(worker_id="me")), "not a UUID"),
        ],
    )
    async def test_a_stream_begins_with_a_proper_hello(self, client, message, problem):
        stream = client.stream()
        await stream.call.write(message)
        with pytest.raises(aio.AioRpcError, match=problem) as refused:
            await stream.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    async def test_a_grant_needs_credits(self, client):
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 0)
        with pytest.raises(aio.AioRpcError, match="at least one credit"):
            await stream.read()

    async def test_there_is_a_bound_on_streams(self, database):
        with ServerThread(lambda: SqliteStore(database), most_streams=1) as small:
            async with raw_client(small.host) as first, raw_client(small.host) as second:
                one = first.stream()
                await one.hello()
                await one.grant(1, 1)
                await one.batch()
                other = second.stream()
                assert await other.call.code() is grpc.StatusCode.UNAVAILABLE
                assert "streams are open already" in await other.call.details()

    async def test_a_message_that_is_too_large_is_refused_and_the_server_goes_on(self, client):
        huge = pb.SubmitJobsRequest(
            jobs=[pb.NewJob(topic=TOPIC, payload="x" * (100 * 1024 * 1024))]
        )
        with pytest.raises(aio.AioRpcError) as refused:
            await client("SubmitJobs", huge)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await client("GetTime", pb.GetTimeRequest())


async def _set(event):
    event.set()


class TestReports:
    async def test_a_stale_lease_is_a_failed_precondition(self, client):
        (job_id,) = await submit(client)
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 1)
        (got,) = (await stream.batch()).assignments
        lease = pb.Lease(
            job_id=job_id, lease_token=got.lease_token, worker_id=str(stream.worker_id)
        )
        await client("ReportResult", pb.Report(lease=lease, succeeded=pb.Succeeded(result="1")))
        lease.lease_token -= 1
        with pytest.raises(aio.AioRpcError, match="another run decides") as refused:
            await client("ReportResult", pb.Report(lease=lease, failed=pb.Failed(error="late")))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    async def test_each_report_of_a_batch_has_its_answer(self, client, near):
        await submit(client, 2)
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 2)
        leases = [
            pb.Lease(
                job_id=got.job_id, lease_token=got.lease_token, worker_id=str(stream.worker_id)
            )
            for got in (await stream.batch()).assignments
        ]
        leases[0].lease_token += 1
        reports = [pb.Report(lease=lease, succeeded=pb.Succeeded()) for lease in leases]
        answer = await client("ReportResults", pb.ReportResultsRequest(reports=reports))
        assert list(answer.accepted) == [False, True]

    async def test_a_result_that_is_not_json_ends_the_job_and_says_why(self, client, near):
        (job_id,) = await submit(client)
        stream = client.stream()
        await stream.hello()
        await stream.grant(1, 1)
        (got,) = (await stream.batch()).assignments
        lease = pb.Lease(
            job_id=job_id, lease_token=got.lease_token, worker_id=str(stream.worker_id)
        )
        report = pb.Report(lease=lease, succeeded=pb.Succeeded(result="not json"))
        await client("ReportResults", pb.ReportResultsRequest(reports=[report]))
        stored = await row(near, UUID(job_id))
        assert stored.status is Status.DEAD_LETTERED
        assert "not JSON" in str(stored.last_error)

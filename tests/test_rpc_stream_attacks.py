"""Streams of jobs under attack: slow, greedy, silent and revoked workers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID, uuid4

import pytest
from grpc import aio

from pulsed.model.job import TopicPolicy
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.messages.jobs import lease_message
from pulsed.rpc.server import admission
from pulsed.rpc.server import job_stream as streams
from pulsed.rpc.server.checks import items as checks
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import TOPIC, row, running, submitted
from tests.support.raw_streams import raw_client
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.tokens import given
from tests.support.waiting import until


class TestStreams:
    async def test_a_revoked_token_gets_no_more_jobs_on_its_open_stream(self, guarded, keys):
        near = SqliteStore(guarded.store.path)
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            await stream.hello()
            await stream.grant(1, 1)
            await stream.batch()
            await stream.grant(2, 1, wait=30)
            assert run_blocking(tokens.remove(near, "work"))
            guarded.do(refreshed)
            with pytest.raises(aio.AioRpcError, match="revoked, or changed"):
                await stream.read()
            job_id = await submitted(near)
            assert (await row(near, job_id)).attempts == 0

    async def test_nor_at_its_next_grant(self, guarded, keys):
        """Before the next check of the streams, too."""
        near = SqliteStore(guarded.store.path)
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            await stream.hello()
            await stream.grant(1, 1)
            await stream.batch()
            assert run_blocking(tokens.remove(near, "work"))
            guarded.do(lambda server: server._authenticator.refresh())
            await stream.grant(2, 1)
            with pytest.raises(aio.AioRpcError, match="revoked, or changed"):
                await stream.read()

    async def test_another_token_of_the_same_name_is_another_caller(self, guarded, keys):
        near = SqliteStore(guarded.store.path)
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            await stream.hello()
            await stream.grant(1, 1)
            await stream.batch()
            assert run_blocking(tokens.remove(near, "work"))
            given(near, "work", "work")
            guarded.do(refreshed)
            with pytest.raises(aio.AioRpcError, match="revoked, or changed"):
                await stream.read()

    async def test_a_lease_of_a_year_is_not_given(self, guarded, keys):
        near = SqliteStore(guarded.store.path)
        job_id = await submitted(near)
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            topic = pb.Topic(name=TOPIC, lease_seconds=365 * 86_400)
            hello = pb.Hello(worker_id=str(uuid4()), queues=["default"], topics=[topic])
            await stream.call.write(pb.StreamJobsRequest(hello=hello))
            await stream.grant(1, 1)
            (got,) = (await stream.batch()).assignments
        assert got.lease_seconds == checks.LONGEST_LEASE
        assert (await row(near, job_id)).lease_seconds == checks.LONGEST_LEASE

    async def test_nor_to_a_job_that_asks_for_it(self, guarded, keys):
        """However it comes: enqueued, as a child, by a schedule or a fire."""
        near = SqliteStore(guarded.store.path)
        parent = (await running(near)).lease
        year = 365 * 86_400.0
        job = pb.NewJob(id=str(uuid4()), topic=TOPIC, payload="{}", lease_seconds=year)
        child = pb.NewJob(id=str(uuid4()), parent_step="fan-out 1", lease_seconds=year)
        child.MergeFrom(pb.NewJob(topic=TOPIC, payload="{}"))
        spec = pb.ScheduleSpec(topic=TOPIC, payload="{}", cron="0 9 * * *", lease_seconds=year)
        async with raw_client(guarded.host, keys["produce"]) as client:
            await client("SubmitJobs", pb.SubmitJobsRequest(jobs=[job]))
        async with raw_client(guarded.host, keys["work"]) as client:
            lease = lease_message(parent)
            await client("FanOut", pb.FanOutRequest(lease=lease, jobs=[child]))
        async with raw_client(guarded.host, keys["admin"]) as client:
            put = await client("PutSchedule", pb.PutScheduleRequest(name="put", spec=spec))
            declared = pb.SyncSchedulesRequest.Declared(name="declared", spec=spec)
            await client("SyncSchedules", pb.SyncSchedulesRequest(schedules=[declared]))
            again = await client("SyncSchedules", pb.SyncSchedulesRequest(schedules=[declared]))
            assert list(again.unchanged) == ["declared"]
            fired = pb.NewJob(id=str(uuid4()))
            fired.MergeFrom(pb.NewJob(topic=TOPIC, payload="{}", lease_seconds=year))
            fire = pb.FireSchedulesRequest.Fire(schedule=put.schedule, jobs=[fired])
            fire.overlap = pb.OVERLAP_ALLOW
            await client("FireSchedules", pb.FireSchedulesRequest(fires=[fire]))
        ids = [UUID(each.id) for each in (job, child, fired)]
        leases = [each.lease_seconds for each in (await near.get(ids)).values()]
        leases += [each.spec.lease for each in await near.schedules.list_page()]
        assert leases == [checks.LONGEST_LEASE] * 5

    async def test_who_says_no_hello_is_not_waited_for(self, guarded, keys, monkeypatch):
        monkeypatch.setattr(streams, "HELLO_WITHIN", 0.05)
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            with pytest.raises(aio.AioRpcError, match="no Hello"):
                await stream.read()
        assert guarded.do(streams_open) == 0

    async def test_streams_of_one_caller_are_bounded(self, database):
        store = SqliteStore(database)
        mine, other = given(store, "mine", "work"), given(store, "other", "work")
        options: Any = {"authenticator": FreshAuthenticator(store), "most_streams_of_one": 3}
        with ServerThread(lambda: store, **options) as server:
            async with raw_client(server.host, mine) as client:
                # A call that nothing refers to is cancelled.
                held = [client.stream() for _ in range(3)]
                for stream in held:
                    await stream.call.initial_metadata()
                with pytest.raises(aio.AioRpcError, match="3 streams of mine are open"):
                    await client.stream().read()
                async with raw_client(server.host, other) as others:
                    stream = others.stream()
                    await stream.hello()
                    await stream.grant(1, 1)
                    await stream.batch()

    async def test_what_streams_say_of_their_topics_is_bounded_by_bytes(self):
        """Those of a fleet say the same, which is kept once."""
        account = admission.Account(most_bytes=1_000)
        others = (TopicPolicy(topic="others"),)
        with contextlib.ExitStack() as held:
            said = ((TopicPolicy(topic="mine"),) for _ in range(100))
            kept = [held.enter_context(account.topics(each, 600)) for each in said]
            assert len({id(each) for each in kept}) == 1
            assert account.topic_bytes == 600
            with (
                pytest.raises(Refusal, match="different topics of 600 bytes"),
                account.topics(others, 600),
            ):
                pass
        assert account.topic_bytes == 0
        with account.topics(others, 5_000):  # alone it may be as large as a Hello may be
            pass

    @pytest.mark.parametrize(
        "hello, why",
        [
            (pb.Hello(queues=[f"q{n}" for n in range(201)]), "201 queues"),
            (pb.Hello(topics=[pb.Topic(name=f"t{n}") for n in range(5_001)]), "topics are too"),
            (pb.Hello(worker_id="x" * 2_000_000), "at most 1,048,576 bytes"),
        ],
        ids=["queues", "topics", "bytes"],
    )
    async def test_a_hello_may_not_ask_for_everything(self, guarded, keys, hello, why):
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            with contextlib.suppress(asyncio.InvalidStateError):
                await stream.call.write(pb.StreamJobsRequest(hello=hello))
            with pytest.raises(aio.AioRpcError, match=why):
                await stream.read()

    async def test_queues_named_in_grants_are_bounded_as_well(self, guarded, keys):
        async with raw_client(guarded.host, keys["work"]) as client:
            stream = client.stream()
            await stream.hello(queues=[])
            for part in range(5):
                await stream.grant(part, 1, queues=[f"q{part}-{n}" for n in range(40)])
                await stream.batch()
            await stream.grant(9, 1, queues=["one-more"])
            with pytest.raises(aio.AioRpcError, match="at most 200 queues"):
                await stream.read()


async def refreshed(server):
    await server._authenticator.refresh()
    server._end_revoked()


async def streams_open(server):
    await until(lambda: not server._streams)
    return server._admission.streams

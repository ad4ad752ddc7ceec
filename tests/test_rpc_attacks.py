"""Callers that mean no good: what they send is not read, not parsed, or costs only themselves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc import aio

from pulsed.errors import InvalidPayload, PulsedError, TransientStorageError
from pulsed.model.job import Status, TopicPolicy
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import LARGEST_BATCH, METHODS
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.messages.jobs import lease_message
from pulsed.rpc.server import admission, authentication
from pulsed.rpc.server import job_stream as streams
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.authentication import TokenAuthenticator
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.rpc.server.json_text import checked_json
from pulsed.rpc.server.refusal_log import RefusalLog
from pulsed.rpc.server.wait_list import Grant, Stream
from pulsed.rpc.server.weight import check_weight
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from tests.support.jobs import TOPIC, a_job, row, running, submitted
from tests.support.raw_streams import RawClient, raw_client
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.waiting import until

Code = grpc.StatusCode
NOT_A_MESSAGE = b"\xff\xff\xff"
BOMB = b"\n\0" * 1_000_000
"""A million empty items, in whatever request."""


def given(store: SqliteStore, name: str, *roles: str, **limits: Any) -> str:
    """Make a token; returns its secret."""
    secret = tokens.new_secret()
    made = Token(name, tokens.digest_of(secret), roles, limits.get("topics"), limits.get("queues"))
    assert run_blocking(tokens.add(store, made))
    return secret


async def sent(client: RawClient, method: str, data: bytes, **options: Any) -> aio.AioRpcError:
    """Send bytes as the request of a method; returns the refusal."""
    call = client.channel.unary_unary(METHODS[method].path)
    with pytest.raises(aio.AioRpcError) as refused:
        await call(data, metadata=client._metadata, **options)
    return refused.value


@pytest.fixture
def guarded(database):
    """A server that wants tokens."""
    store = SqliteStore(database)
    with ServerThread(lambda: store, authenticator=FreshAuthenticator(store)) as server:
        yield server


@pytest.fixture
def keys(database):
    """Secrets of a producer and of a worker."""
    store = SqliteStore(database)
    return {role: given(store, role, role) for role in ("produce", "work", "admin")}


# -- requests -------------------------------------------------------------------------------------


class TestRequests:
    @pytest.mark.parametrize("method", sorted(METHODS))
    async def test_what_a_stranger_sends_is_not_parsed(self, guarded, method):
        async with raw_client(guarded.host) as client:
            assert (await sent(client, method, NOT_A_MESSAGE)).code() is Code.UNAUTHENTICATED

    async def test_nor_what_somebody_sends_who_may_not_call_that(self, guarded, keys):
        async with raw_client(guarded.host, keys["work"]) as client:
            refused = await sent(client, "SubmitJobs", NOT_A_MESSAGE)
            assert refused.code() is Code.PERMISSION_DENIED

    async def test_what_is_no_request_is_refused(self, guarded, keys):
        async with raw_client(guarded.host, keys["produce"]) as client:
            refused = await sent(client, "SubmitJobs", NOT_A_MESSAGE)
            assert refused.code() is Code.INVALID_ARGUMENT
            assert "SubmitJobsRequest" in (refused.details() or "")

    async def test_nothing_is_decompressed(self, guarded, keys):
        for secret in (None, keys["produce"]):
            async with raw_client(guarded.host, secret) as client:
                refused = await sent(client, "SubmitJobs", BOMB, compression=grpc.Compression.Gzip)
                assert refused.code() in (Code.UNIMPLEMENTED, Code.UNAUTHENTICATED)

    async def test_a_request_of_countless_items_is_not_parsed(self, guarded, keys):
        async with raw_client(guarded.host, keys["produce"]) as client:
            refused = await sent(client, "SubmitJobs", BOMB)
            assert refused.code() is Code.RESOURCE_EXHAUSTED
            assert "too many fields for its size" in (refused.details() or "")

    async def test_a_caller_has_few_requests_in_memory_at_a_time(self, guarded, keys, monkeypatch):
        """The others of the same caller are not received; those of other callers are."""
        reading = 0
        most = 0
        read = admission.Account.read

        async def slow_read(self, context):
            nonlocal reading, most
            async with self._reading:
                reading += 1
                most = max(most, reading)
                await asyncio.sleep(0.01)
                reading -= 1
            return await read(self, context)

        monkeypatch.setattr(admission.Account, "read", slow_read)
        async with raw_client(guarded.host, keys["produce"]) as client:
            request = pb.GetTimeRequest()
            await asyncio.gather(*(client("GetTime", request) for _ in range(40)))
        assert most == admission.READS_AT_ONCE

    async def test_the_bytes_of_a_callers_requests_are_bounded(self):
        account = admission.Account(most_bytes=1_000_000)
        with account.holding(900_000):
            with (
                pytest.raises(Refusal, match="900,000 bytes are under way"),
                account.holding(200_000),
            ):
                pass
            with account.holding(10_000):  # a heartbeat gets through
                assert account.bytes == 910_000
        with account.holding(5_000_000):  # alone it may be as large as a message may be
            pass
        assert account.bytes == 0

    async def test_a_caller_rests_after_a_large_request_that_was_refused(self):
        account = admission.Account(10**9)
        for error, size, rests in (
            (InvalidPayload("no"), 1_000, False),  # it cost nothing
            (TransientStorageError("away"), 10**6, False),  # not the caller's doing
            (InvalidPayload("no"), 10**6, True),
        ):
            with contextlib.suppress(PulsedError), account.holding(size):
                raise error
            assert (account._rest() > 0) is rests
            assert account.is_idle is not rests
        for _ in range(100):
            account.refused(10**6)
        assert account._rest() <= admission.LONGEST_REST

    async def test_a_request_that_does_not_arrive_is_given_up(self, guarded, keys, monkeypatch):
        monkeypatch.setattr(admission, "READ_WITHIN", 0.05)
        async with raw_client(guarded.host, keys["produce"]) as client:
            call = client.channel.stream_unary(METHODS["GetTime"].path)
            call = call(metadata=client._metadata)
            with pytest.raises(aio.AioRpcError, match="did not arrive"):
                await call


def repeated_fields() -> Iterator[tuple[str, str, bytes]]:
    """Every repeated field of every request, at any depth, as two megabytes of empty items."""

    def below(descriptor: Descriptor, path: tuple[FieldDescriptor, ...]) -> Iterator[Any]:
        for field in descriptor.fields:
            if field.is_repeated:
                yield (*path, field)
            if field.type == FieldDescriptor.TYPE_MESSAGE and field not in path:
                yield from below(field.message_type, (*path, field))

    for name, method in sorted(METHODS.items()):
        for path in below(method.request.DESCRIPTOR, ()):
            *outer, last = path
            item = bytes([(last.number << 3 & 0x7F) | 2 | 0x80, last.number >> 4, 0])
            data = item * 700_000
            for field in reversed(outer):
                data = _tag(field) + _number(len(data)) + data
            yield f"{name}.{'.'.join(field.name for field in path)}", name, data


def _tag(field: FieldDescriptor) -> bytes:
    return _number(field.number << 3 | 2)


def _number(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


FLOODS = list(repeated_fields())


@pytest.mark.parametrize("method, data", [case[1:] for case in FLOODS], ids=[c[0] for c in FLOODS])
def test_no_field_of_any_request_can_be_repeated_without_end(method, data):
    with pytest.raises(Refusal) as refused:
        check_weight(METHODS[method].request, data, LARGEST_BATCH)
    assert refused.value.code is Code.RESOURCE_EXHAUSTED


class TestWeight:
    def test_the_largest_requests_that_make_sense_pass(self):
        tagged = a_job()
        job = pb.NewJob(id=str(tagged.id), topic="t", payload="{}", tags=["abcd"] * 32)
        leases = [pb.Lease(job_id=str(uuid4()), lease_token=1, worker_id=str(uuid4()))] * 50_000
        for request in (
            pb.SubmitJobsRequest(jobs=[job] * 10_000),
            pb.SubmitJobsRequest(jobs=[pb.NewJob(payload="x" * 1_000_000)] * 30),
            pb.HeartbeatRequest(leases=leases),
        ):
            check_weight(type(request), request.SerializeToString(), LARGEST_BATCH)

    def test_one_item_too_many_is_refused(self):
        job = pb.NewJob(id=str(uuid4()))
        data = pb.SubmitJobsRequest(jobs=[job] * 3_001).SerializeToString()
        check_weight(pb.SubmitJobsRequest, data, 3_001)
        with pytest.raises(Refusal, match="more than 3,000 items"):
            check_weight(pb.SubmitJobsRequest, data, 3_000)

    @pytest.mark.parametrize("cut", [1, 7, 10_000])
    def test_a_request_that_ends_too_early_is_refused(self, cut):
        data = pb.SubmitJobsRequest(jobs=[pb.NewJob(payload="x" * 100_000)]).SerializeToString()
        with pytest.raises(Refusal, match="in the middle of a field"):
            check_weight(pb.SubmitJobsRequest, data[:-cut], LARGEST_BATCH)

    @pytest.mark.parametrize("field", [b"\x08", b"\xf8\x7f", b"\x78"])
    def test_fields_that_nobody_knows_are_counted_too(self, field):
        with pytest.raises(Refusal, match="too many fields"):
            check_weight(pb.SubmitJobsRequest, (field + b"\0") * 100_000, LARGEST_BATCH)


# -- JSON -----------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """Return the processor time that a check takes, undisturbed."""

    def once() -> float:
        began = time.thread_time()
        with contextlib.suppress(InvalidPayload):
            checked_json("It", text)
        return time.thread_time() - began

    return min(once() for _ in range(5))


@pytest.mark.parametrize(
    "part",
    ['"\\"', '"a', '\\"', '"\\\\', "[", '{"', '["', '[1e400,"', "1", '"\\u0000'],
    ids=repr,
)
def test_hostile_json_takes_a_time_that_grows_with_its_length(part):
    """Eight times the text takes about eight times as long, and not sixty-four times."""
    for start in ('"', "[" * 101 + '"'):
        short, long = (start + part * (size // len(part)) for size in (2_000, 16_000))
        assert seconds(long) < 24 * max(seconds(short), 1e-4)


class TestJson:
    @pytest.mark.parametrize("text", ["1e999", "[1,-1e400]", "1" + "0" * 400 + ".0", '"\\ud800"'])
    def test_what_no_worker_could_decode_is_refused(self, text):
        with pytest.raises(InvalidPayload, match="not JSON"):
            checked_json("It", text)

    @pytest.mark.parametrize("text", ['"1e999"', "1e100", "1E-999", '["\\\\u0000", 1e5]'])
    def test_what_only_looks_like_it_is_not(self, text):
        checked_json("It", text)

    @pytest.mark.parametrize("padding", [0, 100_000])
    def test_nul_is_refused_in_small_and_large_texts(self, padding):
        text = '{"a": ["' + "x" * padding + '", {"b": "\\u0000"}]}'
        with pytest.raises(InvalidPayload, match="a NUL character"):
            checked_json("It", text)

    def test_depth_is_counted_outside_of_strings(self):
        checked_json("It", "[" * 100 + '"' + "[" * 200 + '"' + "]" * 100)
        with pytest.raises(InvalidPayload, match="nested more than 100"):
            checked_json("It", "[" * 101 + "]" * 101)
        checked_json("It", "[" + ",".join(["[" * 99 + "]" * 99] * 300) + "]")

    @pytest.mark.parametrize(
        "text, what", [("[]", "a list"), ("1", "a number"), (' "x"', "a string")]
    )
    def test_arguments_are_an_object(self, text, what):
        with pytest.raises(InvalidPayload, match=f"named arguments, not {what}"):
            checked_json("It", text, is_object=True)


# -- streams --------------------------------------------------------------------------------------


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


# -- turns ----------------------------------------------------------------------------------------


class CountingStore:
    """Has no jobs, and records which queues were claimed from."""

    doubtful_claims = 0

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def claim(self, worker_id, queue, topics, limit):
        self.asked.append(queue)
        await asyncio.sleep(0)
        return []


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


# -- refusals -------------------------------------------------------------------------------------


class TestRefusals:
    async def test_refused_calls_are_counted_and_some_are_logged(self, guarded, keys, caplog):
        async with raw_client(guarded.host) as stranger:
            for _ in range(20):
                await sent(stranger, "GetTime", b"")
        async with raw_client(guarded.host, keys["work"]) as worker:
            await sent(worker, "SubmitJobs", b"")
            told = await worker("GetServer", pb.GetServerRequest())
        assert told.refused_calls == 21
        lines = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
        assert len(lines) == 2
        assert "GetTime of ipv4:127.0.0.1 (UNAUTHENTICATED)" in lines[0]
        assert "SubmitJobs of work (PERMISSION_DENIED)" in lines[1]

    def test_lines_that_were_left_out_are_counted_in_the_next(self, caplog):
        now = [0.0]
        refusals = RefusalLog(clock=lambda: now[0])
        for _ in range(5):
            refusals.note(Code.UNAUTHENTICATED, "who?", "GetTime", None, "ipv4:10.0.0.1:77")
        now[0] += 11
        refusals.note(Code.UNAUTHENTICATED, "who?", "GetTime", None, "ipv4:10.0.0.1:78")
        assert "and 4 more since" in caplog.messages[-1]

    def test_callers_without_end_are_not_remembered(self):
        refusals = RefusalLog()
        for number in range(3_000):
            peer = f"ipv6:[{number:x}::1]:5"
            refusals.note(Code.UNAUTHENTICATED, "who?", "GetTime", None, peer)
        assert refusals.total == 3_000
        assert len(refusals._told) <= 1_001


# -- authentication -------------------------------------------------------------------------------


class Away(SqliteStore):
    """A database that is down temporarily."""

    away = False
    reads = 0

    async def run(self, verb: Any, **options: Any) -> Any:
        self.reads += 1
        if self.away:
            raise TransientStorageError("cannot connect to db.internal:5432")
        return await super().run(verb, **options)


class Context:
    """The part of a call that an authenticator reads."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret

    def invocation_metadata(self) -> Any:
        return (("authorization", f"Bearer {self._secret}"),) if self._secret else ()

    def auth_context(self) -> dict[str, Any]:
        return {}


class TestAuthenticator:
    @pytest.fixture
    def away(self, database):
        return Away(database)

    @pytest.fixture
    def now(self):
        return [1_000.0]

    @pytest.fixture
    def authenticator(self, away, now):
        return TokenAuthenticator(away, known_for=60.0, clock=lambda: now[0])

    async def test_those_who_are_known_need_no_database(self, away, authenticator, now):
        context: Any = Context(given(away, "me", "work"))
        await authenticator.refresh()
        away.away = True
        reads = away.reads
        now[0] += 59
        caller: Caller = await authenticator.authenticate(context)
        assert (caller.name, away.reads) == ("me", reads)

    async def test_but_not_for_ever(self, away, authenticator, now):
        context: Any = Context(given(away, "me", "work"))
        await authenticator.refresh()
        away.away = True
        now[0] += 61
        with pytest.raises(Refusal, match="cannot authenticate callers") as refused:
            await authenticator.authenticate(context)
        assert refused.value.code is Code.UNAVAILABLE

    @pytest.mark.parametrize("known_before", [True, False])
    async def test_a_stranger_learns_nothing_of_the_database(
        self, away, authenticator, now, known_before
    ):
        if known_before:
            given(away, "me", "work")
            await authenticator.refresh()
        now[0] += 10
        away.away = True
        for secret in (None, tokens.new_secret()):
            with pytest.raises(Refusal) as refused:
                await authenticator.authenticate(Context(secret))
            assert "5432" not in str(refused.value)
            assert "db.internal" not in str(refused.value)

    async def test_who_shows_nothing_costs_no_read(self, away, authenticator):
        with pytest.raises(Refusal, match="requires a token"):
            await authenticator.authenticate(Context(None))
        assert away.reads == 0

    async def test_wrong_tokens_cost_one_read_now_and_then(self, away, authenticator, now):
        await authenticator.refresh()
        reads = away.reads
        for _ in range(100):
            with pytest.raises(Refusal, match="not known"):
                await authenticator.authenticate(Context(tokens.new_secret()))
        assert away.reads == reads
        now[0] += authentication.NEW_AFTER
        for _ in range(100):
            with pytest.raises(Refusal, match="not known"):
                await authenticator.authenticate(Context(tokens.new_secret()))
        assert away.reads == reads + 1

    async def test_a_new_token_is_known_at_once(self, away, authenticator, now):
        await authenticator.refresh()
        now[0] += 1
        caller = await authenticator.authenticate(Context(given(away, "new", "work")))
        assert caller.name == "new"

    async def test_a_database_that_does_not_answer_is_not_waited_for(
        self, away, authenticator, now, monkeypatch
    ):
        monkeypatch.setattr(authentication, "READ_TIMEOUT", 0.02)
        context: Any = Context(given(away, "me", "work"))
        await authenticator.refresh()
        silent = asyncio.Event()

        async def silence(verb):
            await silent.wait()
            raise TransientStorageError("it never answered")

        monkeypatch.setattr(away, "run", silence)
        now[0] += 10
        assert (await authenticator.authenticate(context)).name == "me"
        with pytest.raises(Refusal, match="cannot authenticate callers"):
            await authenticator.authenticate(Context(tokens.new_secret()))
        silent.set()

    async def test_the_gate_reads_again_and_again(self, away, monkeypatch):
        authenticator = TokenAuthenticator(away, every=0.001)
        seen: list[int] = []
        running = asyncio.create_task(authenticator.run(lambda: seen.append(away.reads)))
        await until(lambda: len(seen) >= 3)
        away.away = True
        reads = away.reads
        await until(lambda: away.reads >= reads + 3)
        away.away = False
        told = len(seen)
        await until(lambda: len(seen) >= told + 2)
        running.cancel()

"""Callers that mean no good: what they send is not read, not parsed, or costs only themselves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc import aio

from pulsed.errors import InvalidPayload, PulsedError, TransientStorageError
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import LARGEST_BATCH, METHODS
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.server import admission
from pulsed.rpc.server.json_text import checked_json
from pulsed.rpc.server.refusal_log import RefusalLog
from pulsed.rpc.server.weight import check_weight
from tests.support.jobs import a_job
from tests.support.raw_streams import RawClient, raw_client

Code = grpc.StatusCode
NOT_A_MESSAGE = b"\xff\xff\xff"
BOMB = b"\n\0" * 1_000_000
"""A million empty items, in whatever request."""


async def sent(client: RawClient, method: str, data: bytes, **options: Any) -> aio.AioRpcError:
    """Send bytes as the request of a method; returns the refusal."""
    call = client.channel.unary_unary(METHODS[method].path)
    with pytest.raises(aio.AioRpcError) as refused:
        await call(data, metadata=client._metadata, **options)
    return refused.value


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

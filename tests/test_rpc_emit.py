"""Streams over the network: what a server refuses, and answers in parts."""

from typing import Any

import grpc
import pytest
from grpc import aio

from pulsed.model.stream import LARGEST_STORED, LAST_POSITION, Emission
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.jobs import lease_message
from tests.support.jobs import running


@pytest.fixture
def store(far):
    return far


@pytest.mark.parametrize(
    "bad",
    [
        {"values": []},
        {"values": ["{"]},
        {"values": ["1", "NaN"]},
        {"values": ['"' + "x" * LARGEST_STORED + '"']},
        {"run": 0},
        {"first": 0},
        {"first": LAST_POSITION},
        {"lease": pb.Lease(job_id="nonsense")},
    ],
    ids=str,
)
async def test_a_server_refuses_what_no_run_emits(client, store, bad: dict[str, Any]):
    run = await running(store)
    good: dict[str, Any] = {
        "lease": lease_message(run.lease),
        "run": 1,
        "first": 1,
        "values": ["1"],
    }
    emissions = [pb.Emission(**good), pb.Emission(**good | bad)]
    request = pb.EmitRequest(emissions=emissions)
    with pytest.raises(aio.AioRpcError) as refused:
        await client("Emit", request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not (await store.streams.read(run.job_id, limit=1)).items


@pytest.mark.parametrize(
    "bad", [{"job_id": "x"}, {"limit": 0}, {"limit": 10_001}, {"after": -1}], ids=str
)
async def test_a_server_refuses_to_read_without_bounds(client, store, bad: dict[str, Any]):
    run = await running(store)
    request: dict[str, Any] = {"job_id": str(run.job_id), "limit": 1} | bad
    with pytest.raises(aio.AioRpcError) as refused:
        await client("ReadStream", pb.ReadStreamRequest(**request))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_answer_has_as_many_items_as_fit(store, monkeypatch):
    monkeypatch.setattr("pulsed.rpc.server.sized_page.LARGEST_ANSWER", 1_000)
    run = await running(store)
    values = ['"' + "x" * 400 + '"'] * 9
    assert await store.streams.emit([Emission(run.lease, 1, 1, values)])
    page = await store.streams.read(run.job_id, limit=9)
    assert [item.position for item in page.items] == [1, 2]
    newest = await store.streams.newest(run.job_id, limit=9)
    assert [item.position for item in newest] == [8, 9]

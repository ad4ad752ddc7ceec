"""KEDA's external scaler, called over the wire as KEDA calls it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from pulsed.model.outcome import Succeeded
from pulsed.rpc.generated import externalscaler_pb2 as pb
from pulsed.rpc.server import scaler
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from tests.support.jobs import a_job, running, settle
from tests.support.servers import PATIENCE, FreshAuthenticator, ServerThread

Code = grpc.StatusCode
ANSWERS: dict[str, Any] = {
    "IsActive": pb.IsActiveResponse,
    "GetMetricSpec": pb.GetMetricSpecResponse,
    "GetMetrics": pb.GetMetricsResponse,
}


class Keda:
    """The calls of KEDA, with a token if there is one."""

    def __init__(self, channel: aio.Channel, token: str | None) -> None:
        self._channel = channel
        self._metadata = [("authorization", f"bearer {token}")] if token else []

    async def call(self, method: str, **metadata: str) -> Any:
        ref: Any = pb.ScaledObjectRef(name="workers", namespace="shop", scalerMetadata=metadata)
        request = pb.GetMetricsRequest(scaledObjectRef=ref) if method == "GetMetrics" else ref
        call = self._channel.unary_unary(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=ANSWERS[method].FromString,
        )
        return await call(request, metadata=self._metadata, timeout=PATIENCE)

    async def jobs(self, **metadata: str) -> int:
        (value,) = (await self.call("GetMetrics", **metadata)).metricValues
        return int(value.metricValue)

    def stream(self, **metadata: str) -> Any:
        call = self._channel.unary_stream(
            "/externalscaler.ExternalScaler/StreamIsActive",
            request_serializer=pb.ScaledObjectRef.SerializeToString,
            response_deserializer=pb.IsActiveResponse.FromString,
        )
        return call(pb.ScaledObjectRef(scalerMetadata=metadata), metadata=self._metadata)

    async def refused(self, method: str = "GetMetrics", **metadata: str) -> grpc.StatusCode:
        with pytest.raises(aio.AioRpcError) as refused:
            await self.call(method, **metadata)
        return refused.value.code()


@asynccontextmanager
async def keda(server: ServerThread, token: str | None = None) -> AsyncIterator[Keda]:
    async with aio.insecure_channel(server.host) as channel:
        yield Keda(channel, token)


def prompt(server: ServerThread) -> ServerThread:
    """Read at every call, so that tests need not wait for the next read."""
    service = server.server._scaler
    service._load._reads._seconds, service._poll = 0.0, 0.01
    return server


@pytest.fixture
def open_server(server: ServerThread) -> ServerThread:
    return prompt(server)


async def test_the_metric_is_what_is_due_plus_what_runs(
    open_server: ServerThread, near: SqliteStore
):
    run = await running(near, topic="encode")
    await near.submit([a_job(topic="encode"), a_job(topic="mail"), a_job(queue="other")])
    async with keda(open_server) as it:
        assert await it.jobs(queue="default") == 3
        assert await it.jobs(queue="default", topic="encode") == 2
        assert await it.jobs(queue="default", topic="mail") == 1
        assert await it.jobs(queue="none") == 0
        assert (await it.call("IsActive", queue="default", topic="encode")).result is True
        assert (await it.call("IsActive", queue="none")).result is False
        assert await settle(near, run, Succeeded("1"))
        assert await it.jobs(queue="default", topic="encode") == 1


async def test_a_replica_is_worth_the_target(open_server: ServerThread):
    async with keda(open_server) as it:
        (spec,) = (await it.call("GetMetricSpec", queue="mail", target="25")).metricSpecs
        assert (spec.metricName, spec.targetSize) == ("pulsed-mail", 25)
        (spec,) = (await it.call("GetMetricSpec", queue="mail", topic="send")).metricSpecs
        assert (spec.metricName, spec.targetSize) == ("pulsed-mail-send", scaler.TARGET)
        (value,) = (await it.call("GetMetrics", queue="mail")).metricValues
        assert (value.metricName, value.metricValue) == ("pulsed-mail", 0)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"queue": ""},
        {"queue": "x" * 300},
        {"queue": "mail", "topic": "a,b\n"},
        {"queue": "mail", "target": "0"},
        {"queue": "mail", "target": "-1"},
        {"queue": "mail", "target": "many"},
        {"queue": "mail", "target": "9" * 5_000},
    ],
)
async def test_metadata_that_makes_no_sense_is_refused(
    open_server: ServerThread, metadata: dict[str, str]
):
    async with keda(open_server) as it:
        for method in ANSWERS:
            assert await it.refused(method, **metadata) is Code.INVALID_ARGUMENT


async def test_a_request_beyond_its_size_is_refused(open_server: ServerThread):
    async with keda(open_server) as it:
        large = "x" * scaler.LARGEST_REQUEST
        assert await it.refused(queue="mail", more=large) is Code.RESOURCE_EXHAUSTED


async def test_a_stream_says_when_work_comes_and_goes_and_ends_with_the_server(
    open_server: ServerThread, near: SqliteStore
):
    async with keda(open_server) as it, asyncio.timeout(PATIENCE):
        stream = it.stream(queue="default")
        assert (await stream.read()).result is False
        run = await running(near)
        assert (await stream.read()).result is True
        assert await settle(near, run, Succeeded("1"))
        assert (await stream.read()).result is False
        draining = asyncio.create_task(asyncio.to_thread(open_server.drain))
        assert await stream.read() is aio.EOF
        await draining


# -- who may call ----------------------------------------------------------------------------------


@pytest.fixture
def guarded(database: Path):
    """A server that wants tokens."""
    store = SqliteStore(database)
    with ServerThread(lambda: store, authenticator=FreshAuthenticator(store)) as server:
        yield prompt(server)


def a_token(database: Path, role: str, **limits: Any) -> str:
    secret = tokens.new_secret()
    made = Token(
        role, tokens.digest_of(secret), (role,), limits.get("topics"), limits.get("queues")
    )
    assert run_blocking(tokens.add(SqliteStore(database), made))
    return secret


async def test_who_has_no_token_learns_nothing(guarded: ServerThread):
    for token in (None, "wrong"):
        async with keda(guarded, token) as it:
            for method in ANSWERS:
                assert await it.refused(method, queue="default") is Code.UNAUTHENTICATED
            with pytest.raises(aio.AioRpcError) as refused:
                await it.stream(queue="default").read()
            assert refused.value.code() is Code.UNAUTHENTICATED


@pytest.mark.parametrize("role, allowed", [("read", True), ("work", False), ("produce", False)])
async def test_scaling_needs_the_role_read(
    guarded: ServerThread, database: Path, role: str, allowed: bool
):
    secret = await asyncio.to_thread(a_token, database, role)
    async with keda(guarded, secret) as it:
        if allowed:
            assert await it.jobs(queue="default") == 0
        else:
            assert await it.refused(queue="default") is Code.PERMISSION_DENIED


async def test_a_token_of_some_queues_scales_by_those_only(guarded: ServerThread, database: Path):
    secret = await asyncio.to_thread(a_token, database, "read", queues=("mail",))
    async with keda(guarded, secret) as it:
        assert await it.jobs(queue="mail") == 0
        assert await it.refused(queue="default") is Code.PERMISSION_DENIED


async def test_a_revoked_token_ends_its_stream(guarded: ServerThread, database: Path):
    secret = await asyncio.to_thread(a_token, database, "read")
    async with keda(guarded, secret) as it, asyncio.timeout(PATIENCE):
        stream = it.stream(queue="default")
        assert (await stream.read()).result is False
        revoked = tokens.remove(SqliteStore(database), "read")
        assert await asyncio.to_thread(run_blocking, revoked)
        await it.refused(queue="default")  # which reads the tokens again
        with pytest.raises(aio.AioRpcError) as refused:
            await stream.read()
        assert refused.value.code() is Code.UNAUTHENTICATED

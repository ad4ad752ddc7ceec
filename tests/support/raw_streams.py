"""StreamJobs as a worker in another language would use it: without pulsed's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from grpc import aio

from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import METHODS
from tests.support.jobs import TOPIC
from tests.support.servers import PATIENCE


class RawStream:
    """One StreamJobs call."""

    def __init__(self, call: Any, worker_id: UUID) -> None:
        self.call = call
        self.worker_id = worker_id

    async def hello(
        self, *, queues=("default",), topics=(TOPIC,), wants_offers=False, reads_columns=False
    ) -> None:
        hello = pb.Hello(
            worker_id=str(self.worker_id),
            queues=queues,
            topics=[pb.Topic(name=name) for name in topics],
            wants_offers=wants_offers,
            reads_columns=reads_columns,
        )
        await self.call.write(pb.StreamJobsRequest(hello=hello))

    async def grant(self, number: int, credits: int, *, wait: float = 0.0, queues=()) -> None:  # noqa: A002
        grant = pb.Grant(id=number, credits=credits, wait_seconds=wait, queues=queues)
        await self.call.write(pb.StreamJobsRequest(grant=grant))

    async def read(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            return await self.call.read()

    async def batch(self) -> Any:
        """Read the next batch, passing over whatever else comes."""
        while True:
            message = await self.read()
            assert message is not aio.EOF
            if message.WhichOneof("kind") == "batch":
                return message.batch


class RawClient:
    """A channel, and the contract's methods on it."""

    def __init__(self, host: str, token: str | None = None) -> None:
        self.channel = aio.insecure_channel(
            host,
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def __call__(self, name: str, request: Any, *, seconds: float = PATIENCE) -> Any:
        method = METHODS[name]
        call = self.channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call(request, metadata=self._metadata, timeout=seconds)

    def stream(self, worker_id: UUID | None = None) -> RawStream:
        method = METHODS["StreamJobs"]
        call = self.channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return RawStream(call(metadata=self._metadata), worker_id or uuid4())


@asynccontextmanager
async def raw_client(host: str, token: str | None = None) -> AsyncIterator[RawClient]:
    client = RawClient(host, token)
    try:
        yield client
    finally:
        await client.channel.close()

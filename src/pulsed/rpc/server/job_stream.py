"""The server's end of StreamJobs: reads grants, writes batches, and gives unsent jobs back.

A worker that does not read for ``SLOW_READER`` seconds is dropped. Jobs of a write that failed are
not given back: they may have arrived, and a job that is given back while it runs would run twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import grpc
from grpc import aio

from pulsed.model.job import Assignment
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.columnar import batch_message
from pulsed.rpc.messages.errors import Refusal, invalid
from pulsed.rpc.server.access import Caller, unauthenticated
from pulsed.rpc.server.admission import Account
from pulsed.rpc.server.authentication import Authenticator
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.rpc.server.wait_list import Grant, Stream
from pulsed.rpc.server.weight import check_weight, parsed

SLOW_READER = 10.0
"""Seconds in which a worker must read what is sent to it."""
MOST_GRANTS = 1_000
"""Unanswered grants of one stream."""
HELLO_WITHIN = 10.0
"""Seconds in which a worker must send its Hello."""
LARGEST_MESSAGE = 1_048_576


@dataclass(slots=True)
class Outgoing:
    """A message to send, and the jobs in it."""

    message: Any
    assignments: list[Assignment]


class JobStream:
    """One StreamJobs call."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        authenticator: Authenticator,
        check_worker: Callable[[UUID, Caller], Awaitable[None]],
        caller: Caller,
        account: Account,
        context: Any,
    ) -> None:
        self._dispatcher = dispatcher
        self._authenticator = authenticator
        self._check_worker = check_worker
        self.caller = caller
        self._account = account
        self._context = context
        self._outbox: asyncio.Queue[Outgoing | Exception | None] = asyncio.Queue()
        self._no_more_grants = False
        self._reads_columns = False
        self._stream: Stream | None = None

    async def run(self) -> None:
        """Serve the stream to its end; raises the error that ends it, if one does."""
        with contextlib.ExitStack() as held:
            await self._serve(await self._hello(held))

    async def _serve(self, stream: Stream) -> None:
        self._stream = stream
        self._dispatcher.join(stream)
        reading = asyncio.create_task(self._read_grants(stream))
        try:
            while not (self._no_more_grants and not stream.unanswered and self._outbox.empty()):
                outgoing = await self._outbox.get()
                if isinstance(outgoing, Exception):
                    raise outgoing
                if outgoing is not None:
                    # A write that fails may have arrived, and its jobs may run: whether the worker
                    # knows them, the worker finds out after its broken stream.
                    await self._write(outgoing.message)
        finally:
            reading.cancel()
            self._dispatcher.leave(stream)
            self._dispatcher.give_back(self._left())

    def go_away(self, reason: str) -> None:
        """Ask the worker to connect elsewhere."""
        self._send(pb.StreamJobsResponse(go_away=pb.GoAway(reason=reason)))

    def end(self, error: Exception | None = None) -> None:
        """End the stream from the server's side, with an error if there is one."""
        self._no_more_grants = True
        self._outbox.put_nowait(error)

    async def _hello(self, held: contextlib.ExitStack) -> Stream:
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                message = await self._read()
        except TimeoutError:
            raise Refusal(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"There was no Hello for {HELLO_WITHIN:g} s."
            ) from None
        if message is None or message.WhichOneof("kind") != "hello":
            raise invalid("The first message of a stream must be a Hello.")
        hello = message.hello
        self._reads_columns = hello.reads_columns
        queues = checks.queues_of(hello.queues)
        topics = checks.topics_of(hello.topics)
        worker_id = checks.job_id_of(hello.worker_id)
        self.caller.check_topics_and_queues((policy.topic for policy in topics), queues)
        await self._check_worker(worker_id, self.caller)
        return Stream(
            worker_id,
            queues,
            held.enter_context(self._account.topics(tuple(topics), hello.ByteSize())),
            wants_offers=hello.wants_offers,
            deliver=self._deliver,
            offer=self._offer,
            fail=self._outbox.put_nowait,
        )

    async def _read_grants(self, stream: Stream) -> None:
        try:
            while (message := await self._read()) is not None:
                match message.WhichOneof("kind"):
                    case "grant":
                        self._dispatcher.grant(self._checked(message.grant, stream))
                    case "withdraw":
                        self._dispatcher.answer_all(stream)
        except Exception as error:  # noqa: BLE001 - the writer ends the stream with it
            self._outbox.put_nowait(error)
        else:
            self._no_more_grants = True
            self._outbox.put_nowait(None)

    async def _read(self) -> Any:
        """Return the next message; None at the end."""
        data = await self._context.read()
        if data is aio.EOF:
            return None
        if len(data) > LARGEST_MESSAGE:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"A message of a stream has at most {LARGEST_MESSAGE:,} bytes, not {len(data):,}.",
            )
        check_weight(pb.StreamJobsRequest, data, checks.MOST_TOPICS)
        return parsed(pb.StreamJobsRequest, data)

    def _checked(self, grant: Any, stream: Stream) -> Grant:
        if not self._authenticator.knows(self.caller):
            raise unauthenticated("This token was revoked, or changed.")
        queues = checks.queues_of(grant.queues) or stream.queues
        self.caller.check_topics_and_queues((), queues)
        if len(stream.named.union(queues)) > checks.MOST_QUEUES:
            raise invalid(f"A stream may name at most {checks.MOST_QUEUES} queues.")
        if not queues or not stream.topics:
            raise invalid("A grant needs queues, and the Hello topics, to claim from.")
        if grant.credits < 1:
            raise invalid(f"A grant needs at least one credit, not {grant.credits}.")
        if stream.unanswered >= MOST_GRANTS:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MOST_GRANTS:,} grants of this stream stand already; wait for an answer.",
            )
        wait = 0.0 if math.isnan(grant.wait_seconds) else grant.wait_seconds
        return Grant(stream, grant.id, grant.credits, queues, min(wait, checks.LONGEST_WAIT))

    def _deliver(self, grant: Grant, claimed: list[Assignment]) -> None:
        message = batch_message(grant.id, claimed, grant.lost_answers, columns=self._reads_columns)
        self._outbox.put_nowait(Outgoing(message, claimed))

    def _offer(self, queue: str) -> None:
        self._send(pb.StreamJobsResponse(offer=pb.Offer(queue=queue)))

    def _send(self, message: Any) -> None:
        self._outbox.put_nowait(Outgoing(message, []))

    async def _write(self, message: Any) -> None:
        try:
            async with asyncio.timeout(SLOW_READER):
                await self._context.write(message)
        except TimeoutError:
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"This worker has not read its stream for {SLOW_READER:g} s; it is dropped.",
            ) from None

    def _left(self) -> list[Assignment]:
        """Return the jobs that were never sent."""
        left: list[Assignment] = []
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                outgoing = self._outbox.get_nowait()
                if isinstance(outgoing, Outgoing):
                    left += outgoing.assignments
        return left

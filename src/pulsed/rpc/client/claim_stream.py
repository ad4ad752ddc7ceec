"""The worker's end of StreamJobs: a claim sends a grant and receives a batch.

A worker that claims repeatedly keeps a stream of its own open. When a queue is empty, the server
owes the worker an offer: a notification that jobs may be there. Until then, claims of that queue
return nothing without a call, so an idle worker does not poll. A worker that was busy a moment
ago may let a grant stand, that is, wait at the server: the next job then arrives without an offer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import grpc
from grpc import aio

from pulsed.errors import TransientStorageError
from pulsed.model.job import TopicPolicy
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.columnar import size_of
from pulsed.rpc.messages.contract import METHODS, WELCOME
from pulsed.rpc.messages.errors import error_of
from pulsed.rpc.messages.jobs import topic_message

log = logging.getLogger("pulsed.worker")

ASK_AGAIN = 30.0
"""Seconds after which a queue that was found empty is polled without an offer."""
GOODBYE = 2.0
"""Seconds that a server has to end a stream which the client has closed."""
NOTHING = pb.Batch()


def hello_message(
    worker_id: UUID, queues: Sequence[str], topics: Sequence[TopicPolicy], *, wants_offers: bool
) -> pb.StreamJobsRequest:
    """Return the first message of a stream."""
    return pb.StreamJobsRequest(
        hello=pb.Hello(
            worker_id=str(worker_id),
            queues=queues,
            topics=map(topic_message, topics),
            wants_offers=wants_offers,
            reads_columns=True,
        )
    )


def grant_message(
    grant_id: int, queues: Sequence[str], most: int, wait: float = 0.0
) -> pb.StreamJobsRequest:
    """Return a grant that may stand for ``wait`` seconds; by default it is answered at once."""
    grant = pb.Grant(id=grant_id, credits=most, queues=queues, wait_seconds=wait)
    return pb.StreamJobsRequest(grant=grant)


def claim_blocking(
    call: Any,
    metadata: Any,
    worker_id: UUID,
    name: str,
    topics: Sequence[TopicPolicy],
    limit: int,
    seconds: float,
) -> Any:
    """Claim once, on a stream for this claim only, in the calling thread; returns the Batch."""
    outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def requests() -> Iterator[Any]:
        yield hello_message(worker_id, [name], topics, wants_offers=False)
        yield grant_message(1, [name], limit)
        outbox.get()

    batch = None
    stream = call(requests(), metadata=metadata, timeout=seconds)
    try:
        for message in stream:
            if message.WhichOneof("kind") == "batch":
                batch = message.batch
                outbox.put(None)  # then read to the end: that acknowledges the batch
    finally:
        outbox.put(None)
    return _answered(batch)


async def claim_once(
    call: Any,
    metadata: Any,
    worker_id: UUID,
    name: str,
    topics: Sequence[TopicPolicy],
    limit: int,
    seconds: float,
) -> Any:
    """Claim once, on a stream for this claim only; returns the Batch."""
    batch = None
    stream = call(metadata=metadata, timeout=seconds)
    try:
        await _welcomed(stream)
        await stream.write(hello_message(worker_id, [name], topics, wants_offers=False))
        await stream.write(grant_message(1, [name], limit))
        await stream.done_writing()
        while (message := await stream.read()) is not aio.EOF:
            if message.WhichOneof("kind") == "batch":
                batch = message.batch  # then read to the end: that acknowledges the batch
    except asyncio.InvalidStateError as error:  # the call ended before everything was written
        raise await _failure_of(stream) from error
    finally:
        stream.cancel()
    return _answered(batch)


def _answered(batch: Any) -> Any:
    if batch is None:
        raise TransientStorageError("the server ended the stream without an answer")
    return batch


class Asked(NamedTuple):
    """A grant in flight, and the stream that it was sent on."""

    call: Any
    queues: Sequence[str]
    credits: int
    answer: asyncio.Future[Any]


class ClaimStream:
    """The stream of one worker, opened by a claim and, after it broke, by the next one."""

    def __init__(
        self,
        worker_id: UUID,
        connect: Callable[[], tuple[str, Any]],
        leave: Callable[[str], None],
        wake: Callable[[], None],
        *,
        seconds: float,
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._worker_id = worker_id
        self._on_change = on_change
        self._was_greeted = False
        self._connect = connect
        self._leave = leave
        self._wake = wake
        self._seconds = seconds
        self._topics: list[TopicPolicy] | None = None
        self._call: Any = None
        self._writing = asyncio.Lock()
        """Held for each write: a stream takes one message at a time, and the Hello first."""
        self._readers: set[asyncio.Task[None]] = set()
        self._sayings: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Asked] = {}
        self._quiet: dict[str, float] = {}
        """When a queue was found empty, by queue; the server owes an offer for each."""

    @property
    def is_open(self) -> bool:
        """Whether offers can arrive."""
        return self._call is not None

    async def claim(self, name: str, topics: Sequence[TopicPolicy], limit: int) -> Any:
        """Return the Batch for a grant; an empty one, without a call, until an offer arrives."""
        if self._call is not None and self._topics != list(topics):
            await self._say_goodbye(self._call)
        since = self._quiet.get(name)
        if since is not None and time.monotonic() - since < ASK_AGAIN:
            return NOTHING
        return await self._exchange(await self._opened(topics), [name], limit)

    async def await_jobs(
        self, queues: Sequence[str], topics: Sequence[TopicPolicy], limit: int, seconds: float
    ) -> Any:
        """Return the Batch for a grant that may stand; an empty one if no stream is open."""
        if self._call is None or self._topics != list(topics):
            return NOTHING
        return await self._exchange(self._call, queues, limit, wait=seconds)

    def withdraw(self) -> None:
        """Make the server answer a standing grant now and send no more offers."""
        if self._call is not None:
            self._keep(asyncio.ensure_future(self._write_withdrawal(self._call)))

    async def _write_withdrawal(self, call: Any) -> None:
        with contextlib.suppress(grpc.RpcError, TransientStorageError):
            async with self._writing:
                await _send(call, pb.StreamJobsRequest(withdraw=pb.Withdraw()))

    async def _exchange(
        self, call: Any, queues: Sequence[str], limit: int, *, wait: float = 0.0
    ) -> Any:
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = Asked(call, queues, limit, answer)
        try:
            async with asyncio.timeout(wait + self._seconds):
                async with self._writing:
                    await _send(call, grant_message(number, queues, limit, wait))
                return await answer
        except TimeoutError:
            self._part_from(call)
            raise TransientStorageError("the server did not answer a grant") from None
        except asyncio.CancelledError:  # its batch would have no receiver
            self._part_from(call)
            raise
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """End the stream; the server forgets the worker."""
        if self._call is not None:
            await self._say_goodbye(self._call)
        if self._readers:
            _, late = await asyncio.wait(self._readers, timeout=GOODBYE)
            for reader in late:
                reader.cancel()

    async def _opened(self, topics: Sequence[TopicPolicy]) -> Any:
        async with self._writing:
            if self._call is not None:
                return self._call
            host, call = self._connect()
            self._topics = list(topics)
            self._call = call
            reader = asyncio.create_task(self._read(host, call), name="pulsed-stream")
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
            await self._greet(call, hello_message(self._worker_id, (), topics, wants_offers=True))
            self._note_change(greeted=True)
            return call

    async def _greet(self, call: Any, hello: Any) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await _welcomed(call)
                await _send(call, hello)
        except BaseException:
            self._part_from(call)
            raise

    async def _read(self, host: str, call: Any) -> None:
        """Receive messages until the stream ends; then fail the grants in flight on it."""
        failure: Exception = TransientStorageError("the stream to the server was closed")
        try:
            while (message := await call.read()) is not aio.EOF:
                self._receive(host, call, message)
            failure = await _failure_of(call)
        except grpc.RpcError as error:
            failure = error
        finally:
            if isinstance(failure, grpc.RpcError):
                failure = error_of(failure, METHODS["StreamJobs"].action, host)
            self._part_from(call)
            for asked in list(self._asked.values()):
                if asked.call is call and not asked.answer.done():
                    asked.answer.set_exception(failure)
            self._wake()

    def _receive(self, host: str, call: Any, message: Any) -> None:
        match message.WhichOneof("kind"):
            case "batch":
                asked = self._asked.get(message.batch.grant_id)
                if asked is not None and not asked.answer.done():
                    # Noted now: an offer may be the next message, and overrides this.
                    if call is self._call:
                        self._note(asked, size_of(message.batch))
                    asked.answer.set_result(message.batch)
            case "offer":
                self._quiet.pop(message.offer.queue, None)
                self._wake()
            case "go_away":
                log.info("the server at %s is shutting down: %s", host, message.go_away.reason)
                self._leave(host)
                self._forget(call)
                self._keep(asyncio.ensure_future(self._say_goodbye(call)))
                self._wake()

    def _note(self, asked: Asked, found: int) -> None:
        """Note which queues are empty; after a full batch there may be more jobs."""
        for name in asked.queues:
            if found < asked.credits:
                self._quiet[name] = time.monotonic()
            else:
                self._quiet.pop(name, None)

    def _keep(self, saying: asyncio.Future[None]) -> None:
        """Keep a reference to a write in flight that no caller awaits."""
        self._sayings.add(saying)
        saying.add_done_callback(self._sayings.discard)

    async def _say_goodbye(self, call: Any) -> None:
        """Half-close the stream and let the server end it: that acknowledges the batches.

        Cancelling right after a batch leaves the server in doubt whether it was received; the
        server would give back jobs that this worker is about to run.
        """
        self._forget(call)
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await call.done_writing()

    def _part_from(self, call: Any) -> None:
        self._forget(call)
        call.cancel()

    def _forget(self, call: Any) -> None:
        """Stop using this stream; the next claim opens another."""
        if self._call is call:
            self._call = None
            self._quiet.clear()
            self._note_change(greeted=False)

    def _note_change(self, *, greeted: bool) -> None:
        if greeted is not self._was_greeted:
            self._was_greeted = greeted
            self._on_change(greeted)


async def _welcomed(call: Any) -> None:
    """Wait until the server admits the stream; the first write would lose a refusal's status."""
    if WELCOME not in (await call.initial_metadata() or ()):
        raise await _failure_of(call)


async def _send(call: Any, message: Any) -> None:
    try:
        await call.write(message)
    except asyncio.InvalidStateError as error:  # the stream has already ended
        raise await _failure_of(call) from error


async def _failure_of(call: Any) -> Exception:
    """Return the error that a stream ended with; a transient one if its status has none."""
    with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            status: Exception = aio.AioRpcError(
                code,
                await call.initial_metadata(),
                await call.trailing_metadata(),
                details=await call.details(),
            )
            return status
    return TransientStorageError("the server ended the stream")

"""Both ends of a call between two simulated processes, with what gRPC's objects have for it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from tests.simulation.event_loop import CURRENT

if TYPE_CHECKING:
    from tests.simulation.fleet import Process
    from tests.simulation.network import Link

OK = grpc.StatusCode.OK
END = object()
"""The last thing that is read from a call."""


class Call:
    """Both ends of one call. The client's has the methods of gRPC's call objects."""

    def __init__(
        self, host: str, path: str, make: Any, metadata: Any, timeout: float | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._host, self.path = host, path
        self._serialize, self._deserialize = make
        self.metadata = metadata or ()
        self.deadline = None if timeout is None else self._loop.time() + timeout
        process: Any = CURRENT.get()
        self._process: Process = process
        self._link: Link | None = None
        self._timer = None if timeout is None else self._loop.call_later(timeout, self._expire)
        self.arrivals = [0.0, 0.0]
        """When the last message arrives, at the client and at the server."""
        self._initial: asyncio.Future[Any] = self._loop.create_future()
        self._status: asyncio.Future[tuple[grpc.StatusCode, str, Any]] = self._loop.create_future()
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        """What has arrived at the server."""
        self._is_cancelled = False
        self._opening: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None
        """The server's."""

    # -- the client's end -------------------------------------------------------------------------

    async def answer(self, request: Any) -> Any:
        """Make a call with one request; returns its response."""
        try:
            await self._open([self._serialize(request), aio.EOF])
            await asyncio.shield(self._status)
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._raise_for_status()
        return self._deserialize(self._inbox.get_nowait())

    def begin(self) -> Call:
        """Open a stream."""
        self._opening = self._loop.create_task(self._open([]))
        return self

    async def _open(self, messages: list[Any]) -> None:
        link = self._process.run.network.link(self._process, self._host)
        if link is None:
            await asyncio.sleep(self._process.run.plan.delay())
            self.fail(grpc.StatusCode.UNAVAILABLE, "the simulated connection was refused")
            return
        self._link = link
        link.calls[self] = None
        for message in messages:
            self.heard.put_nowait(message)
        accept = functools.partial(link.server.accept, self, link)
        await link.carry(self, up=True, arrive=accept)

    async def initial_metadata(self) -> Any:
        return await asyncio.shield(self._initial)

    async def write(self, message: Any) -> None:
        if self._status.done():
            raise asyncio.InvalidStateError("the simulated call has ended")
        await self._send(self._serialize(message))

    async def done_writing(self) -> None:
        if not self._status.done():
            await self._send(aio.EOF)

    async def _send(self, item: Any) -> None:
        if self._link is not None:
            arrive = functools.partial(self.heard.put_nowait, item)
            await self._link.carry(self, up=True, arrive=arrive)

    async def read(self) -> Any:
        try:
            item = await self._inbox.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if item is not END:
            return self._deserialize(item)
        self._inbox.put_nowait(END)
        self._raise_for_status()
        return aio.EOF

    def cancel(self) -> None:
        if not self._status.done():
            self._is_cancelled = True
            self.fail(grpc.StatusCode.CANCELLED, "cancelled by its caller")
            self._leave()

    def _expire(self) -> None:
        if not self._status.done():
            self.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._leave()

    def _leave(self) -> None:
        if self._link is not None and not self._link.is_cut:
            self._link.leave(self)

    async def code(self) -> grpc.StatusCode:
        return (await asyncio.shield(self._status))[0]

    async def details(self) -> str:
        return (await asyncio.shield(self._status))[1]

    async def trailing_metadata(self) -> Any:
        return (await asyncio.shield(self._status))[2]

    def _raise_for_status(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        code, details, trailing = self._status.result()
        if code is not OK:
            raise aio.AioRpcError(code, aio.Metadata(), trailing, details)

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End the call at the client, whatever was on its way."""
        if not self._status.done():
            while not self._inbox.empty():
                self._inbox.get_nowait()
            self._end(code, details, ())

    def _end(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        self._status.set_result((code, details, aio.Metadata(*trailing)))
        if not self._initial.done():
            self._initial.set_result(aio.Metadata())
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.calls.pop(self, None)
        self._inbox.put_nowait(END)

    # -- what arrives at the client ---------------------------------------------------------------

    def _welcome(self, metadata: Any) -> None:
        if not self._initial.done():
            self._initial.set_result(aio.Metadata(*metadata))

    def _receive(self, data: bytes) -> None:
        if not self._status.done():
            self._inbox.put_nowait(data)

    def _finish(self, code: grpc.StatusCode, details: str, trailing: Any, data: Any) -> None:
        if not self._status.done():
            if data is not None:
                self._inbox.put_nowait(data)
            self._end(code, details, trailing)

    # -- the server's end -------------------------------------------------------------------------

    async def serve(self, link: Link, handler: Any) -> None:
        """Run the server's handler of this call, and send its end."""
        context = ServerContext(self, link, handler)
        function = handler.stream_stream or handler.stream_unary
        code, details, trailing, data = OK, "", (), None
        try:
            response = await function(None, context)
            data = None if response is None else handler.response_serializer(response)
        except aio.AbortError:
            code, details, trailing = context.aborted
        arrive = functools.partial(self._finish, code, details, trailing, data)
        await link.carry(self, up=False, arrive=arrive)

    def abandon(self) -> None:
        """End the server's handler, since its client is gone."""
        if self.task is not None:
            self.task.cancel()


class ServerContext:
    """What a handler of the server knows of its call, and does with it."""

    def __init__(self, call: Call, link: Link, handler: Any) -> None:
        self._call, self._link = call, link
        self._serialize = handler.response_serializer
        self.aborted: Any = None

    async def read(self) -> Any:
        item = await self._call.heard.get()
        if item is aio.EOF:
            self._call.heard.put_nowait(item)
        return item

    async def write(self, message: Any) -> None:
        await self._send(functools.partial(self._call._receive, self._serialize(message)))

    async def send_initial_metadata(self, metadata: Any) -> None:
        await self._send(functools.partial(self._call._welcome, metadata))

    async def _send(self, arrive: Callable[[], None]) -> None:
        await asyncio.sleep(await self._link.carry(self._call, up=False, arrive=arrive))

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        self.aborted = code, details, trailing
        raise aio.AbortError

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    def auth_context(self) -> dict[str, Any]:
        return {}

    def peer(self) -> str:
        return f"simulated:{self._link.client.name}"

    def time_remaining(self) -> float | None:
        deadline = self._call.deadline
        return None if deadline is None else deadline - asyncio.get_running_loop().time()

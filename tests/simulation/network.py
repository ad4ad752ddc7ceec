"""The network of a run, in the place of gRPC's channels and servers: carries serialized messages.

What is above it is the product: the client's store, its streams, retries and timeouts, and the
server with its services, dispatcher and admission. A message of a call arrives in order, late, or
never; the link between two processes can be cut before or after one, or go silent for a while.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from tests.simulation.call import Call
from tests.simulation.event_loop import CURRENT, INSTANT
from tests.simulation.faults import Kind

if TYPE_CHECKING:
    from tests.simulation.fleet import Process
    from tests.simulation.run import Run

BROKEN = 0.2
"""Seconds that a write into a broken link takes, at most: then the call has failed."""


class Network:
    """Which servers listen, and the links of processes to them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.messages = 0
        """How many were sent."""
        self.servers: dict[str, SimulatedServer] = {}
        self._links: dict[tuple[Process, SimulatedServer], Link] = {}

    def link(self, client: Process, host: str) -> Link | None:
        """Return the link to a server; None: its address refuses connections."""
        server = self.servers.get(host)
        if server is None or server.process.is_dead:
            return None
        link = self._links.get((client, server))
        if link is None or link.is_cut:
            link = self._links[client, server] = Link(self.run, client, server)
        return link

    def died(self, process: Process) -> None:
        """Cut the links of a process, as its kernel does."""
        for (client, server), link in list(self._links.items()):
            if process in (client, server.process):
                link.cut()
                del self._links[client, server]

    def cut_all(self, server: SimulatedServer) -> None:
        """Cut every link to a server."""
        for (_, other), link in list(self._links.items()):
            if other is server:
                link.cut()


class Link:
    """The connection of one process to one server, with the calls that are in flight on it."""

    def __init__(self, run: Run, client: Process, server: SimulatedServer) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self.client = client
        self.server = server
        self.calls: dict[Call, None] = {}
        self.is_cut = False
        self._silent_until = 0.0

    async def carry(self, call: Call, *, up: bool, arrive: Callable[[], None]) -> float:
        """Send a message of a call; returns how many seconds the write of it takes."""
        sender, receiver = self.client, self.server.process
        if not up:
            sender, receiver = receiver, sender
        event = self._run.plan.next()
        self._run.network.messages += 1
        kind, now = event.kind, self._loop.time()
        if kind is Kind.DIES_BEFORE:
            await self._run.die(sender)
        if kind is Kind.REFUSED:
            self.cut()
        if self.is_cut:
            return BROKEN
        if kind is Kind.OUTAGE:
            self._silent_until = now + event.seconds
        slow = event.seconds if kind is Kind.SLOW else 0.0
        at = max(now + event.before + slow, self._silent_until, call.arrivals[up] + INSTANT)
        call.arrivals[up] = at
        is_last = kind is Kind.UNANSWERED
        self._run.at(at, functools.partial(self._arrived, receiver, arrive, is_last))
        if kind is Kind.DIES_AFTER:
            await self._run.die(sender)
        if kind is Kind.FREEZES:
            sender.freeze(event.seconds)
            await asyncio.sleep(0)
        return at - now + BROKEN if is_last else event.after

    def _arrived(self, receiver: Process, arrive: Callable[[], None], is_last: bool) -> None:
        if not self.is_cut:
            self._loop.call_soon(arrive, context=receiver.context)
        if is_last:
            self.cut()

    def cut(self) -> None:
        """Lose everything that is in flight; both ends notice it after a while."""
        if not self.is_cut:
            self.is_cut = True
            for call in list(self.calls):
                self.leave(call)
                self._loop.call_later(
                    self._run.plan.delay(),
                    call.fail,
                    grpc.StatusCode.UNAVAILABLE,
                    "the simulated connection was lost",
                    context=self.client.context,
                )

    def leave(self, call: Call) -> None:
        """Have the server notice, after a while, that no client waits for a call any more."""
        delay = max(self._run.plan.delay(), self._silent_until - self._loop.time())
        self._loop.call_later(delay, call.abandon, context=self.server.process.context)


class SimulatedServer:
    """In the place of ``grpc.aio.server``."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._network = process.run.network
        self._address = ""
        self._handlers: list[Any] = []
        self._calls: dict[Call, None] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, *_: Any) -> None:
        """Do nothing: the generic handlers have them, too."""

    def add_insecure_port(self, address: str) -> int:
        self._address = address
        return 1

    async def start(self) -> None:
        self._network.servers[self._address] = self

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, and end the others when the grace is over."""
        if self._network.servers.get(self._address) is self:
            del self._network.servers[self._address]
        tasks = [call.task for call in self._calls if call.task is not None]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        self._network.cut_all(self)

    def accept(self, call: Call, link: Link) -> None:
        """Begin to serve a call that has arrived."""
        details = _Details(call.path)
        handler = next(found for each in self._handlers if (found := each.service(details)))
        self._calls[call] = None
        call.task = asyncio.get_running_loop().create_task(call.serve(link, handler))
        call.task.add_done_callback(lambda _: self._calls.pop(call, None))


class _Details:
    def __init__(self, method: str) -> None:
        self.method = method


class SimulatedChannel:
    """In the place of ``grpc.aio.insecure_channel``."""

    def __init__(self, host: str) -> None:
        self._host = host

    def unary_unary(self, path: str, *, request_serializer: Any, response_deserializer: Any) -> Any:
        make = request_serializer, response_deserializer

        def call(request: Any, *, metadata: Any, timeout: float) -> Any:
            return Call(self._host, path, make, metadata, timeout).answer(request)

        return call

    def stream_stream(
        self, path: str, *, request_serializer: Any, response_deserializer: Any
    ) -> Any:
        make = request_serializer, response_deserializer

        def call(*, metadata: Any, timeout: float | None = None) -> Call:
            return Call(self._host, path, make, metadata, timeout).begin()

        return call

    async def close(self) -> None:
        """Do nothing: its streams have ended."""


def simulated_server(**_: Any) -> SimulatedServer:
    """Return a server of the process that calls."""
    process: Any = CURRENT.get()
    return SimulatedServer(process)


def simulated_channel(host: str, **_: Any) -> SimulatedChannel:
    """Return a channel to a server's address."""
    return SimulatedChannel(host)

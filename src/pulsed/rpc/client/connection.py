"""Calls to servers: over which channel, how often, and how long they may take."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import grpc

from pulsed.errors import (
    AccessDenied,
    StorageBusy,
    TransientStorageError,
)
from pulsed.rpc.address import Address
from pulsed.rpc.client.channels import Channels, Endpoints, metadata_of
from pulsed.rpc.client.claim_stream import ClaimStream
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import (
    KEEPALIVE,
    METHODS,
    REQUEST_ID_KEY,
    Method,
)
from pulsed.rpc.messages.errors import error_of
from pulsed.store.blocking import is_blocking
from pulsed.store.fork import ForkAware, Gate, watch_forks
from pulsed.store.per_loop import PerLoop
from pulsed.store.retrying import RetryOptions, retry_of, retrying

log = logging.getLogger("pulsed.upkeep")

SPLIT = {"ReportResults", "Checkpoint", "CancelJobs", "ReplayJobs", "DeleteJobs"}
"""Calls that are not made again while rows are locked: what can be written is then written."""

LONGEST_CALL = 30.0

ASK_SERVER_AGAIN = 60.0
"""Seconds for which we believe what a server said about itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions(RetryOptions):
    """How patient to be with the server."""

    keepalive: float = KEEPALIVE


class Connection(ForkAware):
    """What every verb of a remote store goes through."""

    def __init__(self, address: Address, options: RemoteOptions) -> None:
        self.address = address
        self.options = options
        self.endpoints = Endpoints(address.hosts)
        self.metadata = metadata_of(address)
        self.blocking = self._channels(None)
        self.loops: PerLoop[LoopSide] = PerLoop()
        self.calls = Gate()
        self._server: tuple[Any, float] | None = None
        self._may_do_upkeep = True
        self._said_so = False
        watch_forks(self)

    def pause(self, give_up_at: float) -> None:
        """Let blocking calls end before a fork: in the child of a call gRPC hangs or aborts.

        An idle channel does no harm, while one that was just closed does.
        """
        self.calls.shut(give_up_at)

    def resume(self) -> None:
        self.calls.open()

    def forget_inherited(self) -> list[object]:
        """Connect anew in a forked child."""
        self.calls.reset()
        inherited: list[object] = [self.blocking, *self.loops.forget_all()]
        self.blocking = self._channels(None)
        self.endpoints = Endpoints(self.address.hosts)
        return inherited

    def _channels(self, loop: asyncio.AbstractEventLoop | None) -> Channels:
        return Channels(self.address, self.options.keepalive, loop)

    def here(self) -> LoopSide:
        """Return what belongs to the running event loop."""
        return self.loops.here(self._new_side)

    def _new_side(self) -> LoopSide:
        return LoopSide(self._channels(asyncio.get_running_loop()))

    async def call(
        self,
        name: str,
        request: Any,
        *,
        seconds: float = LONGEST_CALL,
        within: float | None = None,
    ) -> Any:
        """Call a method, trying again and elsewhere while no server answers."""
        method = METHODS[name]
        metadata = (*self.metadata, (REQUEST_ID_KEY, uuid.uuid4().hex))

        async def attempt() -> Any:
            host = self.endpoints.current
            options = {"metadata": metadata, "timeout": seconds}
            try:
                if is_blocking():
                    with self.calls:
                        return self.blocking.call(host, method)(request, **options)
                return await self.here().channels.call(host, method)(request, **options)
            except grpc.RpcError as failure:
                raise self.failed(failure, method, host) from failure

        busy, policy = name not in SPLIT, retry_of(self.options)
        return await retrying(policy, attempt, what=method.action, within=within, busy=busy)

    def failed(self, failure: grpc.RpcError, method: Method, host: str) -> Exception:
        error = error_of(failure, method.action, host)
        if isinstance(error, TransientStorageError) and not isinstance(error, StorageBusy):
            self.endpoints.leave(host)
        return error

    async def upkeep(self, name: str, request: Any) -> Any | None:
        now = time.monotonic()
        if self._server is None or now - self._server[1] > ASK_SERVER_AGAIN:
            self._server = (await self.call("GetServer", pb.GetServerRequest()), now)
            self._may_do_upkeep = True  # the token may have been given more rights since
        if self._server[0].does_upkeep or not self._may_do_upkeep:
            return None
        try:
            return await self.call(name, request)
        except AccessDenied as error:
            self._may_do_upkeep = False
            if not self._said_so:
                log.warning(
                    "the server does no upkeep (--no-upkeep) and this worker may not do it: %s "
                    "Start a server without --no-upkeep, or a worker with the role admin or with "
                    "a database URL; until then expired leases may be recovered by nobody",
                    error,
                )
            self._said_so = True
            return None


class LoopSide:
    """What belongs to one event loop: its channels, the workers' streams, who is to be woken."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels
        self.streams: dict[UUID, ClaimStream] = {}
        self.wakes: list[Callable[[], None]] = []

    def wake(self) -> None:
        """Tell the workers of this loop that jobs may have arrived."""
        for wake in list(self.wakes):
            wake()

    async def close_streams(self) -> None:
        """End the workers' streams."""
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            await stream.close()

"""Calls to servers: the channel, the retries and the timeout of each."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import grpc

from pulsed.errors import AccessDenied, StorageBusy, TransientStorageError
from pulsed.rpc.address import ServerAddress
from pulsed.rpc.client.channels import Channels, Endpoints, metadata_of
from pulsed.rpc.client.claim_stream import ClaimStream
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import KEEPALIVE, METHODS, REQUEST_ID_KEY, Method
from pulsed.rpc.messages.errors import error_of
from pulsed.store.blocking import is_blocking
from pulsed.store.event_bus import Events
from pulsed.store.fork import ForkAware, Gate, watch_forks
from pulsed.store.listener import Wake
from pulsed.store.per_loop import PerLoop
from pulsed.store.retry_options import RetryOptions
from pulsed.store.retrying import retry_of, retrying

log = logging.getLogger("pulsed.upkeep")

SPLIT = {"ReportResults", "Checkpoint", "CancelJobs", "ReplayJobs", "DeleteJobs", "ExpediteJobs"}
"""Calls that are not retried while rows are locked: the rows that are free are then written."""

LONGEST_CALL = 30.0

ASK_SERVER_AGAIN = 60.0
"""Seconds for which a server's description of itself is cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions(RetryOptions):
    """Retries of calls to the server, and the keepalive interval."""

    keepalive: float = KEEPALIVE


class ServerConnection(ForkAware):
    """Makes the calls for every verb of a remote store."""

    def __init__(self, address: ServerAddress, options: RemoteOptions) -> None:
        self.address = address
        self.options = options
        self.events = Events()
        self.endpoints = Endpoints(address.hosts)
        self.metadata = metadata_of(address)
        self.blocking = self._channels(None)
        self.loops: PerLoop[LoopSide] = PerLoop()
        self.calls = Gate()
        self._server: tuple[Any, float] | None = None
        self._may_do_upkeep = True
        self._has_warned = False
        watch_forks(self)

    def pause(self, give_up_at: float) -> None:
        """Drain blocking calls before a fork: with one in flight, gRPC hangs or aborts in a child.

        An idle channel does no harm; one that was just closed does.
        """
        self.calls.shut(give_up_at)

    def resume(self) -> None:
        self.calls.open()

    def forget_inherited(self) -> list[object]:
        """Start with new channels in a forked child; return the parent's, still open."""
        self.calls.reset()
        inherited: list[object] = [self.blocking, *self.loops.forget_all()]
        self.blocking = self._channels(None)
        self.endpoints = Endpoints(self.address.hosts)
        return inherited

    def _channels(self, loop: asyncio.AbstractEventLoop | None) -> Channels:
        return Channels(self.address, self.options.keepalive, loop)

    def here(self) -> LoopSide:
        """Return the channels and streams of the running event loop."""
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
        unanswered: list[Exception] | None = None,
    ) -> Any:
        """Return a method's response; retries, also on other servers, while none answers.

        ``unanswered`` collects the errors of attempts: a server may have acted on each.
        """
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
                error = self.failed(failure, method, host)
                if unanswered is not None:
                    unanswered.append(error)
                raise error from failure

        busy, policy = name not in SPLIT, retry_of(self.options)
        return await retrying(
            policy, attempt, what=method.action, events=self.events, within=within, busy=busy
        )

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
            if not self._has_warned:
                log.warning(
                    "the server does no upkeep (--no-upkeep) and this worker may not do it: %s "
                    "Start a server without --no-upkeep, or a worker with the role admin or with "
                    "a database URL; until then expired leases may not be recovered",
                    error,
                )
            self._has_warned = True
            return None


class LoopSide:
    """What belongs to one event loop: its channels, the workers' streams, the wake callbacks."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels
        self.streams: dict[tuple[UUID, tuple[str, ...]], ClaimStream] = {}
        """By worker and topics: one that claims for several groups has a stream for each."""
        self.wakes: list[Wake] = []

    def wake(self) -> None:
        """Notify the workers of this loop that jobs may have arrived."""
        for wake in list(self.wakes):
            wake(None)

    def streams_of(self, worker_id: UUID) -> list[ClaimStream]:
        """Return the streams of a worker."""
        return [stream for (owner, _), stream in self.streams.items() if owner == worker_id]

    async def close_streams_of(self, worker_id: UUID) -> None:
        """End the streams of a worker."""
        for key in [key for key in self.streams if key[0] == worker_id]:
            await self.streams.pop(key).close()

    async def close_streams(self) -> None:
        """End the workers' streams."""
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            await stream.close()

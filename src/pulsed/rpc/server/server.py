"""The server: the contract's methods over a store, and the loops that keep the store in order.

Any number of servers may share one PostgreSQL. None is a leader, and none holds job state that the
database does not: a report may go to another server than the one that assigned the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from pulsed.engine.load import LoadReader
from pulsed.engine.stats import StatsRecorder
from pulsed.engine.submissions import SubmissionRecorder
from pulsed.engine.upkeep.bulk import BulkPerformer
from pulsed.engine.upkeep.pruner import Pruner
from pulsed.engine.upkeep.scheduler import Scheduler
from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import PulsedError, StorageError
from pulsed.model.events import JobExpired, RunFinished
from pulsed.model.retention import Retention
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import (
    KEEPALIVE,
    LARGEST_BATCH,
    LARGEST_MESSAGE,
    METHODS,
    REQUEST_ID_KEY,
    WELCOME,
    Method,
)
from pulsed.rpc.messages.errors import Refusal, status_of
from pulsed.rpc.server.access import Caller, unauthenticated
from pulsed.rpc.server.admission import Admission
from pulsed.rpc.server.answers import ANSWERED_ONCE, Answers, RequestKey
from pulsed.rpc.server.authentication import Authenticator, NoAuthentication
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.rpc.server.job_stream import JobStream
from pulsed.rpc.server.refusal_log import RefusalLog
from pulsed.rpc.server.scaler import ScalerService
from pulsed.rpc.server.scopes import Scopes
from pulsed.rpc.server.services.all import services
from pulsed.rpc.server.services.backend import Backend
from pulsed.rpc.server.weight import check_weight, parsed
from pulsed.store.base import Store
from pulsed.version import __version__

log = logging.getLogger("pulsed.server")


HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
ANSWER_WITHIN = 0.7
"""Fraction of the caller's remaining timeout that a heartbeat may take."""
WEIGHED_ASIDE = 262_144
"""Bytes above which a request is scanned in a thread, while others are served."""
NO_COMPRESSION = 1
"""Bit set of the enabled algorithms: only the first, which is no compression."""
CALLS_BESIDE_STREAMS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a server."""

    listen: str = "127.0.0.1:50051"
    credentials: grpc.ServerCredentials | None = None
    """TLS; None serves in the clear."""
    upkeep: bool = True
    """Recover the jobs of silent workers, fire schedules, remove old jobs."""
    retention: Retention = field(default_factory=Retention)
    """When finished jobs and statistics are removed, as a part of the upkeep."""
    stats: bool = True
    """Record statistics of the jobs that the upkeep recovers."""
    poll: float = 1.0
    tick: float = 10.0
    """The longest time between two scans for silent workers."""
    keepalive: float = KEEPALIVE
    largest_message: int = LARGEST_MESSAGE
    largest_batch: int = LARGEST_BATCH
    most_streams: int = 10_000
    most_streams_of_one: int = 2_000
    """Streams of one caller: of the workers that share a token."""
    reflection: bool = False
    """Serve gRPC reflection, so that tools can list the methods; needs grpcio-reflection."""
    drain_timeout: float = 10.0
    """Seconds that workers have to reconnect elsewhere, and calls to end, when the server stops."""


class Server:
    """A gRPC server over a store. Belongs to the event loop that starts it."""

    def __init__(
        self,
        store: Store,
        options: ServerOptions | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.options = options or ServerOptions()
        self.store = store
        self.port = 0
        self._authenticator = authenticator or NoAuthentication()
        self.refusals = RefusalLog()
        self._admission = Admission(
            most_bytes=2 * self.options.largest_message,
            most_streams=self.options.most_streams,
            most_streams_of_one=self.options.most_streams_of_one,
        )
        self.dispatcher = Dispatcher(store, poll=self.options.poll)
        self._scheduler = Scheduler(store, limits=self.dispatcher.limit_rules)
        self._recorder = StatsRecorder(store)
        self._submissions = SubmissionRecorder(store) if self.options.stats else None
        self._scopes = Scopes(store)
        self._services = services(
            Backend(
                store=store,
                scopes=self._scopes,
                largest_batch=self.options.largest_batch,
                hint=self.dispatcher.hint,
                describe=self._describe,
            )
        )
        self._scaler = ScalerService(
            LoadReader(store), self._authenticator, self._admission, self._abort
        )
        self._streams: set[JobStream] = set()
        self._answers = Answers()
        self._stream_ended = asyncio.Event()
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self._health = health.HealthServicer()

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start serving; ``port`` is then the port that the server listens on."""
        self._server = aio.server(
            options=self._channel_options(),
            maximum_concurrent_rpcs=self.options.most_streams + CALLS_BESIDE_STREAMS,
        )
        for service in {method.service for method in METHODS.values()}:
            handlers = {
                method.name: self._handler(method)
                for method in METHODS.values()
                if method.service == service
            }
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(f"pulse.v1.{service}", handlers),)
            )
        self._server.add_generic_rpc_handlers((self._scaler.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self.options.reflection:
            self._describe_itself()
        self.port = self._bind()
        await self._server.start()
        await self._be_healthy()
        self._start_loops()

    def _describe_itself(self) -> None:
        from grpc_reflection.v1alpha import reflection  # noqa: PLC0415 - an extra, and rarely used

        names = (HEALTH, reflection.SERVICE_NAME, *_services())
        reflection.enable_server_reflection(names, self._server)

    def _bind(self) -> int:
        address, credentials = self.options.listen, self.options.credentials
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise StorageError(f"cannot listen on {address}: is it taken? ({error})") from error

    def _start_loops(self) -> None:
        loops = [
            self.dispatcher.run(),
            self.dispatcher.poll(),
            self.dispatcher.listen(),
            self._authenticator.run(self._end_revoked),
        ]
        if self.options.upkeep:
            self.dispatcher.on_schedules = self._scheduler.wake
            pruner = Pruner(self.store, self.options.retention)
            upkeep = Watchdog(self.store, tick=self.options.tick, on_ended=self._recovered)
            bulk = BulkPerformer(self.store)
            loops += [self._scheduler.run(), upkeep.run(), pruner.run(), bulk.run()]
            if self.options.stats:
                loops.append(self._recorder.run())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def _recovered(self, ended: Sequence[RunFinished | JobExpired]) -> None:
        """Count what the watchdog has ended, and offer jobs that are due again to workers."""
        if self.options.stats:
            self._recorder.count(ended)
        self.dispatcher.hint()

    async def drain(self) -> None:
        """Send the workers elsewhere, finish what is in flight, then stop."""
        self._draining = True
        await self._health.enter_graceful_shutdown()
        self._scaler.close()
        for stream in list(self._streams):
            stream.go_away("the server is shutting down")
        self.dispatcher.answer_all()
        give_up_at = asyncio.get_running_loop().time() + self.options.drain_timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(give_up_at):
                await self._parted_from_streams()
        await self.stop(grace=max(0.5, give_up_at - asyncio.get_running_loop().time()))

    async def _parted_from_streams(self) -> None:
        while self._streams:
            self._stream_ended.clear()
            await self._stream_ended.wait()

    async def stop(self, *, grace: float | None = None) -> None:
        """Stop, giving calls in flight ``grace`` seconds to end."""
        self._scaler.close()
        for stream in list(self._streams):
            stream.end()
        await self._server.stop(grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._recorder.close()
        if self._submissions is not None:
            await self._submissions.close()
            self._submissions.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.drain_timeout):
                await self.dispatcher.given_back()

    @property
    def state(self) -> str:
        """``starting``, ``serving`` or ``draining``."""
        if self._draining:
            return "draining"
        return "serving" if self._tasks else "starting"

    @property
    def open_streams(self) -> int:
        """How many workers are connected."""
        return len(self._streams)

    async def failed(self) -> None:
        """Wait until one of the loops ends, which only a bug causes; raises its error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def _channel_options(self) -> list[tuple[str, int]]:
        milliseconds = round(self.options.keepalive * 1000)
        return [
            ("grpc.max_receive_message_length", self.options.largest_message),
            ("grpc.max_send_message_length", -1),
            ("grpc.compression_enabled_algorithms_bitset", NO_COMPRESSION),
            ("grpc.per_message_decompression", 0),
            ("grpc.keepalive_time_ms", milliseconds),
            ("grpc.keepalive_timeout_ms", milliseconds // 2),
            ("grpc.http2.ping_timeout_ms", milliseconds // 2),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", milliseconds // 4),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_concurrent_streams", max(1_000, self.options.most_streams)),
            ("grpc.so_reuseport", 0),  # a port that is taken is an error, never shared
        ]

    async def _be_healthy(self) -> None:
        for name in ("", *_services()):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    # -- calls ----------------------------------------------------------------------------------

    def _handler(self, method: Method) -> Any:
        # A call with one request is served like a stream, too, which is the same on the wire: its
        # request is then read on demand, once the caller is known.
        if method.streams:
            make, behaviour = grpc.stream_stream_rpc_method_handler, self._stream_jobs
        else:
            make, behaviour = grpc.stream_unary_rpc_method_handler, self._unary(method)
        return make(behaviour, response_serializer=method.response.SerializeToString)

    def _unary(self, method: Method) -> Any:
        function = getattr(self._services[method.service], method.function)

        async def answer(request: Any, caller: Caller, context: Any) -> Any:
            sent = _request_id(context) if method.name in ANSWERED_ONCE else None
            if sent:
                once = RequestKey(caller.name, method.name, sent)
                return await self._answers.once(once, lambda: function(request, caller))
            if method.name == "Heartbeat":
                return await function(request, caller, within=_time_left(context))
            return await function(request, caller)

        async def call(_: Any, context: Any) -> Any:
            caller = None
            try:
                caller = await self._authenticator.authenticate(context)
                caller.check_method(method.name)
                with self._admission.call(caller) as account:
                    data = await account.read(context)
                    with account.holding(len(data)):
                        return await answer(await self._parsed(method, data), caller, context)
            except Exception as error:  # noqa: BLE001 - every error becomes a status
                await self._abort(context, error, method.name, caller)

        return call

    async def _parsed(self, method: Method, data: bytes) -> Any:
        """Return a request; refuses one that would take far more memory than its bytes."""
        most = self.options.largest_batch
        if len(data) > WEIGHED_ASIDE:
            await asyncio.to_thread(check_weight, method.request, data, most)
        else:
            check_weight(method.request, data, most)
        return parsed(method.request, data)

    async def _abort(
        self, context: Any, error: Exception, method: str, caller: Caller | None
    ) -> None:
        if isinstance(error, aio.AbortError):
            raise error
        if not isinstance(error, PulsedError | Refusal):
            log.error("%s failed", method, exc_info=error)
        code, text, trailing = status_of(error)
        self.refusals.note(code, text[:200], method, caller, context.peer())
        await context.abort(code, text[:4_000], trailing)

    def _end_revoked(self) -> None:
        """End the streams of callers whose token was revoked or changed."""
        for stream in list(self._streams):
            if not self._authenticator.knows(stream.caller):
                stream.end(unauthenticated("This token was revoked, or changed."))

    async def _stream_jobs(self, _: Any, context: Any) -> None:
        caller = None
        try:
            caller = await self._authenticator.authenticate(context)
            caller.check_method("StreamJobs")
            self._check_not_draining()
            with self._admission.stream(caller) as account:
                await context.send_initial_metadata(((WELCOME, "1"),))
                check = self._scopes.check_worker
                await self._serve_stream(
                    JobStream(self.dispatcher, self._authenticator, check, caller, account, context)
                )
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await self._abort(context, error, "StreamJobs", caller)

    def _check_not_draining(self) -> None:
        if self._draining:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")

    async def _serve_stream(self, stream: JobStream) -> None:
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            self._stream_ended.set()

    def _describe(self) -> pb.GetServerResponse:
        return pb.GetServerResponse(
            version=__version__,
            does_upkeep=self.options.upkeep,
            largest_batch=self.options.largest_batch,
            largest_message=self.options.largest_message,
            draining=self._draining,
            refused_calls=self.refusals.total,
        )


def _services() -> list[str]:
    return sorted({f"pulse.v1.{method.service}" for method in METHODS.values()})


def _request_id(context: Any) -> str:
    """Return the id that all attempts of a call share; empty if its caller sends none."""
    return str(dict(context.invocation_metadata() or ()).get(REQUEST_ID_KEY, ""))


def _time_left(context: Any) -> float | None:
    """Return how long to retry, so that an error of the database reaches the caller in time.

    The caller could not tell silence from a broken network, after which a worker stops its jobs.
    """
    left: float | None = context.time_remaining()
    return None if left is None else left * ANSWER_WITHIN

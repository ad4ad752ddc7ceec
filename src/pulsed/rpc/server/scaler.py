"""KEDA's external scaler: how many workers does a queue need?

The metric is the number of jobs that are due or run. With the due ones alone, an autoscaler would
stop workers that are busy with the last jobs of a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc

from pulsed.engine.load import LoadReader
from pulsed.errors import StorageError
from pulsed.handler.options import checked_name
from pulsed.model.job import JobFilter
from pulsed.rpc.generated import externalscaler_pb2 as pb
from pulsed.rpc.messages.errors import Refusal, invalid
from pulsed.rpc.server.access import READ, Caller, denied, unauthenticated
from pulsed.rpc.server.admission import Account, Admission
from pulsed.rpc.server.authentication import Authenticator
from pulsed.rpc.server.weight import parsed

SERVICE = "externalscaler.ExternalScaler"
TARGET = 10
"""Jobs that one replica is worth, unless the trigger's metadata says it."""
MOST_TARGET = 1_000_000_000
POLL = 2.0
"""Seconds between two looks of an open StreamIsActive; the reads behind them are shared."""
READ_WITHIN = 5.0
"""Seconds that the database has to answer; KEDA asks again."""
LARGEST_REQUEST = 65_536
"""Bytes. A request names an object and a few settings."""

Abort = Callable[[Any, Exception, str, Caller | None], Awaitable[None]]


class Trigger(NamedTuple):
    """What a trigger of a ScaledObject asks for."""

    queue: str
    topic: str | None
    target: int

    @classmethod
    def of(cls, ref: pb.ScaledObjectRef) -> Trigger:
        """Return the trigger in an object's metadata. Keys of KEDA's own are left alone."""
        given = dict(ref.scalerMetadata)
        if not given.get("queue"):
            raise invalid("The metadata of the trigger must name a queue.")
        topic = given.get("topic") or None
        target = given.get("target", str(TARGET))
        if not target.isdecimal() or not 1 <= int(target[:20]) <= MOST_TARGET:
            raise invalid("target must be a number of jobs for each replica, 1 or more.")
        return cls(
            checked_name("queue", given["queue"]),
            None if topic is None else checked_name("topic", topic),
            int(target),
        )

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return f"pulsed-{self.queue}" if self.topic is None else f"pulsed-{self.queue}-{self.topic}"


class ScalerService:
    """The service that KEDA calls, with the credentials and limits of all other callers."""

    def __init__(
        self,
        load: LoadReader,
        authenticator: Authenticator,
        admission: Admission,
        abort: Abort,
        *,
        poll: float = POLL,
    ) -> None:
        self._load = load
        self._authenticator = authenticator
        self._admission = admission
        self._abort = abort
        self._poll = poll
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End the open streams."""
        self._closed.set()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the methods. A request is read on demand, once its caller is known."""
        ref = pb.ScaledObjectRef
        methods = {
            "IsActive": self._unary("IsActive", ref, self.is_active),
            "GetMetricSpec": self._unary("GetMetricSpec", ref, self.get_metric_spec),
            "GetMetrics": self._unary("GetMetrics", pb.GetMetricsRequest, self.get_metrics),
            "StreamIsActive": grpc.stream_stream_rpc_method_handler(
                self._stream_is_active, response_serializer=pb.IsActiveResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    # -- methods --------------------------------------------------------------------------------

    async def is_active(self, ref: pb.ScaledObjectRef, caller: Caller) -> pb.IsActiveResponse:
        """Say whether there is any work."""
        return pb.IsActiveResponse(result=await self._jobs(_permitted(ref, caller)) > 0)

    async def get_metric_spec(
        self, ref: pb.ScaledObjectRef, caller: Caller
    ) -> pb.GetMetricSpecResponse:
        """Return the metric's name, and what one replica is worth."""
        trigger = _permitted(ref, caller)
        spec = pb.MetricSpec(metricName=trigger.metric, targetSize=trigger.target)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(
        self, request: pb.GetMetricsRequest, caller: Caller
    ) -> pb.GetMetricsResponse:
        """Return the number of jobs that are due or run."""
        trigger = _permitted(request.scaledObjectRef, caller)
        value = pb.MetricValue(metricName=trigger.metric, metricValue=await self._jobs(trigger))
        return pb.GetMetricsResponse(metricValues=[value])

    async def _jobs(self, trigger: Trigger) -> int:
        reading = await self._load.read(within=READ_WITHIN)
        return sum(
            load.jobs
            for (queue, topic), load in reading.lanes.items()
            if queue == trigger.queue and trigger.topic in (None, topic)
        )

    async def _push(self, trigger: Trigger, caller: Caller, context: Any) -> None:
        """Send whether there is any work, now and when it changes, until the server drains."""
        sent = None
        while not self._closed.is_set():
            if not self._authenticator.knows(caller):
                raise unauthenticated("This token was revoked, or changed.")
            with contextlib.suppress(StorageError):  # what was sent last stands
                is_active = await self._jobs(trigger) > 0
                if is_active is not sent:
                    sent = is_active
                    await context.write(pb.IsActiveResponse(result=is_active))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll):
                    await self._closed.wait()

    # -- calls ----------------------------------------------------------------------------------

    def _unary(self, name: str, kind: Any, function: Callable[..., Awaitable[Any]]) -> Any:
        async def call(_: Any, context: Any) -> Any:
            caller = None
            try:
                caller = await self._admitted(context)
                with self._admission.call(caller) as account:
                    return await function(await _read(context, account, kind), caller)
            except Exception as error:  # noqa: BLE001 - every error becomes a status
                await self._abort(context, error, name, caller)

        return grpc.stream_unary_rpc_method_handler(
            call, response_serializer=lambda answer: answer.SerializeToString()
        )

    async def _stream_is_active(self, _: Any, context: Any) -> None:
        caller = None
        try:
            caller = await self._admitted(context)
            with self._admission.stream(caller) as account:
                ref = await _read(context, account, pb.ScaledObjectRef)
                await self._push(_permitted(ref, caller), caller, context)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await self._abort(context, error, "StreamIsActive", caller)

    async def _admitted(self, context: Any) -> Caller:
        caller = await self._authenticator.authenticate(context)
        if not caller.roles & READ:
            raise denied(f"Scaling needs the role read; {caller.name} does not have it.")
        return caller


def _permitted(ref: pb.ScaledObjectRef, caller: Caller) -> Trigger:
    trigger = Trigger.of(ref)
    caller.check_filter(JobFilter(queue=trigger.queue, topic=trigger.topic))
    return trigger


async def _read(context: Any, account: Account, kind: Any) -> Any:
    data = await account.read(context)
    if len(data) > LARGEST_REQUEST:
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "This request is too large.")
    return parsed(kind, data)

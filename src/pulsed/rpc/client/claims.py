"""Claims over the network: on the worker's stream, or on a stream for one claim only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import grpc

from pulsed.errors import TransientStorageError
from pulsed.model.job import Assignment, TopicPolicy
from pulsed.rpc.client.claim_stream import ClaimStream, claim_blocking, claim_once
from pulsed.rpc.client.connection import LoopSide
from pulsed.rpc.messages import columnar
from pulsed.rpc.messages.contract import LARGEST_ASSIGNMENT_BATCH, METHODS
from pulsed.store.blocking import is_blocking
from pulsed.store.listener import Listener, Wake
from pulsed.store.results import Assignments
from pulsed.store.retrying import dequeue_retry_of, retrying

if TYPE_CHECKING:
    from pulsed.rpc.client.store import RemoteStore

STREAM_JOBS = METHODS["StreamJobs"]
LONGEST_GRANT = 15.0
"""Seconds that a server has to answer a grant."""


class RemoteClaims:
    """Claims jobs for the workers of this process."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._connection = store.connection

    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Assignments:
        """Claim up to ``limit`` jobs, in as many batches as that takes.

        The server offers the queue when a rate permits more, so ``again_in`` is not needed here.
        """
        claimed = Assignments()
        while topics and limit > len(claimed):
            most = min(limit - len(claimed), LARGEST_ASSIGNMENT_BATCH)
            batch = await self._claim(worker_id, queue, topics, most)
            claimed += batch
            if len(batch) < most:
                break
        return claimed

    async def _claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> list[Assignment]:
        async def attempt() -> Any:
            with self._doubting() as host:
                if is_blocking() or not self._connection.here().wakes:
                    return await self._claim_alone(host, worker_id, queue, topics, limit)
                return await self._stream_of(worker_id, topics).claim(queue, topics, limit)

        policy = dequeue_retry_of(self._connection.options)
        events = self._connection.events
        batch = await retrying(policy, attempt, what=STREAM_JOBS.action, events=events)
        return self._assignments(batch, worker_id)

    async def await_jobs(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        topics: Sequence[TopicPolicy],
        limit: int,
        seconds: float,
    ) -> list[Assignment]:
        """Let a grant stand at the server for so many seconds; returns the jobs that arrive."""
        try:
            with self._doubting():
                stream = self._stream_of(worker_id, topics)
                batch = await stream.await_jobs(queues, topics, limit, seconds)
        except TransientStorageError:  # if it persists, the next claim raises it
            return []
        return self._assignments(batch, worker_id)

    def withdraw(self, worker_id: UUID) -> None:
        """Have the worker's standing grants answered now."""
        for stream in self._connection.here().streams_of(worker_id):
            stream.withdraw()

    async def retire(self, worker_id: UUID) -> None:
        """End the worker's streams."""
        if not is_blocking():
            await self._connection.here().close_streams_of(worker_id)

    @asynccontextmanager
    async def listen(self, wake: Wake) -> AsyncIterator[Listener]:
        """Call ``wake`` when a server offers jobs to a worker of this loop."""
        side = self._connection.here()
        side.wakes.append(wake)
        try:
            yield StreamListener(side)
        finally:
            side.wakes.remove(wake)
            if not side.wakes:
                await side.close_streams()

    @contextmanager
    def _doubting(self) -> Iterator[str]:
        """Count a claim that fails as doubtful, for it may have been committed; yields the host."""
        host = self._connection.endpoints.current
        try:
            yield host
        except grpc.RpcError as failure:
            self._store.doubtful_claims += 1
            raise self._connection.failed(failure, STREAM_JOBS, host) from failure
        except BaseException as error:
            self._store.doubtful_claims += 1
            if isinstance(error, TransientStorageError):
                self._connection.endpoints.leave(host)
            raise

    def _assignments(self, batch: Any, worker_id: UUID) -> list[Assignment]:
        self._store.doubtful_claims += batch.lost_answers
        return columnar.assignments_of(batch, worker_id)

    async def _claim_alone(
        self, host: str, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Any:
        asked = (self._connection.metadata, worker_id, queue, topics, limit, LONGEST_GRANT)
        if is_blocking():
            with self._connection.calls:
                return claim_blocking(self._connection.blocking.call(host, STREAM_JOBS), *asked)
        return await claim_once(self._connection.here().channels.call(host, STREAM_JOBS), *asked)

    def _stream_of(self, worker_id: UUID, topics: Sequence[TopicPolicy]) -> ClaimStream:
        side = self._connection.here()
        key = worker_id, tuple(topic.topic for topic in topics)
        if key not in side.streams:

            def connect() -> tuple[str, Any]:
                host = self._connection.endpoints.current
                call = side.channels.call(host, STREAM_JOBS)
                return host, call(metadata=self._connection.metadata)

            side.streams[key] = ClaimStream(
                worker_id,
                connect,
                self._connection.endpoints.leave,
                side.wake,
                seconds=LONGEST_GRANT,
                on_change=lambda connected: self._store.publish_listening(connected=connected),
            )
        return side.streams[key]


class StreamListener(Listener):
    """Healthy while a stream is open, on which offers arrive."""

    def __init__(self, side: LoopSide) -> None:
        self._side = side

    @property
    def healthy(self) -> bool:
        return any(stream.is_open for stream in self._side.streams.values())

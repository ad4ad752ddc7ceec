"""Backpressure: what each caller has in flight at a server, and how much more it may have.

Nothing of a request is read before its caller is known, and only a few requests of a caller are
read at a time. So the number of tokens bounds a server's memory, not what their callers send.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc import aio

from pulsed.errors import PulsedError, StorageError
from pulsed.model.job import TopicPolicy
from pulsed.rpc.messages.errors import Refusal, invalid
from pulsed.rpc.server.access import Caller

Topics: TypeAlias = tuple[TopicPolicy, ...]

READS_AT_ONCE = 4
"""Requests of one caller that are read at a time; the others wait, unread."""
READ_WITHIN = 10.0
"""Seconds in which a request must arrive, once the server begins to read it."""
MOST_CALLS = 2_000
"""Calls of one caller in flight at a time, not counting streams."""
ALWAYS_ROOM_FOR = 65_536
"""Bytes up to which a request is always admitted: a heartbeat must get through."""
REST = 1e-6
"""Seconds, for each byte of a large request that was refused, in which no request of its caller is
read: that one was read, scanned and checked for nothing, while other callers waited."""
LONGEST_REST = 5.0


@dataclass(slots=True)
class SharedTopics:
    """The topic policies that some streams of a caller have in common."""

    topics: Topics
    size: int
    streams: int = 0


class Account:
    """What one caller has in flight."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self.calls = 0
        self.streams = 0
        self.bytes = 0
        self.topic_bytes = 0
        self._shared_topics: dict[Topics, SharedTopics] = {}
        self._rests_until = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight and no rest is left, so that it can be dropped."""
        return not self.calls and not self.streams and self._rest() <= 0

    def _rest(self) -> float:
        return self._rests_until - time.monotonic()

    def refused(self, size: int) -> None:
        """Read nothing from the caller for some seconds after a large request that was refused."""
        if size > ALWAYS_ROOM_FOR:
            rest = min(max(0.0, self._rest()) + size * REST, LONGEST_REST)
            self._rests_until = time.monotonic() + rest

    async def read(self, context: Any) -> bytes:
        """Return the request of a call, of which nothing was read before."""
        async with self._reading:
            if (rest := self._rest()) > 0:
                await asyncio.sleep(rest)
            try:
                async with asyncio.timeout(READ_WITHIN):
                    data = await context.read()
            except TimeoutError:
                raise Refusal(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"The request did not arrive within {READ_WITHIN:g} s.",
                ) from None
        if data is aio.EOF:
            raise invalid("The call has no request.")
        return bytes(data)

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count the bytes of a request while it is in flight."""
        if size > ALWAYS_ROOM_FOR and self.bytes and self.bytes + size > self._most_bytes:
            raise Refusal(
                grpc.StatusCode.UNAVAILABLE,
                f"Requests of this caller with {self.bytes:,} bytes are under way; wait for their "
                "answers before you send more.",
            )
        self.bytes += size
        try:
            yield
        except (PulsedError, Refusal) as error:
            if not isinstance(error, StorageError):  # not the caller's fault
                self.refused(size)
            raise
        finally:
            self.bytes -= size

    @contextmanager
    def topics(self, wanted: Topics, size: int) -> Iterator[Topics]:
        """Keep a stream's topic policies, once for all streams that have the same."""
        kept = self._shared_topics.get(wanted)
        if kept is None:
            if self._shared_topics and self.topic_bytes + size > self._most_bytes:
                raise _busy(
                    f"Streams of this caller have named different topics of {self.topic_bytes:,} "
                    "bytes already"
                )
            kept = self._shared_topics[wanted] = SharedTopics(wanted, size)
            self.topic_bytes += size
        kept.streams += 1
        try:
            yield kept.topics
        finally:
            kept.streams -= 1
            if not kept.streams:
                del self._shared_topics[wanted]
                self.topic_bytes -= kept.size


class Admission:
    """The accounts of the callers that have something in flight."""

    def __init__(self, *, most_bytes: int, most_streams: int, most_streams_of_one: int) -> None:
        self._most_bytes = most_bytes
        self._most_streams = most_streams
        self._most_streams_of_one = most_streams_of_one
        self._accounts: dict[str, Account] = {}
        self.streams = 0

    @contextmanager
    def call(self, caller: Caller) -> Iterator[Account]:
        """Count a call while it is in flight, or refuse it."""
        account = self._account(caller)
        if account.calls >= MOST_CALLS:
            raise _busy(f"{MOST_CALLS:,} calls of {caller.name} are under way already")
        account.calls += 1
        try:
            yield account
        finally:
            account.calls -= 1
            self._drop_idle(caller, account)

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[Account]:
        """Count a stream while it is open, or refuse it."""
        if self.streams >= self._most_streams:
            raise _busy(f"{self._most_streams:,} streams are open already")
        account = self._account(caller)
        if account.streams >= self._most_streams_of_one:
            raise _busy(f"{self._most_streams_of_one:,} streams of {caller.name} are open already")
        account.streams += 1
        self.streams += 1
        try:
            yield account
        finally:
            account.streams -= 1
            self.streams -= 1
            self._drop_idle(caller, account)

    def _account(self, caller: Caller) -> Account:
        account = self._accounts.get(caller.name)
        if account is None:
            account = self._accounts[caller.name] = Account(self._most_bytes)
        return account

    def _drop_idle(self, caller: Caller, account: Account) -> None:
        if account.is_idle:
            self._accounts.pop(caller.name, None)


def _busy(what: str) -> Refusal:
    return Refusal(grpc.StatusCode.UNAVAILABLE, f"{what}; try another server, or a moment later.")

"""Hearing that jobs have arrived: LISTEN on a connection of its own, which heals itself.

A listener that lost its connection is only slower: the worker polls. So it never raises and never
gives up; it comes back with a jittered pause and wakes the worker once, for what it missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from pulsed.errors import TooManyConnections
from pulsed.store.base import Listener
from pulsed.store.postgres.errors import DRIVER_ERRORS, is_crowded, with_type

CHECK_EVERY = 15.0
CHECK_WITHIN = 5.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0

log = logging.getLogger("pulsed.store")


class Wanted(Listener):
    """A listener for some queues; others in this process look at the same set of them."""

    def __init__(self, queues: set[str]) -> None:
        self._queues = queues

    def hear(self, queues: Iterable[str]) -> None:
        self._queues.update(queues)

    def forget(self, queues: Iterable[str]) -> None:
        self._queues.difference_update(queues)


class Polling(Wanted):
    """There is no connection that could listen: jobs start at the next poll."""

    healthy = False


class ChannelListener(Wanted):
    """A LISTEN connection, kept up for ever."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        channel: str,
        queues: set[str],
        wake: Callable[[], None],
        *,
        ours: Callable[[], Collection[int]],
    ) -> None:
        super().__init__(queues)
        self._connect = connect
        self._channel = channel
        self._wake = wake
        self._ours = ours
        self._healthy = False
        self.connection: Any = None

    @property
    def healthy(self) -> bool:
        return self._healthy

    async def run(self) -> None:
        """Listen until cancelled."""
        failures = 0
        while True:
            try:
                await self._listen()
            except (*DRIVER_ERRORS, TooManyConnections) as error:
                failures = 1 if self._healthy else failures + 1
                is_known = failures > 1 or is_crowded(error)  # of the latter, the store tells
                level = logging.DEBUG if is_known else logging.WARNING
                log.log(level, "wake-ups stopped, polling goes on: %s", with_type(error))
            finally:
                self._healthy = False
                self._drop()
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    async def _listen(self) -> None:
        """Listen until the connection is lost."""
        self.connection = connection = await self._connect()
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(self._channel, self._heard)
        self._healthy = True
        self._wake()
        while not await _happens(lost, CHECK_EVERY):
            # A network that went silent does not end a connection; an unanswered question does.
            await connection.fetchval("SELECT 1", timeout=CHECK_WITHIN)
        raise ConnectionResetError("the server closed the listening connection")

    def _heard(self, _connection: object, pid: int, _channel: str, queue: str) -> None:
        """Pass on what others say; this process has heard of its own jobs when they were stored."""
        if queue in self._queues and pid not in self._ours():
            self._wake()

    def _drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.terminate()


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


@asynccontextmanager
async def running(listener: ChannelListener) -> AsyncIterator[Listener]:
    """Keep a listener running in a task."""
    task = asyncio.create_task(listener.run(), name="pulsed-listen")
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.wait([task])

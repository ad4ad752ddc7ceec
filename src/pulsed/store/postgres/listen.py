"""Notifications of new jobs: LISTEN on a connection of its own, which reconnects by itself.

While the connection is lost, the worker polls and is only slower. So a listener never raises and
never gives up; it reconnects with jittered backoff, then wakes the worker once, for notifications
that it missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from pulsed.errors import TooManyConnections
from pulsed.store.listener import Listener, Wake
from pulsed.store.postgres.errors import DRIVER_ERRORS, is_crowded, with_type

CHECK_EVERY = 15.0
CHECK_WITHIN = 5.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0

log = logging.getLogger("pulsed.store")


class QueueListener(Listener):
    """A listener for a set of queues; the set is shared with this process's own notifications."""

    def __init__(self, queues: set[str]) -> None:
        self._queues = queues

    def hear(self, queues: Iterable[str]) -> None:
        self._queues.update(queues)

    def forget(self, queues: Iterable[str]) -> None:
        self._queues.difference_update(queues)


class Polling(QueueListener):
    """The listener where no connection can LISTEN: jobs start at the next poll."""

    healthy = False


class ChannelListener(QueueListener):
    """A LISTEN connection that reconnects until it is cancelled."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        channel: str,
        queues: set[str],
        wake: Wake,
        *,
        is_own: Callable[[int], bool],
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        super().__init__(queues)
        self._connect = connect
        self._channel = channel
        self._wake = wake
        self._is_own = is_own
        self._on_change = on_change
        self._healthy = False
        self._told: bool | None = None
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
                is_known = failures > 1 or is_crowded(error)  # the store logs the latter
                level = logging.DEBUG if is_known else logging.WARNING
                log.log(level, "notifications stopped, polling continues: %s", with_type(error))
            finally:
                self._be(healthy=False)
                self._drop()
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    def _be(self, *, healthy: bool) -> None:
        """Note whether notifications arrive; that they never did is told, too."""
        self._healthy = healthy
        if healthy is not self._told:
            self._told = healthy
            self._on_change(healthy)

    async def _listen(self) -> None:
        """Listen until the connection is lost."""
        self.connection = connection = await self._connect()
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(self._channel, self._heard)
        self._be(healthy=True)
        self._wake(None)
        while not await _happens(lost, CHECK_EVERY):
            # A silent network does not end a connection; a query without an answer detects it.
            await connection.fetchval("SELECT 1", timeout=CHECK_WITHIN)
        raise ConnectionResetError("the server closed the listening connection")

    def _heard(self, _connection: object, pid: int, _channel: str, queue: str) -> None:
        """Wake for other processes' notifications; this one woke for its own jobs on commit."""
        if queue in self._queues and not self._is_own(pid):
            self._wake((queue,))

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
    """Run a listener in a task, until the context is left."""
    task = asyncio.create_task(listener.run(), name="pulsed-listen")
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.wait([task])

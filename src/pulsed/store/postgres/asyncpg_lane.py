"""The asyncpg connections of one lane of one event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from pulsed.store.postgres.asyncpg_connection import AsyncpgConnection
from pulsed.store.postgres.session import IDLE_FOR_TOO_LONG, KEEP_IDLE

CLOSE_WITHIN = 2.0


class Slots:
    """A semaphore: to take a free slot of the standard library's takes four calls in Python.

    A slot that is given back goes to the caller that has waited longest, so that none is free
    while a caller waits.
    """

    def __init__(self, size: int) -> None:
        self.free = size
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_free(self) -> bool:
        """Take a slot if one is free."""
        if self.free:
            self.free -= 1
            return True
        return False

    async def take(self) -> None:
        """Take a slot, waiting for one if need be."""
        if self.take_free():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given a slot in the same turn of the loop
                self.give_back()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        """Give a slot back."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1

    async def __aenter__(self) -> Self:
        await self.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_back()


class LanePool:
    """The connections of one lane, most recently used first."""

    keep_idle = KEEP_IDLE

    def __init__(self, size: int, open_one: Callable[[], Awaitable[AsyncpgConnection]]) -> None:
        self.slots = Slots(size)
        self.opened: set[AsyncpgConnection] = set()
        self._idle: list[tuple[AsyncpgConnection, float]] = []
        self._open_one = open_one
        self._unclaimed: list[asyncio.Task[AsyncpgConnection]] = []
        """Connections being opened whose callers have been cancelled."""
        self._trimming: asyncio.TimerHandle | None = None

    def take_ready(self) -> AsyncpgConnection | None:
        """Take a free slot with a connection that is ready for use, if there are both."""
        if self._idle and self.slots.free:
            connection, since = self._idle[-1]
            if not connection.is_closed() and time.monotonic() - since < IDLE_FOR_TOO_LONG:
                self._idle.pop()
                self.slots.free -= 1
                return connection
        return None

    def take_idle(self) -> AsyncpgConnection | None:
        """Return an idle connection, if there is one. The caller holds a slot."""
        while self._idle:
            connection, since = self._idle.pop()
            if not connection.is_closed() and time.monotonic() - since < IDLE_FOR_TOO_LONG:
                return connection
            self.drop(connection)
        return None

    async def open(self, within: float | None = None) -> AsyncpgConnection:
        """Return a connection opened ``within`` seconds. The caller holds a slot."""
        async with asyncio.timeout(within):
            connection = await self._opened()
        self.opened.add(connection)
        return connection

    async def _opened(self) -> AsyncpgConnection:
        """Return a new connection, or one that a cancelled caller began to open.

        The opening is not cancelled with its caller: asyncpg would leave a future behind, whose
        error is never retrieved and only logged. The next caller takes the connection over.
        """
        opening = self._unclaimed.pop() if self._unclaimed else asyncio.create_task(self._open())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if not opening.cancelled():  # the loop has not ended
                self._unclaimed.append(opening)
                opening.add_done_callback(self._adopt)
            raise

    async def _open(self) -> AsyncpgConnection:
        return await self._open_one()

    def _adopt(self, opening: asyncio.Task[AsyncpgConnection]) -> None:
        """Keep a connection whose caller was cancelled; an error in opening it is dropped."""
        failed = opening.cancelled() or opening.exception() is not None
        if opening in self._unclaimed:
            self._unclaimed.remove(opening)
            if not failed:
                self.opened.add(opening.result())
                self.give_back(opening.result())

    def give_back(self, connection: AsyncpgConnection) -> None:
        """Keep a connection for the next verb."""
        if connection in self.opened:  # else the pool was closed meanwhile
            self._idle.append((connection, time.monotonic()))
            if self._trimming is None and len(self._idle) > 1:
                self._trim_later()
        else:
            connection.terminate()

    def _trim_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._trimming = loop.call_later(self.keep_idle, self._trim)

    def _trim(self) -> None:
        """Close connections left idle after a burst, except the most recently used one."""
        self._trimming = None
        long_ago = time.monotonic() - self.keep_idle
        surplus = [one for one, since in self._idle[:-1] if since <= long_ago]
        self._idle = self._idle[len(surplus) :]
        for connection in surplus:
            self.opened.discard(connection)
            keep(asyncio.ensure_future(_close(connection)))
        if len(self._idle) > 1:
            self._trim_later()

    def drop(self, connection: AsyncpgConnection) -> None:
        """Abort a connection, without a message to the server."""
        self.opened.discard(connection)
        connection.terminate()

    async def drop_cancelled(self, connection: AsyncpgConnection) -> None:
        """Close a connection whose statement was cancelled, after the server got the cancellation.

        If the connection were aborted at once, the statement would keep running, with its locks,
        until its timeout.
        """
        self.opened.discard(connection)
        closing = asyncio.ensure_future(_close(connection))
        keep(closing)
        await asyncio.shield(closing)  # else the loop may end before the cancellation is sent

    def drop_idle(self) -> None:
        """Abort all idle connections."""
        while self._idle:
            self.drop(self._idle.pop()[0])

    async def close(self) -> None:
        """Close idle connections; those in use are aborted when they are given back."""
        idle, self._idle = [connection for connection, _ in self._idle], []
        unclaimed, self._unclaimed = self._unclaimed, []
        self.opened.clear()
        if self._trimming is not None:
            self._trimming.cancel()
        opened = await asyncio.gather(*unclaimed, return_exceptions=True)
        idle += [each for each in opened if not isinstance(each, BaseException)]
        await asyncio.gather(*(_close(connection) for connection in idle))


async def _close(connection: AsyncpgConnection) -> None:
    try:
        await connection.close(timeout=CLOSE_WITHIN)
    except Exception:  # noqa: BLE001 - whatever the error, the connection is dropped
        connection.terminate()
    except asyncio.CancelledError:  # the loop ends
        connection.terminate()
        raise


_closing: set[asyncio.Future[None]] = set()


def keep(task: asyncio.Future[None]) -> None:
    """Keep a reference to a task that nothing awaits: the loop keeps only a weak one."""
    _closing.add(task)
    task.add_done_callback(_closing.discard)

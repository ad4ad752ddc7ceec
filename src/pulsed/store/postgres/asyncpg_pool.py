"""asyncpg connections of one event loop, by lane.

Unlike a general pool, this one spends no extra round trip on resetting a session: a verb takes the
most recently used connection and gives it back. A connection that raised is never reused: it may be
in a broken transaction, hold a stale plan or belong to a demoted server, and errors are rare enough
for that to be cheap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import asyncpg

from pulsed.store.postgres import hosts as silence
from pulsed.store.postgres.address import PostgresOptions
from pulsed.store.postgres.confirm import CONFIRM, found_done
from pulsed.store.postgres.errors import DRIVER_ERRORS, lost_the_server
from pulsed.store.postgres.hosts import Hosts
from pulsed.store.postgres.session import IDLE_FOR_TOO_LONG, KEEP_IDLE, Lane, Sessions, lane_of
from pulsed.store.postgres.values import arguments
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs.script import FollowUp, Verb, adrive

T = TypeVar("T")
Clock: TypeAlias = Callable[[], datetime]

CLOSE_WITHIN = 2.0


class AsyncpgConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that knows its host."""

    place = 0
    """The index of its host in the URL."""


async def connect(
    hosts: Hosts, options: PostgresOptions, sessions: Sessions, lane: Lane
) -> AsyncpgConnection:
    """Open a connection for a lane, to the first suitable host."""
    if lane is not Lane.URGENT:
        sessions.crowding.check()
    try:
        connection = await _connect_to_one(hosts, options, sessions.at_connect(lane))
    except asyncpg.PostgresError as error:
        sessions.crowding.note(error)
        raise
    sessions.crowding.note(None)
    return connection


async def _connect_to_one(
    hosts: Hosts, options: PostgresOptions, settings: dict[str, str]
) -> AsyncpgConnection:
    """Try one host after the other: asyncpg itself has one timeout for all of them."""
    within = hosts.address.connect_timeout(options.connect_timeout)
    failed: Exception | None = None
    for place in hosts.in_order():
        try:
            connection: AsyncpgConnection = await asyncpg.connect(
                **hosts.each[place].for_asyncpg(settings, within),
                connection_class=AsyncpgConnection,
                command_timeout=options.statement_timeout + 5,
                statement_cache_size=256 if options.prepared_statements else 0,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
            )
        except _NEXT_HOST as error:
            failed = error
        else:
            connection.place = place
            hosts.connected(place)
            return connection
    assert failed is not None
    raise failed


_NEXT_HOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.CannotConnectNowError,
)
"""Errors after which the next host is tried: time-out, down, disconnected, starting, standby."""


class LanePool:
    """The connections of one lane, most recently used first."""

    keep_idle = KEEP_IDLE

    def __init__(self, size: int, open_one: Callable[[], Awaitable[AsyncpgConnection]]) -> None:
        self.slots = asyncio.Semaphore(size)
        self.opened: set[AsyncpgConnection] = set()
        self._idle: list[tuple[AsyncpgConnection, float]] = []
        self._open_one = open_one
        self._unclaimed: list[asyncio.Task[AsyncpgConnection]] = []
        """Connections being opened whose callers have been cancelled."""
        self._trimming: asyncio.TimerHandle | None = None

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
            self._trim_later()
        else:
            connection.terminate()

    def _trim_later(self) -> None:
        if self._trimming is None and len(self._idle) > 1:
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
            _keep(asyncio.ensure_future(_close(connection)))
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
        _keep(closing)
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


def _keep(task: asyncio.Future[None]) -> None:
    """Keep a reference to a task that nothing awaits: the loop keeps only a weak one."""
    _closing.add(task)
    task.add_done_callback(_closing.discard)


class LoopPool:
    """The connections of one event loop, by lane. Closes itself when the loop ends."""

    def __init__(
        self, hosts: Hosts, options: PostgresOptions, sessions: Sessions, clock: Clock | None
    ) -> None:
        self.hosts = hosts
        self.loop = asyncio.get_running_loop()
        self._sessions = sessions
        self._clock = clock
        self._lanes = {
            lane: LanePool(size, lambda lane=lane: connect(hosts, options, sessions, lane))  # type: ignore[misc]
            for lane, size in sessions.sizes().items()
        }
        self._life = self._until_the_loop_ends()
        self.is_open = False

    async def open(self) -> None:
        """Have the pool closed when the loop ends. Does not suspend."""
        self.is_open = True
        await anext(self._life)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Close the lanes when ``asyncio.run`` closes async generators, which it does last."""
        try:
            yield
        finally:
            await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def close(self) -> None:
        """Close all connections."""
        await self._life.aclose()

    def close_soon(self) -> None:
        """Schedule closing all connections, from another thread or from synchronous code."""
        with suppress(RuntimeError):  # the loop is closed, and so are the connections
            self.loop.call_soon_threadsafe(self._start_closing)

    def _start_closing(self) -> None:
        _keep(self.loop.create_task(self.close()))

    def connections(self) -> list[AsyncpgConnection]:
        """Return every open connection."""
        return [connection for lane in self._lanes.values() for connection in lane.opened]

    def session_pids(self) -> set[int]:
        """Return the server's process ids of this pool's sessions."""
        return {connection.get_server_pid() for connection in self.connections()}

    async def run(self, verb: Verb[T]) -> T:
        """Run a verb on a connection of its lane; returns its value."""
        pool = self._lanes[lane_of(verb)]
        left = self._time_limit(verb)
        if verb.urgent:
            async with asyncio.timeout(left()):
                await pool.slots.acquire()
        else:
            await pool.slots.acquire()
        follow_up = None
        try:
            connection = pool.take_idle() or await self._opened(pool, verb, left)
            answer = await self._run(pool, connection, verb, left)
            follow_up = verb.follow_up
        finally:
            if follow_up is None:
                pool.slots.release()
        if follow_up is None:
            pool.give_back(connection)
        elif follow_up.is_awaited:
            await self._follow_up(pool, connection, follow_up)
        else:
            _keep(self.loop.create_task(self._follow_up(pool, connection, follow_up)))
            await asyncio.sleep(0)  # so that it is sent before the caller goes on
        return answer

    def _time_limit(self, verb: Verb[Any]) -> Callable[[], float]:
        """Return what returns the seconds that a verb's next statement may take."""
        seconds = self._sessions.client_timeout(verb)
        if not verb.urgent:
            return lambda: seconds
        # The timeout covers every wait: for the slot, the connection, opening a transaction.
        end = time.monotonic() + seconds
        return lambda: max(0.0, end - time.monotonic())

    async def _opened(
        self, pool: LanePool, verb: Verb[Any], left: Callable[[], float]
    ) -> AsyncpgConnection:
        try:
            return await pool.open(left() if verb.urgent else None)
        except Exception as error:
            self._note(error)
            raise

    async def _run(
        self,
        pool: LanePool,
        connection: AsyncpgConnection,
        verb: Verb[T],
        left: Callable[[], float],
    ) -> T:
        try:
            if verb.urgent or not self.hosts.several:
                return await self._run_on(connection, verb, left)
            with self.watched(connection):
                return await self._run_on(connection, verb, left)
        except asyncio.CancelledError:
            await pool.drop_cancelled(connection)
            raise
        except BaseException as error:
            pool.drop(connection)
            self._note(error)
            raise

    async def _follow_up(
        self, pool: LanePool, connection: AsyncpgConnection, follow_up: FollowUp
    ) -> None:
        """Run what follows a commit, and free its connection and slot."""
        statement = follow_up.statement
        try:
            await connection.execute(statement.sql.text, *arguments(statement, self._clock))
        except asyncio.CancelledError as error:  # the loop ends
            follow_up.failed(error)
            await pool.drop_cancelled(connection)
            raise
        except BaseException as error:
            pool.drop(connection)
            follow_up.failed(error)
            if not isinstance(error, DRIVER_ERRORS):
                raise
        else:
            pool.give_back(connection)
        finally:
            pool.slots.release()

    @contextmanager
    def watched(self, connection: AsyncpgConnection) -> Iterator[None]:
        """Abort the connection if its host stops answering and another one has taken over."""
        if not self.hosts.several:
            yield
            return
        watch = _Watch(self.hosts, connection)
        try:
            yield
        finally:
            watch.end()

    def slot(self, lane: Lane) -> asyncio.Semaphore:
        """Return the semaphore of a lane, for a connection that is opened elsewhere."""
        return self._lanes[lane].slots

    @asynccontextmanager
    async def borrowed(self, lane: Lane) -> AsyncIterator[AsyncpgConnection]:
        """Lend a connection. After an error it is not reused."""
        pool = self._lanes[lane]
        async with pool.slots:
            connection = pool.take_idle() or await pool.open()
            try:
                yield connection
            except BaseException:  # a statement may still run, with its locks
                await pool.drop_cancelled(connection)
                raise
            try:
                await connection.reset()
            except DRIVER_ERRORS:  # the borrower's work is complete, so this is no error
                pool.drop(connection)
            except BaseException:
                pool.drop(connection)
                raise
            else:
                pool.give_back(connection)

    async def _run_on(
        self, connection: AsyncpgConnection, verb: Verb[T], left: Callable[[], float]
    ) -> T:
        opening = self._sessions.opening(verb)

        async def execute(statement: Statement) -> Rows:
            values = arguments(statement, self._clock)
            rows: Rows
            if statement.sql.counted:
                status = await connection.execute(statement.sql.text, *values, timeout=left())
                rows = [(changed(status),)]
            else:
                rows = await connection.fetch(statement.sql.text, *values, timeout=left())
            if found_done(verb, statement, rows):
                await connection.fetch(CONFIRM.sql.text, timeout=left())
            return rows

        if opening is None:
            return await adrive(verb.script(), execute)
        await connection.execute(opening, timeout=left())
        answer = await adrive(verb.script(), execute)
        await connection.execute(self._sessions.closing(verb), timeout=left())
        return answer

    def _note(self, error: BaseException) -> None:
        if lost_the_server(error):
            for pool in self._lanes.values():
                pool.drop_idle()


class _Watch:
    """Checks a host periodically while a statement waits for its answer."""

    def __init__(self, hosts: Hosts, connection: AsyncpgConnection) -> None:
        self._hosts = hosts
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._checking: asyncio.Task[None] | None = None
        self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(silence.SILENT_AFTER, self._begin)

    def _begin(self) -> None:
        self._checking = self._loop.create_task(self._check())

    async def _check(self) -> None:
        hosts, place = self._hosts, self._connection.place
        if await self._loop.run_in_executor(hosts.threads, hosts.is_replaced, place):
            self._connection.terminate()
        else:
            self._wait()

    def end(self) -> None:
        self._timer.cancel()
        if self._checking is not None:
            self._checking.cancel()


def changed(status: str) -> int:
    """Return how many rows a command changed, from its command tag: ``INSERT 0 5``."""
    return int(status.rpartition(" ")[2])

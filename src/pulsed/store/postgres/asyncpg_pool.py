"""asyncpg connections of one event loop, by lane.

Unlike a general pool, this one spends no extra round trip on resetting a session: a verb takes the
most recently used connection and gives it back. A connection on which an error was raised is never
reused: it may be in a broken transaction, hold a stale plan or belong to a demoted server, and such
errors are rare enough for that to be cheap. A verb that refuses what it was asked for, as one that
finds a key held, does so between two statements: after it, the transaction is rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from pulsed.store.postgres import hosts as silence
from pulsed.store.postgres.address import PostgresOptions
from pulsed.store.postgres.asyncpg_connection import AsyncpgConnection, connect
from pulsed.store.postgres.asyncpg_lane import LanePool, Slots, keep
from pulsed.store.postgres.asyncpg_overdue import Overdue, TimeLimit
from pulsed.store.postgres.confirm import CONFIRM, found_done
from pulsed.store.postgres.errors import DRIVER_ERRORS, is_refusal, lost_the_server
from pulsed.store.postgres.hosts import Hosts
from pulsed.store.postgres.session import ROLLBACK, Lane, Sessions, lane_of
from pulsed.store.postgres.values import arguments
from pulsed.store.verbs.script import FollowUp, Verb

T = TypeVar("T")
Clock: TypeAlias = Callable[[], datetime]


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
        self._overdue = Overdue()
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
            self._overdue.stop()
            await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def close(self) -> None:
        """Close all connections."""
        await self._life.aclose()

    def close_soon(self) -> None:
        """Schedule closing all connections, from another thread or from synchronous code."""
        with suppress(RuntimeError):  # the loop is closed, and so are the connections
            self.loop.call_soon_threadsafe(self._start_closing)

    def _start_closing(self) -> None:
        keep(self.loop.create_task(self.close()))

    def connections(self) -> list[AsyncpgConnection]:
        """Return every open connection."""
        return [connection for lane in self._lanes.values() for connection in lane.opened]

    def has_session(self, pid: int) -> bool:
        """Whether one of the pool's sessions has this process id at the server."""
        for lane in self._lanes.values():
            for connection in lane.opened:
                if connection.server_pid == pid:
                    return True
        return False

    async def run(self, verb: Verb[T]) -> T:
        """Run a verb on a connection of its lane; returns its value."""
        pool = self._lanes[lane_of(verb)]
        limit = TimeLimit(self._sessions.client_timeout(verb), is_urgent=verb.urgent)
        connection = pool.take_ready() or await self._connected(pool, limit)
        try:
            self._overdue.watch(connection)
            answer = await self._answering(connection, verb, limit)
        except BaseException as error:
            await self._failed(pool, connection, verb, error, limit)
            raise
        finally:
            self._overdue.in_flight.discard(connection)
        follow_up = verb.follow_up
        if follow_up is None:
            pool.slots.give_back()
            pool.give_back(connection)
        elif follow_up.is_awaited:
            await self._follow_up(pool, connection, follow_up)
        else:
            keep(self.loop.create_task(self._follow_up(pool, connection, follow_up)))
            await asyncio.sleep(0)  # so that it is sent before the caller goes on
        return answer

    async def _connected(self, pool: LanePool, limit: TimeLimit) -> AsyncpgConnection:
        """Wait for a slot of a lane, and open a connection if none is idle then."""
        async with asyncio.timeout(limit.left()):
            await pool.slots.take()
        try:
            return pool.take_idle() or await pool.open(limit.left())
        except BaseException as error:
            pool.slots.give_back()
            if isinstance(error, Exception):
                self._note(error)
            raise

    async def _failed(
        self,
        pool: LanePool,
        connection: AsyncpgConnection,
        verb: Verb[Any],
        error: BaseException,
        limit: TimeLimit,
    ) -> None:
        """Drop the connection of a verb that raised, unless it is as good as new; free its slot."""
        try:
            if is_refusal(error) and await self._rolled_back(pool, connection, verb, limit):
                pool.give_back(connection)
                return
            if isinstance(error, asyncio.CancelledError):
                await pool.drop_cancelled(connection)
                return
            pool.drop(connection)
            self._note(error)
            if connection.is_overdue:
                raise TimeoutError(f"no answer within {limit.seconds:g} s") from error
        finally:
            pool.slots.give_back()

    async def _rolled_back(
        self, pool: LanePool, connection: AsyncpgConnection, verb: Verb[Any], limit: TimeLimit
    ) -> bool:
        """End the transaction of a verb that refuses, if it has one; whether that succeeded."""
        if self._sessions.opening(verb) is None:
            return True
        try:
            await connection.execute(ROLLBACK, timeout=limit.next_answer(connection))
        except DRIVER_ERRORS:
            return False
        except BaseException:
            await pool.drop_cancelled(connection)
            raise
        return True

    def _answering(
        self, connection: AsyncpgConnection, verb: Verb[T], limit: TimeLimit
    ) -> Coroutine[Any, Any, T]:
        """Return what runs a verb's statements, in a transaction if it needs one."""
        opening = self._sessions.opening(verb)
        if opening is None:
            answering = self._drive(connection, verb, limit)
        else:
            answering = self._in_transaction(connection, verb, limit, opening)
        if verb.urgent or not self.hosts.several:
            return answering
        return self._watched(connection, answering)

    async def _watched(self, connection: AsyncpgConnection, answering: Coroutine[Any, Any, T]) -> T:
        with self.watched(connection):
            return await answering

    async def _in_transaction(
        self, connection: AsyncpgConnection, verb: Verb[T], limit: TimeLimit, opening: str
    ) -> T:
        await connection.execute(opening, timeout=limit.next_answer(connection))
        answer = await self._drive(connection, verb, limit)
        closing = self._sessions.closing(verb)
        await connection.execute(closing, timeout=limit.next_answer(connection))
        return answer

    async def _drive(self, connection: AsyncpgConnection, verb: Verb[T], limit: TimeLimit) -> T:
        """Run a verb's statements: ``adrive`` without a coroutine between it and the driver's."""
        script, clock = verb.script(), self._clock
        try:
            statement = next(script)
            while True:
                values = arguments(statement, clock)
                rows = await connection.ask(statement.sql, values, limit.next_answer(connection))
                if found_done(verb, statement, rows):
                    await connection.ask(CONFIRM.sql, (), limit.next_answer(connection))
                statement = script.send(rows)
        except StopIteration as finished:
            value: T = finished.value
            return value

    async def _follow_up(
        self, pool: LanePool, connection: AsyncpgConnection, follow_up: FollowUp
    ) -> None:
        """Run what follows a commit, and free its connection and slot."""
        statement = follow_up.statement
        self._overdue.watch(connection)
        try:
            within = TimeLimit(self._sessions.answer_within).next_answer(connection)
            await connection.ask(statement.sql, arguments(statement, self._clock), within)
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
            self._overdue.in_flight.discard(connection)
            pool.slots.give_back()

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

    def slot(self, lane: Lane) -> Slots:
        """Return the slots of a lane, for a connection that is opened elsewhere."""
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

"""The store for many machines: PostgreSQL, through asyncpg in event loops and psycopg in threads.

Workers and the ``a…`` methods use the async side, with one pool for each event loop; blocking
methods run in the calling thread. Both run the same verbs, and neither depends on the other.
"""

from __future__ import annotations

import asyncio
import atexit
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

from pulsed.errors import MissingDriver
from pulsed.extras import install_command
from pulsed.store.submitter import Submitter

try:
    import asyncpg  # noqa: F401 - so that a missing driver is reported with a helpful message
    import psycopg
except ImportError as error:
    raise MissingDriver(
        f"PostgreSQL needs asyncpg and psycopg ({error}): {install_command('postgres')}"
    ) from error

from pulsed.model.job import Lease, NewJob
from pulsed.model.outcome import Report
from pulsed.store.blocking import calling_loop, is_blocking, run_blocking
from pulsed.store.fork import ForkAware, watch_forks
from pulsed.store.listener import Listener, Wake
from pulsed.store.per_loop import PerLoop
from pulsed.store.postgres import check as postgres_check
from pulsed.store.postgres.address import PostgresAddress, PostgresOptions
from pulsed.store.postgres.asyncpg_connection import connect
from pulsed.store.postgres.asyncpg_pool import LoopPool
from pulsed.store.postgres.dialect import PostgresDialect
from pulsed.store.postgres.engine import PostgresEngine
from pulsed.store.postgres.errors import DRIVER_ERRORS, translate
from pulsed.store.postgres.hosts import Hosts
from pulsed.store.postgres.joined import JoinedPostgres
from pulsed.store.postgres.listen import ChannelListener, Polling, running
from pulsed.store.postgres.notify import Notifier
from pulsed.store.postgres.psycopg_connection import Connector
from pulsed.store.postgres.psycopg_pool import ThreadPool
from pulsed.store.postgres.same_database import SameDatabase, identity
from pulsed.store.postgres.session import Lane, Sessions
from pulsed.store.postgres.step_transaction import async_transaction, plain_transaction
from pulsed.store.results import Partly, Submitted
from pulsed.store.sql_store.store import SqlStore, queues_due
from pulsed.store.verbs import locked
from pulsed.store.verbs.script import Verb
from pulsed.store.workflows import Transaction

__all__ = ["PostgresOptions", "PostgresStore"]

T = TypeVar("T")


class PostgresStore(SqlStore, ForkAware):
    """Jobs in a PostgreSQL database."""

    def __init__(
        self,
        url: str,
        options: PostgresOptions | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.postgres_options = options = options or PostgresOptions()
        dialect = PostgresDialect(options.schema, own_clock=clock is not None)
        super().__init__(PostgresEngine(dialect), options, clock=clock)
        self.address = PostgresAddress.parse(url)
        self._sessions = Sessions(options)
        self._connector = Connector(self.address, options, self._sessions)
        self._listen_at = self._where_to_listen()
        self._threads = ThreadPool(self._connector, options, self._sessions, clock)
        self._loops: PerLoop[LoopPool] = PerLoop()
        self._listeners: list[tuple[set[str], Wake]] = []
        self._channels: list[ChannelListener] = []
        self.channel = f"pulsed_{options.schema}" if options.schema else "pulsed"
        self._notifier = Notifier(self.channel, self.perform, thread_ends=self._threads.thread_ends)
        self.same_database = SameDatabase(self.address, lambda: self.perform(identity()))
        watch_forks(self)
        weakref.finalize(self, _let_go, self._loops, self._threads)
        _stores.add(self)

    def pause(self, give_up_at: float) -> None:
        self._connector.gate.shut(give_up_at)

    def resume(self) -> None:
        self._connector.gate.open()

    def forget_inherited(self) -> list[object]:
        """Open everything anew in a forked child."""
        self._connector.forget_inherited()
        inherited = self._loops.forget_all()
        held = [connection for pool in inherited for connection in pool.connections()]
        channels = self._channels
        self._listeners, self._channels = [], []
        self._notifier.forget_inherited()
        return [*inherited, *held, *channels, *self._threads.forget_inherited()]

    # -- running verbs --------------------------------------------------------------------------

    async def perform(self, verb: Verb[T]) -> T:
        try:
            loop = calling_loop()
            if loop is None:
                return self._threads.run(verb)
            pool = self._loops.of(loop, self._new_pool)
            if not pool.is_open:
                await pool.open()
            return await pool.run(verb)
        except DRIVER_ERRORS as error:
            raise translate(error, verb.action, self.address.where) from error

    async def _submit(self, jobs: Sequence[NewJob], verb: Verb[Submitted]) -> Submitted:
        """Insert jobs, and have the notification follow the commit at once, on its connection.

        Workers of this process are woken first, if there are any, and so are those behind a pooler.
        """
        if not jobs or self._listeners or not self.postgres_options.prepared_statements:
            return await super()._submit(jobs, verb)
        queues = queues_due(jobs)
        told, is_burst = self._notifier.take(queues)
        if told:
            verb.follow_up = self._notifier.follow_up(told, is_burst=is_burst)
        try:
            submitted = await self.run(verb)
        except BaseException:  # they may be stored, and the notification may be one that was owed
            if told:
                self._notifier.owe(told)
            raise
        if queues != told:
            self._notifier.owe(queues - told)
        return submitted

    async def hint(self, queues: set[str]) -> None:
        if self._wake_own(queues) and not is_blocking():
            await asyncio.sleep(0)  # the claim is sent before the caller goes on
            self._notifier.announce_later(queues)
            return
        if self._listeners and not is_blocking():
            # Workers of this process go first: they wake in one turn of the loop, and begin to
            # claim in the next. Other processes are notified while that claim is in flight.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await self._notifier.announce(queues)

    def owe_hint(self, queues: set[str]) -> None:
        self._wake_own(queues)
        self._notifier.owe(queues)

    def _wake_own(self, queues: set[str]) -> bool:
        """Wake the workers of this process; returns whether one of them is about to claim."""
        is_claiming = False
        for wanted, wake in list(self._listeners):
            if (names := wanted & queues) and wake(names):
                is_claiming = True
        return is_claiming

    async def settle_free(self, reports: Sequence[Report]) -> Partly:
        partly, told = await self.run(locked.settle_free(self.engine, reports))
        await self.follow(told)
        await self.hint_freed([each for each in reports if each.lease not in partly.locked])
        return partly

    def joined(self, connection: Any) -> Submitter:
        return JoinedPostgres(connection, self)

    @asynccontextmanager
    async def step_transaction(self, lease: Lease, *, plain: bool) -> AsyncIterator[Transaction]:
        pool = await self._pool_of_this_loop()
        if plain:
            async with plain_transaction(self, pool, lease) as blocking:
                yield blocking
        else:
            async with async_transaction(self, pool, lease) as transaction:
                yield transaction

    def connect_for_a_step(self) -> psycopg.Connection[Any]:
        """Open a connection for a plain function's own writes."""
        return self._connector.open(Lane.STEP, within=self.postgres_options.connect_timeout)

    async def _pool_of_this_loop(self) -> LoopPool:
        pool = self._loops.here(self._new_pool)
        if not pool.is_open:
            await pool.open()
        return pool

    def _new_pool(self) -> LoopPool:
        return LoopPool(self._connector.hosts, self.postgres_options, self._sessions, self.clock)

    # -- life -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def listen(self, queues: Sequence[str], wake: Wake) -> AsyncIterator[Listener]:
        loop = asyncio.get_running_loop()
        wanted = set(queues)

        def wake_loop(names: Collection[str] | None) -> bool | None:
            if asyncio._get_running_loop() is loop:  # noqa: SLF001 - there may be none
                return wake(names)
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(wake, names)
            return False

        entry = (wanted, wake_loop)
        self._listeners.append(entry)
        try:
            async with self._hearing(wanted, wake) as listener:
                yield listener
        finally:
            if entry in self._listeners:
                self._listeners.remove(entry)

    @asynccontextmanager
    async def _hearing(self, queues: set[str], wake: Wake) -> AsyncIterator[Listener]:
        hosts, options = self._listen_at, self.postgres_options
        if hosts is None:
            yield Polling(queues)
            return
        channel = ChannelListener(
            lambda: connect(hosts, options, self._sessions, Lane.LISTEN),
            self.channel,
            queues,
            wake,
            is_own=(await self._pool_of_this_loop()).has_session,
            on_change=lambda connected: self.publish_listening(connected=connected),
        )
        self._channels.append(channel)
        try:
            async with running(channel):
                yield channel
        finally:
            if channel in self._channels:
                self._channels.remove(channel)

    def _where_to_listen(self) -> Hosts | None:
        options = self.postgres_options
        if options.listen_url is not None:
            return Hosts(PostgresAddress.parse(options.listen_url))
        return self._connector.hosts if options.prepared_statements else None

    async def check(self) -> Mapping[str, str]:
        applied = await self.applied_migrations()
        answers = await self._retried(postgres_check.check(self.dialect))
        return answers | {
            "schema": str(max((row.version for row in applied), default=0)),
            "wake_up": "polling" if self._listen_at is None else "LISTEN/NOTIFY",
        }

    def thread_ends(self) -> None:
        self._threads.thread_ends()

    async def aclose(self) -> None:
        await self._notifier.flush()
        if is_blocking():
            self._notifier.wait_until_sent()
        elif (pool := self._loops.forget_here()) is not None:
            await asyncio.to_thread(self._notifier.wait_until_sent)
            await pool.close()
        self._threads.close()
        self._connector.hosts.close()


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for store in list(_stores):
        run_blocking(store.aclose())


def _let_go(loops: PerLoop[LoopPool], threads: ThreadPool) -> None:
    """Close the connections of a store that was garbage collected."""
    threads.close()
    for pool in loops.forget_all():
        pool.close_soon()

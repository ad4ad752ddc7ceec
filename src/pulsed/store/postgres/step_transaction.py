"""A step's transaction on PostgreSQL: asyncpg for async steps, psycopg for plain functions.

Its session has the server's own settings, not those for pulsed's hot statements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
from asyncpg.transaction import Transaction as AsyncpgTransaction
from psycopg import RawCursor

from pulsed.errors import LeaseLost, StorageError
from pulsed.model.job import Lease
from pulsed.model.step import Checkpoint
from pulsed.store.postgres.asyncpg_connection import AsyncpgConnection, changed
from pulsed.store.postgres.asyncpg_pool import LoopPool
from pulsed.store.postgres.errors import (
    DRIVER_ERRORS,
    lost_the_server,
    may_have_lost_its_session,
    translate,
)
from pulsed.store.postgres.session import URGENT_WITHIN, Lane
from pulsed.store.postgres.values import arguments, texts
from pulsed.store.sql.statement import Statement
from pulsed.store.step_thread import StepThread
from pulsed.store.verbs.checkpoints import recording, was_recorded
from pulsed.store.workflows import CommitUnknown, Transaction

if TYPE_CHECKING:
    from pulsed.store.postgres.store import PostgresStore


ENDED = "The step has ended its transaction itself. Leave COMMIT and ROLLBACK to pulsed."


class PostgresTransaction(Transaction):
    """``BEGIN`` … ``COMMIT``, with the checkpoint as the last statement."""

    def __init__(self, store: PostgresStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease

    async def commit(self, checkpoint: Checkpoint) -> None:
        statement = recording(self._store.engine, self._lease, checkpoint)
        try:
            if await self._count(statement) != 1:
                raise LeaseLost.of(self._lease.job_id)
        except DRIVER_ERRORS as error:
            raise translate(error, "step", self._store.address.where) from error
        try:
            await self._end()
        except DRIVER_ERRORS as error:
            translated = translate(error, "step", self._store.address.where)
            if lost_the_server(error):
                raise CommitUnknown(str(translated)) from error
            raise translated from error

    async def was_committed(self, checkpoint: Checkpoint) -> bool:
        verb = was_recorded(self._store.engine, self._lease, checkpoint.key)
        return await self._store.run(verb)

    async def was_lost(self, error: Exception) -> bool:
        if not may_have_lost_its_session(error):
            return False
        try:
            await self._probe()
        except DRIVER_ERRORS as answer:
            return lost_the_server(answer) and self._is_closed()
        return False  # the step lost another connection, of its own

    @abstractmethod
    async def _count(self, statement: Statement) -> int:
        """Run a statement in the transaction; returns how many rows it wrote."""

    @abstractmethod
    async def _end(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    async def _probe(self) -> None:
        """Run a trivial query, which fails if the session is lost."""

    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether the driver knows that the session is over."""


class AsyncTransaction(PostgresTransaction):
    """On asyncpg, for async steps."""

    def __init__(
        self,
        store: PostgresStore,
        lease: Lease,
        pool: LoopPool,
        connection: AsyncpgConnection,
        transaction: AsyncpgTransaction,
    ) -> None:
        super().__init__(store, lease)
        self._pool = pool
        self._connection = connection
        self._transaction = transaction

    @property
    def connection(self) -> asyncpg.Connection:
        return self._connection

    async def _count(self, statement: Statement) -> int:
        if not self._connection.is_in_transaction():
            raise StorageError(ENDED)
        values = arguments(statement, self._store.clock)
        with self._pool.watched(self._connection):
            return changed(await self._connection.execute(statement.sql.text, *values))

    async def _end(self) -> None:
        with self._pool.watched(self._connection):
            await self._transaction.commit()

    async def _probe(self) -> None:
        await self._connection.execute("SELECT 1", timeout=URGENT_WITHIN)

    def _is_closed(self) -> bool:
        return bool(self._connection.is_closed())


class PlainTransaction(PostgresTransaction):
    """On psycopg, for plain functions."""

    def __init__(
        self,
        store: PostgresStore,
        lease: Lease,
        thread: StepThread,
        connection: psycopg.Connection[Any],
        transaction: psycopg.Transaction,
    ) -> None:
        super().__init__(store, lease)
        self._thread = thread
        self._connection = connection
        self._transaction = transaction

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._connection

    async def _count(self, statement: Statement) -> int:
        values = texts(arguments(statement, self._store.clock))
        return await self._thread.call(self._execute, statement.sql.text, values)

    def _execute(self, text: str, values: list[str | None]) -> int:
        if self._connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise StorageError(ENDED)
        return RawCursor(self._connection).execute(text, values).rowcount

    async def _end(self) -> None:
        await self._thread.call(self._transaction.__exit__, None, None, None)

    async def _probe(self) -> None:
        await self._thread.call(self._connection.execute, "SELECT 1")

    def _is_closed(self) -> bool:
        return self._connection.closed

    async def revoke(self) -> None:
        """Cancel the statement that its thread waits for, which releases its locks."""
        await self._thread.call(lambda: self._connection.cancel_safe(timeout=URGENT_WITHIN))


@asynccontextmanager
async def async_transaction(
    store: PostgresStore, pool: LoopPool, lease: Lease
) -> AsyncIterator[AsyncTransaction]:
    """Open a transaction on asyncpg; it is rolled back unless committed."""
    async with AsyncExitStack() as until_the_end:
        try:
            connection = await until_the_end.enter_async_context(pool.borrowed(Lane.STEP))
            transaction = connection.transaction(isolation="read_committed")
            await transaction.start()
        except DRIVER_ERRORS as error:
            raise translate(error, "step", store.address.where) from error
        yield AsyncTransaction(store, lease, pool, connection, transaction)


@asynccontextmanager
async def plain_transaction(
    store: PostgresStore, pool: LoopPool, lease: Lease
) -> AsyncIterator[PlainTransaction]:
    """Open a transaction on psycopg; it is rolled back unless committed."""
    thread = StepThread()
    try:
        async with pool.slot(Lane.STEP):
            opened = await thread.open(lambda: _begin(store), lambda opened: opened[0].close())
            try:
                yield PlainTransaction(store, lease, thread, *opened)
            finally:
                await thread.call(opened[0].close)
    finally:
        thread.end()


def _begin(store: PostgresStore) -> tuple[psycopg.Connection[Any], psycopg.Transaction]:
    try:
        connection = store.connect_for_a_step()
        try:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            # Not connection.transaction(), a generator: one that is never committed would be
            # closed by the garbage collector, at any time and beside the connection's own thread.
            transaction = psycopg.Transaction(connection)
            transaction.__enter__()
        except BaseException:
            connection.close()
            raise
    except DRIVER_ERRORS as error:
        raise translate(error, "step", store.address.where) from error
    return connection, transaction

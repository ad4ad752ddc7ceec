"""Submitting through the caller's own connection, inside the caller's own transaction.

It never begins, commits, retries or notifies: the job appears if and when the caller commits. A
connection in autocommit mode and outside of a transaction is refused: the job would survive the
caller's rollback. So is one to another database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import asyncpg.pool
import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pulsed.errors import ConfigError
from pulsed.model.job import NewJob
from pulsed.store.blocking import is_blocking
from pulsed.store.postgres.asyncpg_connection import changed
from pulsed.store.postgres.confirm import aconfirming, confirming
from pulsed.store.postgres.errors import DRIVER_ERRORS, translate
from pulsed.store.postgres.psycopg_pool import cursor_call
from pulsed.store.postgres.same_database import identity
from pulsed.store.postgres.values import arguments, texts
from pulsed.store.results import Submitted
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.submitter import Submitter, outside_transaction
from pulsed.store.verbs.script import Verb, adrive, drive
from pulsed.store.verbs.submit import submit

if TYPE_CHECKING:
    from pulsed.store.postgres.store import PostgresStore

T = TypeVar("T")

ASYNCPG = (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)
_KINDS = (
    "Pass a psycopg.Connection, or a Session or Connection of SQLAlchemy, to blocking methods; an "
    "asyncpg.Connection, a psycopg.AsyncConnection, or an AsyncSession or AsyncConnection of "
    "SQLAlchemy to their a… twins. Nothing was stored."
)


class JoinedPostgres(Submitter):
    """Submits through a connection of the caller, whatever its row and cursor factories."""

    def __init__(self, connection: Any, store: PostgresStore) -> None:
        if not isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection, *ASYNCPG)):
            raise ConfigError(
                f"using(conn=...) on a PostgreSQL app cannot use a {_type_of(connection)}. {_KINDS}"
            )
        self._connection: Any = connection
        self._store = store

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        if not jobs:
            return Submitted(0)
        self._check_mode()
        _check_transaction(self._connection)
        verb = submit(self._store.engine, jobs)
        try:
            await self._store.same_database.check(self._connection, lambda: self._run(identity()))
            return await self._run(verb)
        except DRIVER_ERRORS as error:
            raise translate(error, verb.action, "database of your connection") from error

    async def _run(self, verb: Verb[T]) -> T:
        if isinstance(self._connection, psycopg.Connection):
            return drive(verb.script(), confirming(verb, self._on_psycopg))
        if isinstance(self._connection, psycopg.AsyncConnection):
            return await adrive(verb.script(), aconfirming(verb, self._on_async_psycopg))
        return await adrive(verb.script(), aconfirming(verb, self._on_asyncpg))

    def _on_psycopg(self, statement: Statement) -> Rows:
        cursor = RawCursor(self._connection, row_factory=tuple_row)
        cursor.execute(*cursor_call(statement, texts(self._arguments(statement))))
        if statement.sql.counted:
            return [(cursor.rowcount,)]
        return cursor.fetchall() if cursor.rownumber is not None else []

    async def _on_async_psycopg(self, statement: Statement) -> Rows:
        cursor = AsyncRawCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(*cursor_call(statement, texts(self._arguments(statement))))
        if statement.sql.counted:
            return [(cursor.rowcount,)]
        return await cursor.fetchall() if cursor.rownumber is not None else []

    async def _on_asyncpg(self, statement: Statement) -> Rows:
        text, values = statement.sql.text, self._arguments(statement)
        if statement.sql.counted:
            return [(changed(await self._connection.execute(text, *values)),)]
        rows: Rows = await self._connection.fetch(text, *values)
        return rows

    def _arguments(self, statement: Statement) -> list[Any]:
        return arguments(statement, self._store.clock)

    def _check_mode(self) -> None:
        """Refuse a connection of the other mode: it would block the loop, or need one."""
        method = "A blocking method" if is_blocking() else "An a… method"
        if is_blocking() != isinstance(self._connection, psycopg.Connection):
            raise ConfigError(f"{method} cannot use a {_type_of(self._connection)}. {_KINDS}")


def _check_transaction(connection: Any) -> None:
    if isinstance(connection, ASYNCPG):
        if not connection.is_in_transaction():
            raise outside_transaction("`async with connection.transaction():`")
    elif connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise outside_transaction("`with connection.transaction():`, or open it without autocommit")


def _type_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"

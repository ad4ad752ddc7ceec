"""Callers with a connection of their own, of every library that ``using(conn=…)`` accepts.

They all do the same: begin as their library does, store a job through it, run a statement, commit
or roll back. A test of one of them is a test of all.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

import aiosqlite
import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from pulsed import Pulse
from pulsed.client.jobtype import JobType
from pulsed.store.blocking import run_blocking

T = TypeVar("T")


class Caller(ABC):
    """A connection of one library, blocking unless it says otherwise."""

    is_async: ClassVar[bool] = False
    tells_commit: ClassVar[bool] = False
    """Whether the library tells when it has committed."""
    conn: Any
    """What is passed as ``conn=``."""

    @abstractmethod
    async def open(self, url: str, *, autocommit: bool = False) -> None:
        """Connect; with autocommit, so that no transaction is ever begun."""

    @abstractmethod
    async def execute(self, sql: str) -> None:
        """Run a statement in the caller's transaction."""

    @abstractmethod
    async def end(self, how: str) -> None:
        """Commit or roll back."""

    @abstractmethod
    async def close(self) -> None: ...

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A nested transaction, rolled back by an exception."""
        await self.execute("SAVEPOINT here")
        try:
            yield
        except BaseException:
            await self.execute("ROLLBACK TO SAVEPOINT here")
            raise
        await self.execute("RELEASE SAVEPOINT here")

    async def do(self, call: Coroutine[Any, Any, T]) -> T:
        """Await an ``a…`` method, or run it as its blocking twin would."""
        return await call if self.is_async else run_blocking(call)

    async def enqueue(self, job: JobType[Any, Any], *args: Any) -> Any:
        return await self.do(job.using(conn=self.conn).aenqueue(*args))


# -- drivers --------------------------------------------------------------------------------------


class Sqlite3(Caller):
    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.conn = sqlite3.connect(
            path_of(url), isolation_level=None if autocommit else "DEFERRED"
        )
        self.conn.row_factory = sqlite3.Row

    async def execute(self, sql: str) -> None:
        if not self.conn.in_transaction:
            self.conn.execute("BEGIN")
        self.conn.execute(sql)

    async def end(self, how: str) -> None:
        getattr(self.conn, how)()

    async def close(self) -> None:
        self.conn.close()


class Aiosqlite(Caller):
    is_async = True

    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.conn = await aiosqlite.connect(
            path_of(url), isolation_level=None if autocommit else "DEFERRED"
        )
        self.conn.row_factory = sqlite3.Row

    async def execute(self, sql: str) -> None:
        if not self.conn.in_transaction:
            await self.conn.execute("BEGIN")
        await self.conn.execute(sql)

    async def end(self, how: str) -> None:
        await getattr(self.conn, how)()

    async def close(self) -> None:
        await self.conn.close()


class Psycopg(Caller):
    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.conn = psycopg.connect(
            url, autocommit=autocommit, row_factory=dict_row, cursor_factory=psycopg.ClientCursor
        )

    async def execute(self, sql: str) -> None:
        self.conn.execute(sql)

    async def end(self, how: str) -> None:
        getattr(self.conn, how)()

    async def close(self) -> None:
        self.conn.close()


class AsyncPsycopg(Caller):
    is_async = True

    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.conn = await psycopg.AsyncConnection.connect(
            url, autocommit=autocommit, row_factory=dict_row
        )

    async def execute(self, sql: str) -> None:
        await self.conn.execute(sql)

    async def end(self, how: str) -> None:
        await getattr(self.conn, how)()

    async def close(self) -> None:
        await self.conn.close()


class Asyncpg(Caller):
    is_async = True

    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.conn = await asyncpg.connect(url)
        self.transaction = self.conn.transaction()
        if not autocommit:
            await self.transaction.start()

    async def execute(self, sql: str) -> None:
        await self.conn.execute(sql)

    async def end(self, how: str) -> None:
        await getattr(self.transaction, how)()

    async def close(self) -> None:
        await self.conn.close()


class PooledAsyncpg(Asyncpg):
    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        self.conn = await self.pool.acquire()
        self.transaction = self.conn.transaction()
        if not autocommit:
            await self.transaction.start()

    async def close(self) -> None:
        await self.pool.release(self.conn)
        await self.pool.close()


# -- SQLAlchemy -----------------------------------------------------------------------------------


class OfSqlAlchemy(Caller):
    """A blocking session or connection, over pysqlite or psycopg."""

    def __init__(self, driver: str, make: Callable[[Any], Any]) -> None:
        self.driver = driver
        self.make = make

    @property
    def tells_commit(self) -> bool:  # type: ignore[override]
        return hasattr(self.conn, "flush")

    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.engine = create_engine(self.address(url), poolclass=NullPool)
        if autocommit:
            self.engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self.conn = self.make(self.engine)

    def address(self, url: str) -> str:
        return url.replace(url.partition("://")[0], self.driver, 1)

    async def execute(self, sql: str) -> None:
        self.conn.execute(text(sql))

    async def end(self, how: str) -> None:
        getattr(self.conn, how)()

    async def close(self) -> None:
        self.conn.close()
        self.engine.dispose()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        with self.conn.begin_nested():
            yield


class OfAsyncSqlAlchemy(OfSqlAlchemy):
    """An async session or connection, over aiosqlite, psycopg or asyncpg."""

    is_async = True

    async def open(self, url: str, *, autocommit: bool = False) -> None:
        self.async_engine = create_async_engine(self.address(url), poolclass=NullPool)
        if autocommit:
            self.async_engine = self.async_engine.execution_options(isolation_level="AUTOCOMMIT")
        made = self.make(self.async_engine)
        self.conn = await made if hasattr(made, "__await__") else made

    async def execute(self, sql: str) -> None:
        await self.conn.execute(text(sql))

    async def end(self, how: str) -> None:
        await getattr(self.conn, how)()

    async def close(self) -> None:
        await self.conn.close()
        await self.async_engine.dispose()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.conn.begin_nested():
            yield


def _scoped(engine: Any) -> Any:
    return scoped_session(sessionmaker(engine))


def _async_scoped(engine: Any) -> Any:
    return async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)


def _connected(engine: Any) -> Any:
    return engine.connect()


PYSQLITE, AIOSQLITE = "sqlite+pysqlite", "sqlite+aiosqlite"
PSYCOPG, ASYNCPG = "postgresql+psycopg", "postgresql+asyncpg"

SQLITE: dict[str, Callable[[], Caller]] = {
    "sqlite3": Sqlite3,
    "aiosqlite": Aiosqlite,
    "Session-pysqlite": lambda: OfSqlAlchemy(PYSQLITE, Session),
    "scoped_session-pysqlite": lambda: OfSqlAlchemy(PYSQLITE, _scoped),
    "Connection-pysqlite": lambda: OfSqlAlchemy(PYSQLITE, _connected),
    "AsyncSession-aiosqlite": lambda: OfAsyncSqlAlchemy(AIOSQLITE, AsyncSession),
    "AsyncConnection-aiosqlite": lambda: OfAsyncSqlAlchemy(AIOSQLITE, _connected),
}
POSTGRES: dict[str, Callable[[], Caller]] = {
    "psycopg": Psycopg,
    "psycopg-async": AsyncPsycopg,
    "asyncpg": Asyncpg,
    "asyncpg-pool": PooledAsyncpg,
    "Session-psycopg": lambda: OfSqlAlchemy(PSYCOPG, Session),
    "Connection-psycopg": lambda: OfSqlAlchemy(PSYCOPG, _connected),
    "AsyncSession-psycopg": lambda: OfAsyncSqlAlchemy(PSYCOPG, AsyncSession),
    "AsyncConnection-psycopg": lambda: OfAsyncSqlAlchemy(PSYCOPG, _connected),
    "AsyncSession-asyncpg": lambda: OfAsyncSqlAlchemy(ASYNCPG, AsyncSession),
    "async_scoped_session-asyncpg": lambda: OfAsyncSqlAlchemy(ASYNCPG, _async_scoped),
    "AsyncConnection-asyncpg": lambda: OfAsyncSqlAlchemy(ASYNCPG, _connected),
}


def path_of(url: str) -> str:
    """Return the file of an SQLite URL."""
    return url.removeprefix("sqlite:///")


# -- a process that dies before its commits -------------------------------------------------------


def die_before_commit(callers: Sequence[tuple[str, str]]) -> None:
    """Enqueue through each of these callers on its URL, say so, and wait for the end.

    Started by ``python -m tests.support.callers NAME URL ...``.
    """

    async def main() -> None:
        opened = []
        for name, url in callers:
            caller = {**SQLITE, **POSTGRES}[name]()
            await caller.open(url)
            app = Pulse(url)
            opened += [caller, app]  # nothing is closed, and nothing rolled back
            await caller.enqueue(app.job(pack), 1)
        print("uncommitted", len(callers), flush=True)  # noqa: T201
        signal.pause()

    asyncio.run(main())


def pack(order: int) -> None: ...


if __name__ == "__main__":
    die_before_commit(list(zip(sys.argv[1::2], sys.argv[2::2], strict=True)))

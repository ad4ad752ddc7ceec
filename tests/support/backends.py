"""The databases that the one behavioural suite runs over; each only says how to open a store.

A backend is one database. ``open()`` makes a store on it, as one more process would;
``execute()`` goes around every store, straight to the tables.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pulsed.model.backoff import RetryPolicy
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.connections import SqliteOptions
from pulsed.store.sqlite.store import SqliteStore
from tests.support.clock import Clock
from tests.support.kept_sessions import kept_session
from tests.support.servers import ServerThread
from tests.support.spare_sessions import next_test
from tests.support.waiting import PATIENCE, pauses

AT_ONCE = RetryPolicy(initial=0, max=0)
"""Storage retry that does not wait."""
AT_ONCE_OPTIONS: dict[str, Any] = {"retry": AT_ONCE, "dequeue_retry": AT_ONCE}
QUICK = RemoteOptions(**AT_ONCE_OPTIONS)
"""The same, for a store behind a server."""

LISTENERS = (
    "SELECT pid, application_name, backend_start FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'pulsed/listen'"
)
"""A query for the sessions on a PostgreSQL database that each worker and each server has."""

KEPT = {"pulse_meta", "pulse_migrations"}
"""Tables that are not emptied between tests."""


class Backend(ABC):
    """One database."""

    engine: str
    tables: str
    """A query for the names of our tables."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    @abstractmethod
    def open(self, *, own_clock: bool = True, **options: Any) -> SqlStore:
        """Return a new store on this database, on the test's clock unless told otherwise."""

    @property
    @abstractmethod
    def app_url(self) -> str:
        """What an app is given to use this database."""

    @abstractmethod
    def connect(self) -> Any:
        """Return a connection of the caller's own, in autocommit mode."""

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A connection in autocommit mode for a moment, perhaps one that was used before."""
        with closing(self.connect()) as connection:
            yield connection

    @abstractmethod
    def literal(self, value: UUID | None) -> str:
        """Write an id into a statement."""

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement past all stores; returns its rows, if it has any."""
        with self.session() as connection:
            cursor = connection.execute(sql)
            return [] if cursor.description is None else cursor.fetchall()

    def row(self, job_id: UUID) -> dict[str, Any]:
        """Read a job's row, every column as the database has it."""
        with self.session() as connection:
            cursor = connection.execute(
                f"SELECT * FROM pulse_jobs WHERE id = {self.literal(job_id)}"
            )
            names = [column[0] for column in cursor.description]
            (values,) = cursor.fetchall()
        return dict(zip(names, values, strict=True))

    def empty(self) -> None:
        """Remove what tests left; DELETE takes a millisecond where TRUNCATE takes thirty.

        Nothing, if there are no tables yet.
        """
        with self.session() as connection:
            found = {table for (table,) in connection.execute(self.tables)}
            if found:
                deletes = [f"DELETE FROM {table}" for table in sorted(found - KEPT)]
                no_turn = "UPDATE pulse_meta SET prune_after = NULL WHERE prune_after IS NOT NULL"
                self.transact(connection, [*deletes, no_turn])

    @abstractmethod
    def transact(self, connection: Any, statements: list[str]) -> None:
        """Run these in a transaction."""


class SqliteBackend(Backend):
    engine = "sqlite"
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'pulse_*'"

    def __init__(self, path: Path, clock: Clock, *, with_tables: bool = False) -> None:
        super().__init__(clock)
        self.path = path
        self.with_tables = with_tables
        """Whether the first store that is opened finds its tables."""

    def open(self, *, own_clock: bool = True, **options: Any) -> SqliteStore:
        self._prepare()
        options = AT_ONCE_OPTIONS | options
        return SqliteStore(
            self.path, SqliteOptions(**options), clock=self.clock if own_clock else None
        )

    @property
    def app_url(self) -> str:
        self._prepare()
        return f"sqlite:///{self.path}"

    def _prepare(self) -> None:
        if self.with_tables and not self.path.exists():
            self.path.touch(0o600)
            self.path.write_bytes(file_with_tables())

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    def transact(self, connection: Any, statements: list[str]) -> None:
        connection.executescript("; ".join(["BEGIN IMMEDIATE", *statements, "COMMIT"]))

    def literal(self, value: UUID | None) -> str:
        return "NULL" if value is None else f"X'{value.hex}'"


@cache
def file_with_tables() -> bytes:
    """What a file holds after the migrations, which take 8 ms."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        store = SqliteStore(path)
        run_blocking(store.migrate())
        close_blocking(store)
        return path.read_bytes()


class PostgresBackend(Backend):
    engine = "postgres"
    tables = (
        "SELECT tablename::text FROM pg_tables "
        "WHERE schemaname = current_schema() AND tablename LIKE 'pulse\\_%'"
    )

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(clock)
        self.url = url

    def open(self, *, own_clock: bool = True, **options: Any) -> PostgresStore:
        options = AT_ONCE_OPTIONS | options
        return PostgresStore(
            self.url, PostgresOptions(**options), clock=self.clock if own_clock else None
        )

    @property
    def app_url(self) -> str:
        return self.url

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    @contextmanager
    def session(self) -> Iterator[Any]:
        yield kept_session(self.url)

    def transact(self, connection: Any, statements: list[str]) -> None:
        connection.execute("; ".join(statements))  # sent at once, they are one transaction

    def literal(self, value: UUID | None) -> str:
        return "NULL::uuid" if value is None else f"'{value}'::uuid"


class RemoteBackend(Backend):
    """A database behind a pulsed server; each store that is opened has a server of its own."""

    def __init__(self, behind: Backend) -> None:
        super().__init__(behind.clock)
        self.behind = behind
        self.engine, self.tables = behind.engine, behind.tables
        self._servers: list[ServerThread] = []
        self._of_apps: ServerThread | None = None

    def open(self, *, own_clock: bool = True, **options: Any) -> Any:
        kept = {name: options[name] for name in ("retry", "dequeue_retry") if name in options}
        server = self.serve(own_clock=own_clock, **options)
        return RemoteUnderTest(server, RemoteOptions(**AT_ONCE_OPTIONS | kept))

    def serve(self, *, own_clock: bool = True, **options: Any) -> ServerThread:
        """Start one more server on the database."""
        server = ServerThread(lambda: self.behind.open(own_clock=own_clock, **options))
        self._servers.append(server)
        return server

    @property
    def app_url(self) -> str:
        if self._of_apps is None:
            self._of_apps = self.serve(own_clock=False)
        return self._of_apps.url

    def connect(self) -> Any:
        return self.behind.connect()

    @contextmanager
    def session(self) -> Iterator[Any]:
        with self.behind.session() as session:
            yield session

    def transact(self, connection: Any, statements: list[str]) -> None:
        self.behind.transact(connection, statements)

    def literal(self, value: UUID | None) -> str:
        return self.behind.literal(value)

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


class RemoteUnderTest(RemoteStore):
    """A remote store whose faults are those of the database behind its server."""

    def __init__(self, server: ServerThread, options: RemoteOptions) -> None:
        super().__init__(server.url, options)
        self.server = server

    @property
    def claims(self) -> Any:
        return self.server.store.claims  # type: ignore[attr-defined]

    @property
    def dialect(self) -> Any:
        return self.server.store.dialect  # type: ignore[attr-defined]

    @property
    def perform(self) -> Any:
        return self.server.store.perform  # type: ignore[attr-defined]

    @perform.setter
    def perform(self, changed: Any) -> None:
        setattr(self.server.store, "perform", changed)  # noqa: B010 - an instance's own method


@contextmanager
def remote_backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """A server in this process over a new SQLite file."""
    with sqlite_backend(request, clock) as behind, served(behind) as backend:
        yield backend


@contextmanager
def served(behind: Backend) -> Iterator[Backend]:
    """The same database, behind a server."""
    backend = RemoteBackend(behind)
    try:
        yield backend
    finally:
        backend.stop()


@contextmanager
def sqlite_backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """A new file for each test; with tables, as PostgreSQL has them since the first test."""
    folder: Path = request.getfixturevalue("tmp_path")
    yield SqliteBackend(folder / "jobs.db", clock, with_tables=True)


@pytest.fixture
def only_sqlite(database: Path, clock: Clock) -> SqliteBackend:
    """A file that is not there yet. Say ``backend = only_sqlite`` in tests of files alone."""
    return SqliteBackend(database, clock)


@contextmanager
def postgres_backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """One database for all tests of this process, emptied before each."""
    backend = PostgresBackend(request.getfixturevalue("postgres_url"), clock)
    next_test()
    until_left(backend.url)
    backend.empty()
    yield backend


def until_left(url: str) -> None:
    """Wait until no worker or server of an earlier test is connected any more.

    One that was left running, in whatever process, would go on with the jobs of the next test, on
    another clock.
    """
    session, give_up_at, pause = kept_session(url), time.monotonic() + PATIENCE, pauses()
    while left := session.execute(LISTENERS).fetchall():
        assert time.monotonic() < give_up_at, f"an earlier test left these connected: {left}"
        time.sleep(next(pause))


@pytest.fixture
def only_postgres(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """PostgreSQL without jobs. Say ``backend = only_postgres`` in tests of it alone."""
    with postgres_backend(request, clock) as backend:
        yield backend


BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Clock], Any]] = {
    "sqlite": sqlite_backend,
    "postgres": postgres_backend,
    "remote": remote_backend,
}


def close_blocking(store: SqlStore) -> None:
    """Close a store that was used without an event loop."""
    run_blocking(store.aclose())

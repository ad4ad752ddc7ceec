"""Submitting through the caller's own connection, inside the caller's own transaction.

It never begins, commits, retries or notifies: the job appears if and when the caller commits. A
connection in autocommit mode and outside of a transaction is refused: the job would survive the
caller's rollback. So is one to another file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsed.errors import ConfigError
from pulsed.model.job import NewJob
from pulsed.store.blocking import is_blocking
from pulsed.store.results import Submitted
from pulsed.store.sqlite.errors import translate
from pulsed.store.sqlite.file import refuse_inherited
from pulsed.store.sqlite.values import execute
from pulsed.store.submitter import Submitter, another_database, outside_transaction
from pulsed.store.verbs.script import drive
from pulsed.store.verbs.submit import submit

if TYPE_CHECKING:
    from pulsed.store.sqlite.store import SqliteStore

_BEGIN = '`connection.execute("BEGIN")`'


class JoinedSqlite(Submitter):
    """Submits through a ``sqlite3.Connection`` of the caller, or one of aiosqlite."""

    def __init__(self, connection: Any, store: SqliteStore) -> None:
        if not isinstance(connection, sqlite3.Connection) and not _is_aiosqlite(connection):
            raise ConfigError(
                "using(conn=...) on an SQLite app takes a sqlite3.Connection to the same file, or "
                "an aiosqlite.Connection, or a session or connection of SQLAlchemy, not a "
                f"{type(connection).__module__}.{type(connection).__qualname__}."
            )
        if store.path is not None:
            refuse_inherited(store.path)
        self._connection = connection
        self._store = store

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        if not jobs:
            return Submitted(0)
        if isinstance(self._connection, sqlite3.Connection):
            return self._submit(self._connection, jobs)
        if is_blocking():
            raise ConfigError(
                "A blocking method cannot use an aiosqlite.Connection. Use its a… twin: `await "
                "job.using(conn=connection).aenqueue(...)`. Nothing was stored."
            )
        return await self._in_its_thread(self._connection, jobs)

    async def _in_its_thread(self, connection: Any, jobs: Sequence[NewJob]) -> Submitted:
        """Submit in the one thread that may use an aiosqlite connection, as its methods do."""
        execute, inside = connection._execute, connection._conn  # noqa: SLF001 - no public way
        submitted: Submitted = await execute(self._submit, inside, jobs)
        return submitted

    def _submit(self, connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> Submitted:
        if not connection.in_transaction and _commits_by_itself(connection):
            raise outside_transaction(_BEGIN)
        cursor = connection.cursor()
        cursor.row_factory = None
        _check_file(cursor, self._store.path)
        now = self._store.micros()
        verb = submit(self._store.engine, jobs)
        try:
            return drive(verb.script(), lambda statement: execute(cursor, statement, now))
        except sqlite3.Error as error:
            raise translate(error, verb.action, "the database of your connection") from error


def _is_aiosqlite(connection: object) -> bool:
    """Whether it is aiosqlite's, which is not imported for others."""
    return any(
        (kind.__module__, kind.__qualname__) == ("aiosqlite.core", "Connection")
        for kind in type(connection).__mro__
    )


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether the driver is in autocommit mode: it begins no transaction before an INSERT."""
    autocommit = getattr(connection, "autocommit", -1)  # from Python 3.12 on; -1: isolation_level
    return connection.isolation_level is None if autocommit == -1 else bool(autocommit)


def _check_file(cursor: sqlite3.Cursor, ours: Path | None) -> None:
    """Refuse a connection whose main database is another file than the store's."""
    name = next(
        file for _, schema, file in cursor.execute("PRAGMA database_list") if schema == "main"
    )
    if ours is None:
        raise ConfigError(
            "using(conn=...) cannot work with a database in memory: only the app's own connection "
            "reaches it. Give the app a file. Nothing was stored."
        )
    theirs = Path(name) if name else None
    if theirs is None or not _are_same(theirs, ours):
        raise another_database(f"the file {name!r}" if name else "in memory", f"{str(ours)!r}")


def _are_same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:  # one of them was removed
        return False

"""Submitting through the caller's own connection, inside the caller's own transaction.

It never begins, commits, retries or notifies: the job appears if and when the caller commits. A
connection in autocommit mode and outside of a transaction is refused: the job would survive the
caller's rollback.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pulsed.errors import ConfigError
from pulsed.model.job import NewJob
from pulsed.store.base import Submitter, outside_transaction
from pulsed.store.results import Submitted
from pulsed.store.sqlite.errors import translate
from pulsed.store.sqlite.file import refuse_inherited
from pulsed.store.sqlite.values import execute
from pulsed.store.verbs.script import drive
from pulsed.store.verbs.submit import submit

if TYPE_CHECKING:
    from pulsed.store.sqlite.store import SqliteStore


class JoinedSqlite(Submitter):
    """Submits through a ``sqlite3.Connection`` of the caller."""

    def __init__(self, connection: Any, store: SqliteStore) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigError(
                "using(conn=...) on an SQLite app takes a sqlite3.Connection to the same file, "
                f"not {type(connection).__module__}.{type(connection).__qualname__}. Of a "
                "SQLAlchemy session, pass session.connection().connection.driver_connection."
            )
        if store.path is not None:
            refuse_inherited(store.path)
        self._connection = connection
        self._store = store

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        if not jobs:
            return Submitted(0)
        if not self._connection.in_transaction and _commits_by_itself(self._connection):
            raise outside_transaction('`connection.execute("BEGIN")`')
        cursor = self._connection.cursor()
        cursor.row_factory = None
        now = self._store.micros()
        verb = submit(self._store.engine, jobs)
        try:
            return drive(verb.script(), lambda statement: execute(cursor, statement, now))
        except sqlite3.Error as error:
            raise translate(error, verb.action, "the database of your connection") from error


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether the driver is in autocommit mode: it begins no transaction before an INSERT."""
    autocommit = getattr(connection, "autocommit", -1)  # from Python 3.12 on; -1: isolation_level
    return connection.isolation_level is None if autocommit == -1 else bool(autocommit)

"""Running a verb on Django's connection, as each engine needs it.

The statements go to the driver's own connection below Django's: they are bound in the driver's
native way, and Django's query log and ``assertNumQueries`` do not see them.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.db import transaction

from pulsed.errors import StorageError
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.sqlite.errors import translate as translate_sqlite
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.sqlite.values import execute
from pulsed.store.verbs.script import Verb, VerbKind, drive

T = TypeVar("T")
Execute = Callable[[Statement], Rows]


class Driver(ABC):
    """Runs verbs on a connection of Django, in its transaction or in one of the verb's own."""

    errors: tuple[type[Exception], ...]
    """What the driver below Django's connection raises."""

    def run(self, connection: Any, verb: Verb[T]) -> T:
        """Run a verb once; a failure dooms the transaction that it has joined, as Django's do."""
        try:
            with connection.wrap_database_errors:
                connection.ensure_connection()
            joins = connection.in_atomic_block or not connection.get_autocommit()
            if joins:
                with transaction.mark_for_rollback_on_error(connection.alias):
                    return drive(verb.script(), self.execute_on(connection.connection, verb))
            return self.run_alone(connection.connection, verb)
        except Exception as error:
            cause = error if isinstance(error, self.errors) else error.__cause__
            if not isinstance(cause, self.errors):
                raise
            self._give_up(connection)
            raise self.translate(cause, verb) from error

    def _give_up(self, connection: Any) -> None:
        """Have Django open another connection if this one is broken and no transaction needs it."""
        connection.errors_occurred = True
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()

    @abstractmethod
    def execute_on(self, raw: Any, verb: Verb[Any]) -> Execute:
        """Return what executes a verb's statements on a driver's connection."""

    @abstractmethod
    def run_alone(self, raw: Any, verb: Verb[T]) -> T:
        """Run a verb on a connection without a transaction."""

    @abstractmethod
    def translate(self, error: Exception, verb: Verb[Any]) -> StorageError:
        """Return the StorageError for an error of the driver."""

    def notification(self, queues: Iterable[str]) -> Verb[None] | None:  # noqa: ARG002
        """Return the verb that wakes the workers of other processes; None if they notice."""
        return None


class SqliteDriver(Driver):
    """Runs verbs on a ``sqlite3.Connection`` of Django."""

    errors = (sqlite3.Error,)

    def __init__(self, own: SqliteStore) -> None:
        self._own = own

    def execute_on(self, raw: Any, verb: Verb[Any]) -> Execute:  # noqa: ARG002
        cursor, now = raw.cursor(), self._own.micros()
        cursor.row_factory = None
        return lambda statement: execute(cursor, statement, now)

    def run_alone(self, raw: Any, verb: Verb[T]) -> T:
        if verb.kind is VerbKind.READ:
            return drive(verb.script(), self.execute_on(raw, verb))
        raw.execute("BEGIN IMMEDIATE")  # a deferred one fails at once if another writes meanwhile
        try:
            answer = drive(verb.script(), self.execute_on(raw, verb))
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise
        return answer

    def translate(self, error: Exception, verb: Verb[Any]) -> StorageError:
        where = str(self._own.path or "the database in memory")
        return translate_sqlite(error, verb.action, where)  # type: ignore[arg-type]

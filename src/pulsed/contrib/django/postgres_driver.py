"""Running a verb on Django's connection to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.rows import tuple_row

from pulsed.contrib.django.driver import Driver, Execute
from pulsed.errors import ConfigError, StorageError
from pulsed.store.postgres.confirm import COMMIT_WRITTEN, confirming
from pulsed.store.postgres.errors import translate
from pulsed.store.postgres.notify import notify
from pulsed.store.postgres.psycopg_pool import cursor_call
from pulsed.store.postgres.store import PostgresStore
from pulsed.store.postgres.values import arguments, texts
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs.script import Verb, VerbKind, drive

T = TypeVar("T")


class PostgresDriver(Driver):
    """Runs verbs on a ``psycopg.Connection`` of Django."""

    errors = (psycopg.Error, OSError)

    def __init__(self, own: PostgresStore) -> None:
        self._own = own

    def execute_on(self, raw: Any, verb: Verb[Any]) -> Execute:
        if not isinstance(raw, psycopg.Connection):
            raise ConfigError(
                "pulsed needs psycopg 3 below Django's PostgreSQL connections, and this one is "
                f"of {type(raw).__module__}: uninstall psycopg2, install 'psycopg[binary]'."
            )
        connection: psycopg.Connection[Any] = raw

        def execute(statement: Statement) -> Rows:
            cursor = RawCursor(connection, row_factory=tuple_row)
            values = texts(arguments(statement, self._own.clock))
            # Binary: Django has replaced the loaders of some types, those for text only.
            cursor.execute(*cursor_call(statement, values), binary=True)
            if statement.sql.counted:
                return [(cursor.rowcount,)]
            return cursor.fetchall() if cursor.rownumber is not None else []

        return confirming(verb, execute)

    def run_alone(self, raw: Any, verb: Verb[T]) -> T:
        execute = self.execute_on(raw, verb)
        if verb.kind is not VerbKind.TRANSACTION:
            return drive(verb.script(), execute)
        session = RawCursor(raw)
        session.execute("BEGIN")
        try:
            answer = drive(verb.script(), execute)
            session.execute(COMMIT_WRITTEN)
        except BaseException:
            if not raw.closed:
                session.execute("ROLLBACK")
            raise
        return answer

    def translate(self, error: Exception, verb: Verb[Any]) -> StorageError:
        return translate(error, verb.action, self._own.address.where)

    def notification(self, queues: Iterable[str]) -> Verb[None]:
        return notify(self._own.channel, set(queues))

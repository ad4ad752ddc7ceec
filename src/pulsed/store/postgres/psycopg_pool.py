"""A pool of psycopg connections for blocking callers: a verb runs in the calling thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import RawCursor

from pulsed.errors import TransientStorageError
from pulsed.store.postgres.address import PostgresOptions
from pulsed.store.postgres.direct import count, counted_row
from pulsed.store.postgres.errors import lost_the_server
from pulsed.store.postgres.psycopg_connection import Connector, PsycopgConnection
from pulsed.store.postgres.session import IDLE_FOR_TOO_LONG, KEEP_IDLE, Lane, Sessions
from pulsed.store.postgres.values import arguments, column_of, texts
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs.script import Verb, drive

T = TypeVar("T")
Clock: TypeAlias = Callable[[], datetime]


class ThreadPool:
    """The blocking connections of this process, most recently used first."""

    keep_idle = KEEP_IDLE

    def __init__(
        self,
        connector: Connector,
        options: PostgresOptions,
        sessions: Sessions,
        clock: Clock | None,
    ) -> None:
        self._connector = connector
        self._options = options
        self._sessions = sessions
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self._options.size)
        self._idle: list[tuple[PsycopgConnection, float]] = []
        self._opened: set[PsycopgConnection] = set()

    def forget_inherited(self) -> list[object]:
        """Reset the state in a forked child; returns the parent's connections."""
        inherited: list[object] = list(self._opened)
        self._forget()
        return inherited

    def run(self, verb: Verb[T]) -> T:
        """Run a verb in the calling thread; returns its value."""
        if verb.urgent:  # heartbeats do not queue; one thread sends them: one extra connection
            return self._run(verb)
        if not self._slots.acquire(timeout=self._options.statement_timeout):
            raise TransientStorageError(
                f"{verb.action} found all {self._options.size} connections busy for "
                f"{self._options.statement_timeout:g} s. Raise pool_size, or use fewer threads."
            )
        try:
            return self._run(verb)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close idle connections; the next verb opens a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._drop(connection)

    def _run(self, verb: Verb[T]) -> T:
        try:
            answer_timeout = self._sessions.client_timeout(verb)
            connection = self._take(answer_timeout, urgent=verb.urgent)
            connection.answer_timeout = answer_timeout
            try:
                answer = self._run_on(connection, verb)
            except BaseException:  # as in asyncpg_pool: never reused
                self._drop(connection)
                raise
        except psycopg.Error as error:
            if lost_the_server(error):
                self.close()
            raise
        self._give_back(connection)
        return answer

    def _give_back(self, connection: PsycopgConnection) -> None:
        """Keep a connection for the next verb, and close those idle for too long."""
        now = time.monotonic()
        with self._lock:
            surplus = [one for one, since in self._idle if now - since > self.keep_idle]
            self._idle = [kept for kept in self._idle if kept[0] not in surplus]
            self._idle.append((connection, now))
        for one in surplus:
            self._drop(one)

    def _run_on(self, connection: PsycopgConnection, verb: Verb[T]) -> T:
        prepare = self._options.prepared_statements
        opening = self._sessions.opening(verb, Lane.SYNC)

        def execute(statement: Statement) -> Rows:
            values = texts(arguments(statement, self._clock, column_of))
            sql, prepared = statement.sql, connection.prepared if prepare else None
            if sql.counted:
                return [(count(connection, sql.text, values, prepared),)]
            if sql.counts_itself:
                return [counted_row(connection, sql.text, values, prepared)]
            cursor = RawCursor(connection)
            cursor.execute(*call(statement, values), prepare=prepare and bool(values), binary=True)
            return cursor.fetchall() if cursor.rownumber is not None else []

        if opening is None:
            return drive(verb.script(), execute)
        connection.execute(opening, prepare=False)
        answer = drive(verb.script(), execute)
        connection.execute(self._sessions.closing(verb), prepare=False)
        return answer

    def _take(self, answer_timeout: float, *, urgent: bool) -> PsycopgConnection:
        while True:
            with self._lock:
                connection, since = self._idle.pop() if self._idle else (None, 0.0)
            if connection is None:
                return self._connect(answer_timeout, urgent=urgent)
            if time.monotonic() - since < IDLE_FOR_TOO_LONG and connection.is_quiet:
                return connection
            self._drop(connection)

    def _connect(self, answer_timeout: float, *, urgent: bool = False) -> PsycopgConnection:
        connection = self._connector.open(
            Lane.SYNC,
            within=answer_timeout,
            urgent=urgent,
            autocommit=True,
            cursor_factory=RawCursor,
            prepare_threshold=0 if self._options.prepared_statements else None,
        )
        with self._lock:
            self._opened.add(connection)
        return connection

    def _drop(self, connection: PsycopgConnection) -> None:
        with self._lock:
            self._opened.discard(connection)
        with suppress(psycopg.Error):
            connection.close()


def call(statement: Statement, values: list[str | None]) -> tuple[Any, ...]:
    """Return the arguments of ``cursor.execute``."""
    return (statement.sql.text, values) if values else (statement.sql.text,)

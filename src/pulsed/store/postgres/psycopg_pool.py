"""A pool of psycopg connections for blocking callers: a verb runs in the calling thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import RawCursor

from pulsed.errors import TransientStorageError
from pulsed.store.postgres.address import PostgresOptions
from pulsed.store.postgres.confirm import CONFIRM, found_done
from pulsed.store.postgres.direct import HAS_PIPELINE, counted_row, run
from pulsed.store.postgres.errors import is_refusal, lost_the_server
from pulsed.store.postgres.psycopg_connection import Connector, PsycopgConnection
from pulsed.store.postgres.savepoint import RETURN_TO_SAVEPOINT
from pulsed.store.postgres.session import (
    IDLE_FOR_TOO_LONG,
    KEEP_IDLE,
    ROLLBACK,
    Lane,
    Sessions,
)
from pulsed.store.postgres.values import arguments, column_of, texts
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs.script import FollowUp, Verb

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
        # A semaphore: that of the standard library is written in Python, and ten times slower.
        self._slots: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._options.size):
            self._slots.put(None)
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
        slots = self._slots
        try:
            slots.get(timeout=self._options.statement_timeout)
        except Empty:
            raise TransientStorageError(
                f"{verb.action} found all {self._options.size} connections busy for "
                f"{self._options.statement_timeout:g} s. Raise pool_size, or use fewer threads."
            ) from None
        try:
            return self._run(verb)
        finally:
            slots.put(None)

    def close(self) -> None:
        """Close idle connections; the next verb opens a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._drop(connection)

    def thread_ends(self) -> None:
        """Close what the calling thread has opened.

        Nothing else might use the pool: a session that stays keeps a test's database from being
        dropped.
        """
        here = threading.get_ident()
        with self._lock:
            own = [each for each, _ in self._idle if each.opened_by == here]
            self._idle = [kept for kept in self._idle if kept[0].opened_by != here]
        for connection in own:
            self._drop(connection)

    def _run(self, verb: Verb[T]) -> T:
        try:
            answer_timeout = self._sessions.client_timeout(verb)
            connection = self._take(answer_timeout, urgent=verb.urgent)
            connection.answer_timeout = answer_timeout
            try:
                answer = self._run_on(connection, verb)
            except BaseException as error:  # as in asyncpg_pool
                if is_refusal(error) and self._rolled_back(connection, verb):
                    self._give_back(connection)
                else:
                    self._drop(connection)
                raise
        except psycopg.Error as error:
            if lost_the_server(error):
                self.close()
            raise
        self._give_back(connection)
        return answer

    def _rolled_back(self, connection: PsycopgConnection, verb: Verb[Any]) -> bool:
        """End the transaction of a verb that refuses, if it has one; whether that succeeded.

        Past the driver, which would deallocate all prepared statements.
        """
        if self._sessions.opening(verb, Lane.SYNC) is None:
            return True
        try:
            run(connection, ROLLBACK, (), None)
        except psycopg.Error:
            return False
        return True

    def _give_back(self, connection: PsycopgConnection) -> None:
        """Keep a connection for the next verb, and close those idle for too long."""
        now = time.monotonic()
        with self._lock:
            surplus = self._take_surplus(now) if self._idle else ()
            self._idle.append((connection, now))
        for one in surplus:
            self._drop(one)

    def _take_surplus(self, now: float) -> Sequence[PsycopgConnection]:
        """Remove and return those that were idle for too long. The caller has the lock."""
        surplus = [one for one, since in self._idle if now - since > self.keep_idle]
        self._idle = [kept for kept in self._idle if kept[0] not in surplus]
        return surplus

    def _run_on(self, connection: PsycopgConnection, verb: Verb[T]) -> T:
        opening, follow_up = self._sessions.opening(verb, Lane.SYNC), verb.follow_up
        if opening is not None:
            connection.execute(opening, prepare=False)
        script = verb.script()
        sent_along: FollowUp | None = None
        try:
            statement = next(script)
            if opening is None and _can_lead(statement):
                sent_along = follow_up  # with the only statement of most; a second may write, too
            while True:
                rows = self._execute(connection, statement, sent_along)
                if found_done(verb, statement, rows):
                    self._execute(connection, CONFIRM)
                statement = script.send(rows)
                sent_along = None
        except StopIteration as finished:
            answer: T = finished.value
        if opening is not None:
            connection.execute(self._sessions.closing(verb), prepare=False)
        if follow_up is not None and sent_along is None:
            self._follow_up(connection, follow_up)
        return answer

    def _follow_up(self, connection: PsycopgConnection, follow_up: FollowUp) -> None:
        try:
            self._execute(connection, follow_up.statement)
        except psycopg.Error as error:
            follow_up.failed(error)

    def _execute(
        self,
        connection: PsycopgConnection,
        statement: Statement,
        follow_up: FollowUp | None = None,
    ) -> Rows:
        """Run a statement; a follow-up goes with one that counts rows, in the same round trip."""
        sql, values = statement.sql, arguments(statement, self._clock, column_of)
        if sql.counted:
            return [(run(connection, sql.text, values, follow_up).command_tuples or 0,)]
        if sql.counts_itself:
            return [counted_row(connection, sql.text, values, follow_up)]
        cursor, prepare = RawCursor(connection), self._options.prepared_statements
        cursor.execute(
            *cursor_call(statement, texts(values)), prepare=prepare and bool(values), binary=True
        )
        if statement is RETURN_TO_SAVEPOINT and connection.prepared:
            connection.prepared.clear()  # the driver has deallocated them, too
        return cursor.fetchall() if cursor.rownumber is not None else []

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
        if not self._options.prepared_statements:
            connection.prepared = None
        connection.opened_by = threading.get_ident()
        with self._lock:
            self._opened.add(connection)
        return connection

    def _drop(self, connection: PsycopgConnection) -> None:
        with self._lock:
            self._opened.discard(connection)
        with suppress(psycopg.Error):
            connection.close()


def _can_lead(statement: Statement) -> bool:
    """Whether a follow-up can be sent with a statement that commits by itself."""
    return HAS_PIPELINE and (statement.sql.counted or statement.sql.counts_itself)


def cursor_call(statement: Statement, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of ``cursor.execute``."""
    return (statement.sql.text, values) if values else (statement.sql.text,)

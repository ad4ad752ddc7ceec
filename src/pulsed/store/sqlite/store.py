"""The embedded store: one file, any number of processes, no server.

Writes go through one connection per process (``writer.py``). Each read has a connection of its own,
because in WAL mode readers and the writer do not wait for each other.
"""

from __future__ import annotations

import atexit
import logging
import sqlite3
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pulsed.errors import ConfigError, DatabaseReplaced, StorageError
from pulsed.model.job import Lease
from pulsed.model.timetable import to_micros
from pulsed.store.blocking import calling_loop, run_blocking
from pulsed.store.fork import ForkAware, Gate, watch_forks
from pulsed.store.listener import Listener, Wake
from pulsed.store.per_loop import PerLoop
from pulsed.store.sql.statement import Rows, Sql, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.checkpoint import WAL_RESET_FIXED, Checkpointer
from pulsed.store.sqlite.connections import Connections, SqliteOptions
from pulsed.store.sqlite.engine import SqliteEngine
from pulsed.store.sqlite.errors import translate
from pulsed.store.sqlite.file import is_replaced, is_writable, mode_of, size_of
from pulsed.store.sqlite.joined import JoinedSqlite
from pulsed.store.sqlite.place import file_system, lock_holder
from pulsed.store.sqlite.step_transaction import cannot_end_meanwhile, step_transaction
from pulsed.store.sqlite.values import execute
from pulsed.store.sqlite.wake import listening
from pulsed.store.sqlite.writer import Writer
from pulsed.store.step_thread import StepThread
from pulsed.store.submitter import Submitter
from pulsed.store.verbs.script import Script, Verb, VerbKind, drive
from pulsed.store.workflows import Transaction
from pulsed.wording import format_bytes

T = TypeVar("T")

log = logging.getLogger("pulsed.store")

OLDEST_SQLITE = (3, 37, 0)
"""STRICT tables; everything else that pulsed uses is older."""

MOST_IDLE_READERS = 8

LONGEST_USE = 1.0
"""Seconds that a fork waits for reads and writes, even after it has waited for steps."""


class SqliteStore(SqlStore, ForkAware):
    """Jobs in an SQLite file, or in memory when ``path`` is None."""

    def __init__(
        self,
        path: str | Path | None,
        options: SqliteOptions | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigError(
                f"pulsed needs SQLite 3.37 or newer; this Python has {sqlite3.sqlite_version}."
            )
        self.sqlite_options = options or SqliteOptions()
        super().__init__(SqliteEngine(), self.sqlite_options, clock=clock)
        # Resolved, because SQLite names its log after the file that a link points to.
        self.path = None if path is None else Path(path).resolve()
        self._name = None if self.path is None else str(self.path)
        self._checkpointer = Checkpointer(None if self.path is None else f"{self.path}-wal")
        self._connections = Connections(self.path, self.sqlite_options, self._checkpointer)
        self._uses = Gate()
        self.steps = Gate()
        """A separate gate: a step in flight still uses the store, and a fork drains both."""
        self._writer = Writer(
            self._connections.open_writer,
            self.micros,
            execute_on,
            self.translated,
            self._after_commit,
            self._uses,
            self.sqlite_options.busy_timeout,
        )
        self._idle_readers: list[sqlite3.Connection] = []
        self._reading = _reading_threads()
        self._step_threads = PerLoop[StepThread]()
        self._listeners: list[Wake] = []
        self._replacements = 0
        _stores.add(self)
        watch_forks(self)

    # -- forks ----------------------------------------------------------------------------------

    def pause(self, give_up_at: float) -> None:
        """Close every connection: SQLite's in-memory lock table survives a fork, its locks do not.

        With open connections, SQLite in the child would assume that it holds their locks, take
        none, and lose writes. A database in memory has no locks, and its jobs stay in the parent.
        """
        if cannot_end_meanwhile(self._step_threads.known()):
            give_up_at = 0
        at_rest = self.steps.shut(give_up_at)
        # Even if a step did not end in time: no thread may be inside SQLite, which has mutexes.
        at_rest &= self._uses.shut(max(give_up_at, time.monotonic() + LONGEST_USE))
        if at_rest and self.path is not None:
            self._writer.disconnect()
            self._close_readers()

    def resume(self) -> None:
        self._uses.open()
        self.steps.open()

    def forget_inherited(self) -> list[object]:
        """Open everything anew in a forked child."""
        self._uses.reset()
        self.steps.reset()
        inherited = self._connections.forget_inherited()
        self._writer.forget_inherited()
        if self.path is not None:
            self._idle_readers = []
        self._reading = _reading_threads()
        self._step_threads = PerLoop()
        self._listeners = []
        self._memory_is_gone()
        return inherited

    # -- running verbs --------------------------------------------------------------------------

    async def run(self, verb: Verb[T], *, within: float | None = None) -> T:
        known = self._replacements
        try:
            return await super().run(verb, within=within)
        except StorageError as error:
            if known == self._replacements:
                raise
            # Otherwise another thread noticed it, and this verb met the new file without tables.
            if isinstance(error, DatabaseReplaced):
                log.warning("%s", error)
        return await super().run(verb, within=within)

    async def perform(self, verb: Verb[T]) -> T:
        loop = calling_loop()
        if verb.kind is VerbKind.READ and self.path is not None:
            if loop is None:
                return self._read(verb)
            return await loop.run_in_executor(self._reading, self._read, verb)
        return self._writer.run(verb) if loop is None else await self._writer.arun(verb, loop)

    async def hint(self, queues: set[str]) -> None:
        self.owe_hint(queues)

    def owe_hint(self, queues: set[str]) -> None:
        for wake in list(self._listeners):
            wake(queues)

    def joined(self, connection: Any) -> Submitter:
        return JoinedSqlite(connection, self)

    def micros(self) -> int:
        """Return the store's current time, in microseconds since the epoch."""
        return time.time_ns() // 1000 if self.clock is None else to_micros(self.clock())

    def _read(self, verb: Verb[T]) -> T:
        try:
            with self._uses:
                return self._read_inside(verb)
        except sqlite3.Error as error:
            raise self.translated(error, verb.action) from error
        except DatabaseReplaced:
            self._writer.reopen()
            raise

    def _read_inside(self, verb: Verb[T]) -> T:
        connection = self._a_reader()
        now = self.micros()
        try:
            return drive(verb.script(), lambda statement: execute_on(connection, statement, now))
        finally:
            self._give_back(connection)

    def _a_reader(self) -> sqlite3.Connection:
        try:
            connection = self._idle_readers.pop()  # no check first: another thread may be faster
        except IndexError:
            return self._connections.open_reader()
        if self._is_replaced(connection):
            connection.close()
            raise self._replaced()
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if len(self._idle_readers) < MOST_IDLE_READERS:
            self._idle_readers.append(connection)
        else:
            connection.close()

    # -- connections ----------------------------------------------------------------------------

    def step_transaction(
        self,
        lease: Lease,
        *,
        plain: bool,  # noqa: ARG002 - there is one driver
    ) -> AbstractAsyncContextManager[Transaction]:
        thread = self._step_threads.here(StepThread)
        return step_transaction(self, thread, self._connections.open_writer, lease)

    def _after_commit(self, connection: sqlite3.Connection) -> None:
        """Raise if the commit went into a replaced file; then checkpoint the log if it is long."""
        if self._name is not None and is_replaced(connection, self._name):
            raise self._replaced()
        self._checkpointer.after_commit(connection)

    def _is_replaced(self, connection: sqlite3.Connection) -> bool:
        return self._name is not None and is_replaced(connection, self._name)

    def _replaced(self) -> DatabaseReplaced:
        """Discard all cached state of the old file; returns the error to raise."""
        self._replacements += 1
        self._schema_is_good = False
        self.claims.floors.clear()
        self._close_readers()
        return DatabaseReplaced(
            f"{self.path} was removed or replaced while it was in use. Jobs that were only "
            "there are lost; this process continues with the file that is there now, or a new one."
        )

    def translated(self, error: sqlite3.Error, verb: str) -> StorageError:
        """Return the StorageError for an SQLite error."""
        return translate(error, verb, str(self.path or "the database in memory"), self._holder)

    def _holder(self) -> str:
        return "Another connection" if self.path is None else lock_holder(self.path)

    def write_first(self) -> None:
        """Commit the queued verbs, before a step takes the write lock."""
        self._writer.take_turn()

    # -- life -----------------------------------------------------------------------------------

    def listen(
        self,
        queues: Sequence[str],  # noqa: ARG002 - one file, one signal
        wake: Wake,
    ) -> AbstractAsyncContextManager[Listener]:
        return listening(self.path, self._writer, self._listeners, wake)

    async def check(self) -> Mapping[str, str]:
        journal = await self.perform(_journal_mode)  # before a writer switches it to WAL
        applied = await self.applied_migrations()
        return {
            "engine": f"SQLite {sqlite3.sqlite_version}",
            "database": str(self.path or ":memory:"),
            "journal": journal,
            "wal_reset_bug": "no" if sqlite3.sqlite_version_info >= WAL_RESET_FIXED else "yes",
            "file_system": "memory" if self.path is None else file_system(self.path),
            "writable": "yes" if self.path is None or is_writable(self.path) else "no",
            "file_mode": "" if self.path is None else mode_of(self.path),
            "schema": str(max((row.version for row in applied), default=0)),
            "synchronous": self.sqlite_options.synchronous,
            "size": "" if self.path is None else format_bytes(size_of(self.path)),
        }

    async def aclose(self) -> None:
        threads, self._reading = self._reading, _reading_threads()
        threads.shutdown(wait=False)
        with self._uses:
            self._close_readers()
        self._step_threads.forget_all()  # a step in flight keeps its thread
        self._writer.close()
        self._memory_is_gone()

    def _close_readers(self) -> None:
        with suppress(IndexError):  # emptied, not replaced: another thread may return a reader
            while True:
                self._idle_readers.pop().close()

    def _memory_is_gone(self) -> None:
        """Have the next use create the tables again, if they were lost with the connection."""
        if self.path is None:
            self._schema_is_good = False


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """Close the connections that a program left open; a later write opens a new one."""
    for store in list(_stores):
        store.pause(time.monotonic() + LONGEST_USE)
        store.resume()
        if store.path is None:
            run_blocking(store.aclose())


def _reading_threads() -> ThreadPoolExecutor:
    """Return an executor for reads: handlers may occupy all threads of the loop's own."""
    return ThreadPoolExecutor(MOST_IDLE_READERS, thread_name_prefix="pulsed-read")


def execute_on(
    connection: sqlite3.Connection, statement: Statement, now: int, clock: int | None = None
) -> Rows:
    """Run a statement on a connection of this store."""
    return execute(connection.cursor(), statement, now, clock)


def _read_journal_mode() -> Script[str]:
    return str((yield Statement(Sql("PRAGMA journal_mode", ()), {}))[0][0])


_journal_mode = Verb("check", VerbKind.READ, _read_journal_mode)

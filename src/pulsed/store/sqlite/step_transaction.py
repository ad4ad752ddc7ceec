"""A step's transaction on SQLite: a connection of its own, and the file's only write lock.

All other writers wait meanwhile, heartbeats included, so the time of a step is limited. Steps of
one process queue here and not for the file's lock, which is not granted in order.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsed.errors import LeaseLost, StorageError, TransientStorageError
from pulsed.model.job import Lease
from pulsed.model.step import Checkpoint
from pulsed.store.sqlite.values import execute
from pulsed.store.step_thread import StepThread
from pulsed.store.verbs.checkpoints import recording, was_recorded
from pulsed.store.workflows import CommitUnknown, Transaction

if TYPE_CHECKING:
    from pulsed.store.sqlite.store import SqliteStore

LONGEST_STEP = 5.0

SHARE_OF_OTHERS = 0.1
"""The pause after a step, as a share of the time that the step held the write lock."""
LONGEST_PAUSE = 0.12
"""Seconds; SQLite's busy handler retries a lock at least ten times a second."""

SERIALIZED = 3
"""The value of ``sqlite3.threadsafety`` where threads may share a connection."""


_inside: ContextVar[bool] = ContextVar("pulsed_in_a_step", default=False)
"""Whether the current code runs inside a step, in its task or in its thread."""


class SqliteTransaction(Transaction):
    """``BEGIN IMMEDIATE`` … ``COMMIT``, with the checkpoint as the last statement."""

    limit = LONGEST_STEP

    def __init__(
        self,
        store: SqliteStore,
        thread: StepThread,
        connection: sqlite3.Connection,
        lease: Lease,
    ) -> None:
        self._store = store
        self._thread = thread
        self._connection = connection
        self._lease = lease
        self.revoked = False

    @property
    def connection(self) -> sqlite3.Connection:
        return self._connection

    async def commit(self, checkpoint: Checkpoint) -> None:
        await self._thread.call(self._commit, checkpoint)

    def _commit(self, checkpoint: Checkpoint) -> None:
        self._connection.set_authorizer(None)
        statement = recording(self._store.engine, self._lease, checkpoint)
        try:
            cursor = self._connection.cursor()
            cursor.row_factory = None
            [(count,)] = execute(cursor, statement, self._store.micros())
            if count != 1:
                raise LeaseLost.of(self._lease.job_id)
        except sqlite3.Error as error:
            raise self._store.translated(error, "step") from error
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            translated = self._store.translated(error, "step")
            if isinstance(translated, TransientStorageError):
                raise CommitUnknown(str(translated)) from error
            raise translated from error

    async def was_committed(self, checkpoint: Checkpoint) -> bool:
        verb = was_recorded(self._store.engine, self._lease, checkpoint.key)
        return await self._store.run(verb)

    async def revoke(self) -> None:
        if sqlite3.threadsafety == SERIALIZED:  # else only the step may use the connection now
            self._connection.interrupt()
            await self._thread.call(self._revoke)
            self.revoked = True
            self._thread.turn.release()

    def _revoke(self) -> None:
        this_thread = threading.get_ident()
        self._connection.set_authorizer(
            lambda *_: (
                sqlite3.SQLITE_OK if threading.get_ident() == this_thread else sqlite3.SQLITE_DENY
            )
        )
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._store.translated(error, "step") from error


@asynccontextmanager
async def step_transaction(
    store: SqliteStore,
    thread: StepThread,
    connect: Callable[[], sqlite3.Connection],
    lease: Lease,
) -> AsyncIterator[SqliteTransaction]:
    """Open a step's transaction, which holds the write lock; roll back unless committed."""
    if store.path is None:
        raise StorageError(
            "A step with tx=True needs a database in a file; this one is in memory. "
            "Use sqlite:///jobs.db, or the step without tx=True."
        )
    transaction = None
    await thread.turn.acquire()
    inside = _inside.set(True)
    began = None
    try:
        await asyncio.sleep(thread.rest)
        end = partial(_end, store)
        connection = await thread.open(partial(_begin, store, connect), end)
        began = time.monotonic()
        transaction = SqliteTransaction(store, thread, connection, lease)
        try:
            yield transaction
        finally:
            await thread.call(end, connection)
    finally:
        _inside.reset(inside)
        if began is not None:
            thread.leave_alone_for(rest_after(time.monotonic() - began))
        if transaction is None or not transaction.revoked:
            thread.turn.release()


def rest_after(held: float) -> float:
    """Return the pause in seconds after a step that held the write lock for ``held`` seconds.

    SQLite does not tell whether another process waits for the lock. If one does, it retries within
    SQLite's longest pause; without this pause, every retry could meet the next step's lock.
    """
    return min(held * SHARE_OF_OTHERS, LONGEST_PAUSE)


def cannot_end_meanwhile(thread: StepThread | None) -> bool:
    """Whether a step needs the calling thread in order to end: it runs in it, or in its loop."""
    return _inside.get() or (thread is not None and thread.turn.locked())


def _begin(store: SqliteStore, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    store.steps.__enter__()  # left in _end
    try:
        store.write_first()
        return _open(store, connect)
    except BaseException:
        store.steps.__exit__()
        raise


def _end(store: SqliteStore, connection: sqlite3.Connection) -> None:
    try:
        connection.close()
    finally:
        store.steps.__exit__()


def _open(store: SqliteStore, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    try:
        connection = connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise store.translated(error, "step") from error
    connection.set_authorizer(_no_transactions)  # a COMMIT by the step would break atomicity
    return connection


def _no_transactions(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK

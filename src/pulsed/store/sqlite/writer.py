"""SQLite's one writer, with group commit.

SQLite commits one transaction at a time, and a commit waits for the disk. So there is one writing
connection per process behind a lock, and the thread that holds the lock commits all queued verbs:
blocking callers do so in their own thread, async callers leave it to a background thread.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from pulsed.errors import DatabaseReplaced, StorageError, TransientStorageError
from pulsed.store.fork import Gate
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs.script import Verb

T = TypeVar("T")

log = logging.getLogger("pulsed.store")

VERSION_READ_TIMEOUT = 0.05
"""Seconds that a read of ``data_version`` waits for a commit of this process."""

ASK_FOR = 0.02
"""SQLite's busy timeout, in seconds. It retries the file's lock every few milliseconds at first,
but later only ten times a second, and would miss the gap between two steps. So BEGIN is restarted
after this time."""

LARGEST_GROUP = 64
"""Verbs in one transaction: enough to share a commit, few enough to let other processes write."""


class QueuedVerb(Generic[T]):
    """A queued verb, and later its result."""

    __slots__ = ("done", "error", "result", "verb", "wakes")

    def __init__(self, verb: Verb[T], wakes: asyncio.Future[None] | None = None) -> None:
        self.verb = verb
        self.wakes = wakes
        """The future of the task that waits for it; a thread that waits has none."""
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def answer(self) -> T:
        """Return the verb's value, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Writer:
    """Runs verbs in BEGIN IMMEDIATE transactions, queued ones together."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Callable[[], int],
        execute: Callable[[sqlite3.Connection, Statement, int, int], Rows],
        translate: Callable[[sqlite3.Error, str], StorageError],
        after_commit: Callable[[sqlite3.Connection], None],
        gate: Gate,
        busy_timeout: float,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._execute = execute
        self._translate = translate
        self._after_commit = after_commit
        self._gate = gate
        self._busy_timeout = busy_timeout
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._thread_lock = threading.Lock()
        self._waiting: deque[QueuedVerb[Any]] = deque()
        self._connection: sqlite3.Connection | None = None
        self.commits = 0
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def forget_inherited(self) -> None:
        """Reset the state in a forked child."""
        self._forget()

    def disconnect(self) -> None:
        """Close the connection before a fork, while the gate is shut and drained."""
        self._drop()

    def run(self, verb: Verb[T]) -> T:
        """Run a verb in the calling thread; returns its value."""
        request = QueuedVerb(verb)
        self._enqueue(request)
        while not request.done:
            with self._gate, self._lock:
                if not request.done:
                    self._commit_waiting()
        return request.answer()

    def take_turn(self) -> None:
        """Commit the queued verbs, so that a step about to take the lock does not overtake them."""
        with self._gate, self._lock:
            self._commit_waiting()

    async def arun(self, verb: Verb[T], loop: asyncio.AbstractEventLoop) -> T:
        """Run a verb without blocking the event loop, which is the running one."""
        finished: asyncio.Future[None] = loop.create_future()
        request = QueuedVerb(verb, finished)
        self._enqueue(request)
        self._call_thread()
        await finished
        return request.answer()

    def version_of_others(self) -> int | None:
        """Return ``data_version``, or None if unavailable.

        It changes when another connection commits, but not with this writer's own commits.
        """
        with self._gate:
            if not self._lock.acquire(
                timeout=VERSION_READ_TIMEOUT
            ):  # a commit waits for another process
                return None
            try:
                if self._connection is None:
                    return None
                version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error:  # gone, or locked: polling finds the jobs
                return None
            finally:
                self._lock.release()
        return version

    def close(self) -> None:
        """Close the connection and end the thread; the next verb starts new ones."""
        with self._thread_lock:
            if self._thread is not None:
                self._calls.put(False)
                self._thread = None
                self._calls = SimpleQueue()
        self.reopen()

    def reopen(self) -> None:
        """Close the connection; the next verb opens another one."""
        with self._gate, self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _enqueue(self, request: QueuedVerb[Any]) -> None:
        if request.verb.urgent:
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)

    def _call_thread(self) -> None:
        with self._thread_lock:  # a call must not go into a queue that no thread reads any more
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, args=(self._calls,), name="pulsed-sqlite", daemon=True
                )
                self._thread.start()
            self._calls.put(True)

    def _serve(self, calls: SimpleQueue[bool]) -> None:
        while calls.get():
            while self._waiting:  # blocking callers may be queued before the one that called
                with self._gate, self._lock:
                    self._commit_waiting()

    def _commit_waiting(self) -> None:
        """Run a group of queued verbs in one transaction. The caller holds the lock."""
        group: list[QueuedVerb[Any]] = []
        while self._waiting and len(group) < LARGEST_GROUP:
            group.append(self._waiting.popleft())
        if not group:
            return
        # Claims last. A claim begins with several short statements, a report is one long one: that
        # runs without the GIL while the event loop starts the jobs of the claim before.
        if len(group) > 1:
            group.sort(key=lambda request: request.verb.claim_lane)
        try:
            self._run_group(group)
        except sqlite3.Error as error:
            self._roll_back()
            for request in group:
                request.error = self._translate(error, request.verb.action)
        except DatabaseReplaced as error:
            self._drop()
            for request in group:
                request.error = error
        except Exception as error:  # noqa: BLE001 - goes to the callers
            self._roll_back()
            for request in group:
                request.error = request.error or error
        except BaseException:  # Ctrl-C is for the thread that it reached, not for the other callers
            self._roll_back()
            for request in group:
                request.error = TransientStorageError(f"{request.verb.action} was interrupted.")
            raise
        finally:
            for request in group:
                request.done = True
                if request.wakes is not None:
                    _wake(request.wakes)

    def _run_group(self, group: list[QueuedVerb[Any]]) -> None:
        if self._connection is None:
            self._connection = self._connect()
            self._connection.execute(f"PRAGMA busy_timeout = {int(ASK_FOR * 1000)}")
        connection = self._connection
        self._begin(connection)
        if len(group) == 1:
            group[0].result = self._drive(connection, group[0].verb)
        elif not self._run_together(connection, group):
            self._begin(connection)
            for request in group:
                self._run_member(connection, request)
        connection.execute("COMMIT")
        self.commits += 1
        try:
            self._after_commit(connection)
        except sqlite3.Error:  # the writes are committed
            log.debug("cleaning up after a commit failed", exc_info=True)

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the file's write lock, retrying while another connection holds it."""
        give_up_at = time.monotonic() + self._busy_timeout
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_at:
                    raise
            else:
                return

    def _run_together(self, connection: sqlite3.Connection, group: list[QueuedVerb[Any]]) -> bool:
        """Run a group of several; False if a verb failed and all were rolled back.

        Savepoints would double the steps of a group, and failures are rare. Verbs can be run
        again, so after a failure each member is, in a savepoint of its own.
        """
        try:
            for request in group:
                request.result = self._drive(connection, request.verb)
        except Exception:
            self._roll_back()
            if self._connection is None:  # the rollback failed, too
                raise
            return False
        return True

    def _run_member(self, connection: sqlite3.Connection, request: QueuedVerb[Any]) -> None:
        """Run one member in a savepoint, so that its failure does not affect the others."""
        connection.execute("SAVEPOINT member")
        try:
            request.result = self._drive(connection, request.verb)
        except Exception as error:
            if not connection.in_transaction:  # SQLite has rolled back the whole group
                raise
            connection.execute("ROLLBACK TO member")
            if isinstance(error, sqlite3.Error):
                error = self._translate(error, request.verb.action)
            request.error = error
        connection.execute("RELEASE member")

    def _drive(self, connection: sqlite3.Connection, verb: Verb[T]) -> T:
        """Run a verb's script; returns its value.

        It sees one instant, read after the wait for the lock. Only leases begin when they are
        granted: the scan before them may have passed millions of jobs of other topics.
        """
        clock = now = self._clock()
        script = verb.script()
        try:
            statement = next(script)
            while True:
                statement = script.send(self._execute(connection, statement, now, clock))
                clock = self._clock()
        except StopIteration as finished:
            value: T = finished.value
            return value

    def _roll_back(self) -> None:
        connection = self._connection
        if connection is not None and connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error:  # unusable: the next verb opens a new connection
                self._connection = None
                connection.close()


def _wake(finished: asyncio.Future[None]) -> None:
    """Set a future of an event loop, from another thread."""
    try:  # noqa: SIM105 - at every write
        finished.get_loop().call_soon_threadsafe(_set, finished)
    except RuntimeError:  # the loop was closed: no task waits any more
        pass


def _set(finished: asyncio.Future[None]) -> None:
    if not finished.done():  # else its task was cancelled
        finished.set_result(None)

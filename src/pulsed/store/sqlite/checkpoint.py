"""Checkpoints: when the write-ahead log is written back into the database.

SQLite's own checkpoints are turned off, and these run under the write lock: SQLite before 3.51.3
can corrupt the log when one process checkpoints while another one starts to write.
"""

from __future__ import annotations

import sqlite3

from pulsed.store.sqlite.file import FileConnection

CHECKPOINT_AT = 4 * 1024 * 1024
"""Bytes of write-ahead log after which a checkpoint writes it back into the database."""

WAL_RESET_FIXED = (3, 51, 3)
"""In older versions, a checkpoint concurrent with another process's write can corrupt the log."""


class Checkpointer:
    """Keeps the log of one file short; ``log`` is its path, or None for a database in memory."""

    def __init__(self, log: str | None) -> None:
        self._log = log
        self.at = CHECKPOINT_AT
        """The size of the log, in bytes, beyond which the next checkpoint is tried."""

    def configure(self, connection: sqlite3.Connection) -> None:
        """Leave the checkpoints of a writing connection to this class."""
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_AT:d}")

    def after_commit(self, connection: sqlite3.Connection) -> None:
        """Write the log back when it has filled its file.

        The file is kept, because overwriting it costs half as much as extending it: a growing file
        has its new size written to the disk as well, at every commit. So it grows beyond
        ``CHECKPOINT_AT`` only when the log reaches its end, and the commit after the checkpoint
        truncates it to that size (``journal_size_limit``).
        """
        if self._log is None or not isinstance(connection, FileConnection):
            return
        try:
            size = connection.size_of_log(self._log)
        except OSError:
            return
        if size <= CHECKPOINT_AT:
            self.at = CHECKPOINT_AT
        if size <= self.at:
            return
        try:
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.OperationalError:
            busy = 1
        # A reader blocks it: let the log grow by as much again before the next attempt.
        self.at = size + CHECKPOINT_AT if busy else size

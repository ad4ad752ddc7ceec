"""Opens the connections of a store to its file, or to its database in memory."""

from __future__ import annotations

import sqlite3
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pulsed.errors import ConfigError, StorageError, StorageReadOnly
from pulsed.model.backoff import Backoff
from pulsed.store.sql_store.store import StoreOptions
from pulsed.store.sqlite.checkpoint import Checkpointer
from pulsed.store.sqlite.file import FileConnection, create, refuse_inherited, remember


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions(StoreOptions):
    """How to use the file."""

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """NORMAL is faster; a power failure may then undo the last commits."""
    busy_timeout: float = 10.0
    """Seconds to wait for another process's write lock, before the storage retry takes over.

    Longer than a step may take: a shorter wait could miss every gap between two steps."""
    max_pages: int | None = None
    create: bool = True
    """Create the file if it does not exist; a command that only reads should not."""


class Connections:
    """The connections of one store; what is still open is closed when this is collected."""

    def __init__(self, path: Path | None, options: SqliteOptions, log: Checkpointer) -> None:
        self._path = path
        self._options = options
        self._checkpointer = log
        self._open: set[FileConnection] = set()
        weakref.finalize(self, _close_all, self._open).atexit = False

    def forget_inherited(self) -> list[object]:
        """Forget all connections in a forked child; returns them, because none may be closed."""
        inherited: list[object] = [*self._open]
        self._open.clear()
        return inherited

    def open_writer(self) -> sqlite3.Connection:
        """Open a connection that writes."""
        connection = self._connect()
        try:
            if self._path is not None:
                self._switch_to_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self._options.synchronous}")
            self._checkpointer.configure(connection)
            if self._options.max_pages is not None:
                connection.execute(f"PRAGMA max_page_count = {self._options.max_pages:d}")
        except BaseException:
            connection.close()
            raise
        return connection

    def open_reader(self) -> sqlite3.Connection:
        """Open a connection that only reads."""
        connection = self._connect()
        connection.execute("PRAGMA query_only = 1")
        return connection

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigError(
                f"{self._path} cannot be used in WAL mode (its file system may lack shared "
                "memory). Put the database on a local disk."
            )

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:
            self._find_file(self._path)
        connection = sqlite3.connect(
            ":memory:" if self._path is None else self._path,
            timeout=self._options.busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=FileConnection,
        )
        if isinstance(connection, FileConnection):
            connection.among = self._open
            self._open.add(connection)
        connection.create_function("pulse_backoff", 6, _backoff)
        if self._path is not None:
            remember(connection, self._path)
        return connection

    def _find_file(self, path: Path) -> None:
        """Create the file if that is allowed; raise unless this process may open it."""
        try:
            exists = path.exists()
        except PermissionError as error:
            raise StorageReadOnly(
                f"{path} cannot be opened: this user may not read its folder. Check the "
                "owner and the mode of the folders above it."
            ) from error
        if not exists and not self._options.create:
            raise StorageError(
                f"There is no database at {path}. Is this the right path? The first worker or "
                "the first enqueued job creates it."
            )
        refuse_inherited(path)
        if not exists:
            create(path)


def _close_all(connections: set[FileConnection]) -> None:
    for connection in list(connections):
        connection.close()


def _backoff(*policy_and_attempts: float) -> float:
    *policy, attempts = policy_and_attempts
    return Backoff(*policy).delay(int(attempts))

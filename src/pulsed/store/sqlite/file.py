"""Detects a replaced database file, and a file that a forked child must not open.

A file that is removed or replaced while it is open lives on without a name. A process that has it
open could write to it for ever, and no other process would see those writes.

A forked child must not open a file that was open in its parent at the fork: the child inherits
SQLite's in-memory table of that file's locks, but not the locks themselves.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import weakref
from pathlib import Path

from pulsed.errors import StorageError
from pulsed.store.fork import keep_for_ever


class FileConnection(sqlite3.Connection):
    """A connection that knows the device and inode of its file."""

    file: tuple[int, int] | None = None
    """Device and inode number, unique to a file; None where the system has none."""
    log: int | None = None
    """A descriptor of its write-ahead log, once its size was asked for."""
    among: set[FileConnection] | None = None
    """The open connections of its store, which it leaves when it is closed."""

    def size_of_log(self, log: str) -> int:
        """Return the bytes of its write-ahead log, whose path is ``log``.

        Not by ``stat``: that reads the time of the last write, and Linux since 6.13 then stores a
        new time with the next write, by a transaction of the file system, which made a commit
        slower by a quarter. SQLite has no lock on this file that closing a descriptor would drop.
        """
        if self.log is None:
            self.log = os.open(log, os.O_RDONLY)
        return os.lseek(self.log, 0, os.SEEK_END)

    def close(self) -> None:
        if self.log is not None:  # first: where files in use cannot be removed, SQLite could not
            os.close(self.log)
            self.log = None
        super().close()
        if self.among is not None:
            self.among.discard(self)


FOR_ITS_OWNER = 0o600


def create(path: Path) -> None:
    """Create an empty file that only its owner can read, unless it exists.

    SQLite gives its log the same mode. An existing file is never opened: closing it would drop the
    locks that this process holds on it.
    """
    with contextlib.suppress(OSError):  # SQLite reports what is wrong with the path
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
        os.close(os.open(os.path.realpath(path), flags, FOR_ITS_OWNER))


def is_writable(path: Path) -> bool:
    """Whether this user may write to a file and to its folder, where the log is."""
    effective = os.access in os.supports_effective_ids
    return all(os.access(each, os.W_OK, effective_ids=effective) for each in (path, path.parent))


def size_of(path: Path) -> int:
    """Return the bytes of a database with its log."""
    parts = (path, path.with_name(f"{path.name}-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())


def mode_of(path: Path) -> str:
    """Return a file's mode, such as 0600; empty on systems without modes."""
    if os.name != "posix":
        return ""
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def remember(connection: sqlite3.Connection, path: Path) -> None:
    """Record which file a new connection has opened."""
    if not isinstance(connection, FileConnection):
        return
    _connections.add(connection)
    with contextlib.suppress(OSError):
        found = path.stat()
        connection.file = (found.st_dev, found.st_ino) if found.st_ino else None


def is_replaced(connection: sqlite3.Connection, path: str) -> bool:
    """Whether ``path`` no longer names the file of the connection."""
    if not isinstance(connection, FileConnection) or connection.file is None:
        return False
    try:
        found = os.stat(path)  # noqa: PTH116 - at every commit; a Path is slower
    except FileNotFoundError:
        return True
    except OSError:  # a folder that this user may no longer enter: the file may be unchanged
        return False
    return (found.st_dev, found.st_ino) != connection.file


_connections: weakref.WeakSet[FileConnection] = weakref.WeakSet()
_inherited: set[tuple[int, int]] = set()
"""Device and inode number of the files that were open when this process was forked."""


def refuse_inherited(path: Path) -> None:
    """Raise StorageError for a file that was open when this process was forked."""
    if not _inherited:
        return
    with contextlib.suppress(OSError):
        found = path.stat()
        if (found.st_dev, found.st_ino) in _inherited:
            raise StorageError(
                f"{path} was open when this process was forked, and SQLite's locks do not survive "
                "that: what is written here could be lost. Close your own connections to it before "
                "you fork, fork outside of steps with tx=True, or start processes by spawn."
            )


def _note_inherited() -> None:
    """Record all files that a forked child has open, pulsed's or not, and close none of them."""
    _inherited.update(_open_files())
    for connection in _connections:
        keep_for_ever(connection)


def _open_files() -> set[tuple[int, int]]:
    """Return all regular files that this process has open; empty where the system lists none."""
    found = map(_status, _descriptors())
    return {(it.st_dev, it.st_ino) for it in found if it and stat.S_ISREG(it.st_mode)}


def _descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(folder)]  # noqa: PTH208 - at every fork
    return []


def _status(descriptor: int) -> os.stat_result | None:
    try:
        return os.fstat(descriptor)
    except OSError:  # the descriptor of the listing itself is closed by now
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_inherited)

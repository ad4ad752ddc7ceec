"""Whether a connection still has the file at its path, and whether this process may open it.

A file that is removed or replaced while it is open lives on without a name. A process that has it
open could go on writing there for ever, and nobody would ever see it.

A forked child may not open what was open in its parent at that moment: SQLite has one table of
locks for each file, it came with the fork, and the locks that are in it did not.
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
    """A connection that remembers which file it has opened."""

    file: tuple[int, int] | None = None
    """Device and number, which two files do not share; None where they are not known."""
    among: set[FileConnection] | None = None
    """Those of its store that are open."""

    def close(self) -> None:
        super().close()
        if self.among is not None:
            self.among.discard(self)


FOR_ITS_OWNER = 0o600


def create(path: Path) -> None:
    """Make an empty file that only its owner can read, unless there is one.

    SQLite gives its log the same mode. Never opens a file that is there: closing it would drop
    the locks that this process has on it.
    """
    with contextlib.suppress(OSError):  # what is wrong with the path, SQLite says
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
        os.close(os.open(os.path.realpath(path), flags, FOR_ITS_OWNER))


def is_writable(path: Path) -> bool:
    """Whether this user may write to a file, and to its folder, where the log is."""
    effective = os.access in os.supports_effective_ids
    return all(os.access(each, os.W_OK, effective_ids=effective) for each in (path, path.parent))


def mode_of(path: Path) -> str:
    """Return a file's mode, as in 0600; empty where files have none."""
    if os.name != "posix":
        return ""
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def remember(connection: sqlite3.Connection, path: Path) -> None:
    """Note which file a connection has just opened."""
    if not isinstance(connection, FileConnection):
        return
    _connections.add(connection)
    with contextlib.suppress(OSError):
        found = path.stat()
        connection.file = (found.st_dev, found.st_ino) if found.st_ino else None


def is_replaced(connection: sqlite3.Connection, path: str) -> bool:
    """Whether another file is at ``path`` by now, or none."""
    if not isinstance(connection, FileConnection) or connection.file is None:
        return False
    try:
        found = os.stat(path)  # noqa: PTH116 - at every commit; a Path is slower
    except FileNotFoundError:
        return True
    except OSError:  # a folder that may not be entered any more says nothing about the file
        return False
    return (found.st_dev, found.st_ino) != connection.file


_connections: weakref.WeakSet[FileConnection] = weakref.WeakSet()
_inherited: set[tuple[int, int]] = set()
"""Device and number of the files that this process has had open since it was forked."""


def refuse_inherited(path: Path) -> None:
    """Refuse a file that was open when this process was forked."""
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
    """Note which files a forked child has open, our own or not, and close none of them."""
    _inherited.update(_open_files())
    for connection in _connections:
        keep_for_ever(connection)


def _open_files() -> set[tuple[int, int]]:
    """Return all regular files that this process has open, where the system tells."""
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
    except OSError:  # that of the listing itself is closed by now
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_inherited)

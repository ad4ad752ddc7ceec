"""Whether a connection still has the file that is at its path.

A file that is removed or replaced while it is open lives on without a name. Whoever has it open
could go on writing there for ever, and nobody would ever see it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path


class FileConnection(sqlite3.Connection):
    """A connection that remembers which file it has opened."""

    file: tuple[int, int] | None = None
    """Device and number, which two files do not share; None where they are not known."""


FOR_ITS_OWNER = 0o600


def create(path: Path) -> None:
    """Make an empty file that only its owner can read, unless there is one.

    SQLite gives its log the same mode. Never opens a file that is there: closing it would drop
    the locks that this process has on it.
    """
    with contextlib.suppress(OSError):  # what is wrong with the path, SQLite says
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
        os.close(os.open(os.path.realpath(path), flags, FOR_ITS_OWNER))


def mode_of(path: Path) -> str:
    """Return a file's mode, as in 0600; empty where files have none."""
    if os.name != "posix":
        return ""
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def remember(connection: sqlite3.Connection, path: Path) -> None:
    """Note which file a connection has just opened."""
    if not isinstance(connection, FileConnection):
        return
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

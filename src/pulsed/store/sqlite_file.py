"""Whether a connection still has the file that is at its path.

A file that is removed or replaced while it is open lives on without a name. Whoever has it open
could go on writing there for ever, and nobody would ever see it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path


class FileConnection(sqlite3.Connection):
    """A connection that remembers which file it has opened."""

    file: tuple[int, int] | None = None
    """Device and number, which two files do not share; None where they are not known."""


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

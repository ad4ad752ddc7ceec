"""Temporary files in memory: a commit that waits for a real disk proves nothing to a test.

Nothing here pulls the plug of the machine, so nothing can tell the difference, and every commit of
SQLite would otherwise wait for the disk.
"""

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes that must be free: in a container there are often just 64 MiB."""


def use_memory() -> None:
    """Put temporary files of this process and of those it starts there, unless TMPDIR is set."""
    if "TMPDIR" in os.environ or not has_room(MEMORY):
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def has_room(folder: Path) -> bool:
    """Whether we may write a test session's files there."""
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= ROOM

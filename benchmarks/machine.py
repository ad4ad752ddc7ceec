"""The machine of a run: a figure means nothing without it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path

from pulsed.store.sqlite.place import file_system
from pulsed.version import __version__
from tests.support.scratch_postgres import find_binaries

LIBRARIES = ("asyncpg", "psycopg", "uvloop", "msgspec")


def describe() -> dict[str, str]:
    """Return the machine and the versions as text."""
    found = {
        "processor": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "disk": f"{_disk()}, {1e3 * _sync_seconds():.2f} ms for a write and fdatasync of 4 KB",
        "pulsed": __version__,
        "Python": platform.python_version(),
        "SQLite": f"{sqlite3.sqlite_version}, synchronous=FULL",
        "PostgreSQL": f"{_postgres()}, fsync and synchronous_commit on, settings as shipped",
    }
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            found[library] = "not installed"
    return found


def code() -> str:
    """Name the commit that last changed what is measured; the version where there is none."""
    last = _git("log", "-1", "--format=%h", "--", "src")
    if not last:
        return __version__
    return f"{last} with changes" if _git("status", "--porcelain", "--", "src") else last


def _git(*arguments: str) -> str:
    root = Path(__file__).resolve().parent.parent
    try:
        asked = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return asked.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _postgres() -> str:
    return ".".join(map(str, find_binaries().version))


def _disk() -> str:
    kind = file_system(Path(tempfile.gettempdir()))
    return f"{kind} (MEMORY, NOT A DISK: set TMPDIR)" if kind == "tmpfs" else kind


def _sync_seconds(times: int = 50) -> float:
    """Measure what a durable write costs here, which is most of what single commits cost."""
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        for _ in range(times):
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / times

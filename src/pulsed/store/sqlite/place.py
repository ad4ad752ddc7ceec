"""The file system that an SQLite file is on, and the process that holds its write lock.

SQLite cannot rely on the locks of a network file system.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
LOCKS = Path("/proc/locks")

WRITE_LOCK = 120
"""The byte of the shared-memory file that a writer locks."""

REMOTE = frozenset(
    {
        "9p",
        "afs",
        "afpfs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
        "virtiofs",
    }
)
"""File systems that other machines can write to at the same time."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system a path is on, with ``remote:`` before a shared one.

    ``unknown`` where the system does not list its mounts.
    """
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
        place = path.resolve()
    except OSError:
        return "unknown"
    kinds = {point: kind for point, kind in map(_mount, lines) if place.is_relative_to(point)}
    if not kinds:
        return "unknown"
    kind = kinds[max(kinds, key=len)]
    return f"remote:{kind}" if kind in REMOTE else kind


def _mount(line: str) -> tuple[str, str]:
    """Return the mount point and type of one line; spaces in a mount point are octal escapes."""
    fields, _, rest = line.partition(" - ")
    point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields.split()[4])
    return point, rest.split()[0]


def lock_holder(path: Path, locks: Path = LOCKS) -> str:
    """Return which process holds a database's write lock, as the subject of a sentence.

    Read from the kernel's list: opening the file to ask would drop this process's locks on it.
    """
    try:
        found = Path(f"{path}-shm").stat()
        lines = locks.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "Another process"
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        fields = line.split()
        if fields[1:2] == ["POSIX"] and fields[3] == "WRITE" and fields[5] == file:
            first, last = int(fields[6]), fields[7]
            if first <= WRITE_LOCK and (last == "EOF" or int(last) >= WRITE_LOCK):
                return _named(int(fields[4]))
    return "Another process"


def _named(process: int) -> str:
    if process == os.getpid():
        return "This process, in a step with tx=True or on a connection of yours,"
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return "Another process"
    words = " ".join(command.split("\0")).strip()
    return f"Process {process} ({words[:80]})"

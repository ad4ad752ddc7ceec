"""Where an SQLite file lies: a network file system has no locks that it could rely on."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

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
"""Kinds that other machines can write to at the same time."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the kind of file system a path is on, with ``remote:`` before a shared one.

    ``unknown`` where the system does not tell.
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
    """Return mount point and kind of one line; a space in a point is written in octal."""
    fields, _, rest = line.partition(" - ")
    point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields.split()[4])
    return point, rest.split()[0]

"""A small disk that can be filled: a tmpfs in a mount namespace of this process and its children.

So nothing is left mounted, however the process ends. Where a mount is not permitted there is no
such disk, and the storm says that it left this fault out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from pathlib import Path

CLONE_NEWNS = 0x00020000
"""From the kernel's headers."""


def mount(folder: Path, megabytes: int) -> bool:
    """Put a disk of this size there; false where that is not permitted."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return False
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        return False
    options = f"size={megabytes}m,mode=0755"
    commands = (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
    )
    return all(
        subprocess.run(each, capture_output=True, check=False).returncode == 0 for each in commands
    )


def unmount(folder: Path) -> None:
    """Take it away."""
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def fill(folder: Path) -> Path:
    """Use up all that is free; returns the file that does."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for piece in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * piece):
                    pass
    return ballast

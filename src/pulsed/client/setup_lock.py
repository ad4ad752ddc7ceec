"""The lock around an app's first use: two stores on one SQLite file would be two writers.

A fork waits for it: in the child, the lock of a module that another thread was importing would
never be released.
"""

from __future__ import annotations

import contextlib
import os
import threading

from pulsed.store.fork import LONGEST_IMPORT

_lock = threading.RLock()


def setup_lock() -> threading.RLock:
    """Return the lock of this process, for a ``with``."""
    return _lock


def _before() -> None:
    _lock.acquire(timeout=LONGEST_IMPORT)


def _in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # the wait for the lock timed out
        _lock.release()


def _in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.RLock()


# The hooks of the stores are registered above, by the import of ``store.fork``; the last one
# registered is the first that runs before a fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

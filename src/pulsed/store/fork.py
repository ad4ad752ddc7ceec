"""Fork safety: work in flight drains before a fork, and a child uses nothing of its parent.

A connection belongs to the process that opened it. Closing the copy in the child would end the
parent's server session, or roll back its transaction; so the child leaks the copy and never uses
it.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - has hooks, which a fork must find complete
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress

DRAIN_TIMEOUT = 5.0
"""Seconds that a fork waits for work in flight to drain."""

LONGEST_IMPORT = 30.0
"""Seconds that a fork waits for another thread's imports, which are slow on a busy machine."""


class ForkAware(ABC):
    """An owner of connections, threads or locks, which has to prepare for a fork."""

    def pause(self, give_up_at: float) -> None:  # noqa: B027 - most have no need to
        """Drain before a fork and stay idle until ``resume``; give up at this monotonic time."""

    def resume(self) -> None:  # noqa: B027
        """Continue in the parent after the fork."""

    @abstractmethod
    def forget_inherited(self) -> list[object]:
        """Reset the state in a forked child; return the inherited objects, not to be closed."""


class Gate:
    """A gate that a fork shuts: it blocks new uses of a connection and drains those in flight.

    Its lock is reentrant because a signal handler may fork in the middle of a method here.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset in a forked child, where no thread is inside."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._is_shut = False

    def __enter__(self) -> None:
        with self._lock:  # at every use; the condition itself is entered in Python
            while self._is_shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._is_shut:
                self._changed.notify_all()

    def shut(self, give_up_at: float) -> bool:
        """Block new entries and wait; returns whether all threads inside left in time."""
        with self._changed:
            self._is_shut = True
            left = give_up_at - time.monotonic()
            return self._changed.wait_for(lambda: self._inside == 0, max(left, 0))

    def open(self) -> None:
        """Admit the threads that wait, and new ones."""
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_forking = threading.RLock()
"""Held from before a fork until after it, and while ``_aware`` changes."""


class _Forks(threading.local):
    """The number of nested forks in progress in a thread.

    More than one if a signal handler forks while hooks of another fork run: the inner fork must
    not resume the owners before the outer one is over.
    """

    depth = 0


_forks = _Forks()


def watch_forks(owner: ForkAware) -> None:
    """Call the hooks of ``owner`` at every fork, for as long as it lives."""
    import ctypes  # noqa: F401, PLC0415 - slow, and a forked child must find it loaded

    with _forking:
        _aware.add(owner)


def _before() -> None:
    give_up_at = time.monotonic() + DRAIN_TIMEOUT
    if not _forking.acquire(timeout=DRAIN_TIMEOUT):
        return
    _forks.depth += 1
    for owner in list(_aware):
        owner.pause(give_up_at)


def _in_parent() -> None:
    if not _forks.depth:  # another thread held the lock, and _before gave up on it
        return
    _forks.depth -= 1
    if not _forks.depth:
        for owner in list(_aware):
            owner.resume()
    with suppress(RuntimeError):  # the child of an inner fork has another lock
        _forking.release()


def _in_child() -> None:
    global _forking  # noqa: PLW0603 - another thread of the parent may have had the lock
    _forking = threading.RLock()
    _forks.depth = max(_forks.depth - 1, 0)
    for _ in range(_forks.depth):  # the outer fork is still pending, in this process too
        _forking.acquire()
    for owner in list(_aware):
        for inherited in owner.forget_inherited():
            keep_for_ever(inherited)


def keep_for_ever(inherited: object) -> None:
    """Leak an object, so that not even the interpreter's exit finalizes it."""
    import ctypes  # noqa: PLC0415 - loaded by then, see ``watch_forks``

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

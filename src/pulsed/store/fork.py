"""Forks: what is under way comes to rest first, and a child takes over nothing of its parent.

A connection belongs to the process that opened it. Closing the copy in the child would end the
parent's server session, or roll back its transaction; so the copy is kept and never used again.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - has hooks, which a fork must find complete
import ctypes
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress

PATIENCE = 5.0
"""Seconds that a fork waits for what is under way."""

LONGEST_IMPORT = 30.0
"""Seconds that it waits for another thread's imports, at which a busy machine is slow."""


class ForkAware(ABC):
    """Something with connections, threads or locks."""

    def pause(self, give_up_at: float) -> None:  # noqa: B027 - most have no need to
        """Come to rest before a fork, until ``resume``; not later than this monotonic time."""

    def resume(self) -> None:  # noqa: B027
        """Go on in the parent."""

    @abstractmethod
    def forget_inherited(self) -> list[object]:
        """Start afresh in a forked child; return what must not be closed."""


class Gate:
    """Every use of a connection passes through it; a fork shuts it, and waits for those inside.

    Its lock is reentrant because a signal handler may fork in the middle of a method here.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start afresh in a forked child, where nobody is inside."""
        self._changed = threading.Condition()
        self._inside = 0
        self._is_shut = False

    def __enter__(self) -> None:
        with self._changed:
            while self._is_shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._is_shut:
                self._changed.notify_all()

    def shut(self, give_up_at: float) -> bool:
        """Let nobody in any more; whether everybody was out in time."""
        with self._changed:
            self._is_shut = True
            left = give_up_at - time.monotonic()
            return self._changed.wait_for(lambda: self._inside == 0, max(left, 0))

    def open(self) -> None:
        """Let everybody in again."""
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_forking = threading.RLock()
"""Held from before a fork until after it, and while ``_aware`` changes."""


class _Forks(threading.local):
    """The forks that a thread is in the middle of.

    More than one if a signal handler forks while hooks of another fork run: the inner fork must
    not let others go on before the outer one is over.
    """

    depth = 0


_forks = _Forks()


def watch_forks(owner: ForkAware) -> None:
    """Tell ``owner`` of every fork, for as long as it lives."""
    with _forking:
        _aware.add(owner)


def _before() -> None:
    give_up_at = time.monotonic() + PATIENCE
    if not _forking.acquire(timeout=PATIENCE):
        return
    _forks.depth += 1
    for owner in list(_aware):
        owner.pause(give_up_at)


def _in_parent() -> None:
    if not _forks.depth:  # the lock was another thread's
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
    for _ in range(_forks.depth):  # an outer fork is still to come, in this process too
        _forking.acquire()
    for owner in list(_aware):
        for inherited in owner.forget_inherited():
            keep_for_ever(inherited)


def keep_for_ever(inherited: object) -> None:
    """Leave an object alone even when the interpreter ends and clears everything else."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

"""After a fork the child lets go of everything it inherited, without touching it.

A connection belongs to the process that opened it. Closing the copy in the child would say goodbye
to the parent's server session, or checkpoint the parent's file; so it is kept and never used again.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Something with connections, threads or locks."""

    def forget_inherited(self) -> list[object]:
        """Start afresh in a forked child; return what must not be closed."""


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_never_closed: list[object] = []


def watch_forks(owner: ForkAware) -> None:
    """Have ``owner.forget_inherited()`` called in every forked child, for as long as it lives."""
    _aware.add(owner)


def _in_child() -> None:
    for owner in list(_aware):
        _never_closed.extend(owner.forget_inherited())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

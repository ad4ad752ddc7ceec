"""One object for each event loop, such as a pool, which cannot be used in another loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Keeps one object for each event loop, and drops those of closed loops."""

    def __init__(self) -> None:
        self._kept: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self, make: Callable[[], T]) -> T:
        """Return the running loop's object; the first call creates it with ``make``."""
        return self.of(asyncio.get_running_loop(), make)

    def of(self, loop: asyncio.AbstractEventLoop, make: Callable[[], T]) -> T:
        """Return the object of a loop, which is the running one."""
        kept = self._kept.get(loop)
        if kept is None:
            self.forget_ended()
            kept = self._kept[loop] = make()
        return kept

    def forget_here(self) -> T | None:
        """Remove and return the running loop's object, if it has one."""
        return self._kept.pop(asyncio.get_running_loop(), None)

    def forget_ended(self) -> None:
        """Drop the objects of closed loops, which nothing can close any more."""
        for loop in list(self._kept):
            if loop.is_closed():
                self._kept.pop(loop, None)

    def forget_all(self) -> list[T]:
        """Remove and return all objects."""
        kept = list(self._kept.values())
        self._kept.clear()
        return kept

    def known(self) -> T | None:
        """Return the running loop's object; None if it has none, or if no loop runs."""
        try:
            return self._kept.get(asyncio.get_running_loop())
        except RuntimeError:
            return None

    def __len__(self) -> int:
        return len(self._kept)

"""One thing for each event loop, such as a pool: what belongs to a loop works in no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Keeps one for each event loop that asks; those of loops that were closed are dropped."""

    def __init__(self) -> None:
        self._kept: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self, make: Callable[[], T]) -> T:
        """Return the running loop's; the first time, what ``make`` makes."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        if kept is None:
            self.forget_ended()
            kept = self._kept[loop] = make()
        return kept

    def forget_here(self) -> T | None:
        """Return the running loop's, if there is one, and keep it no longer."""
        return self._kept.pop(asyncio.get_running_loop(), None)

    def forget_ended(self) -> None:
        """Keep nothing of loops that were closed: it can only be dropped."""
        for loop in list(self._kept):
            if loop.is_closed():
                self._kept.pop(loop, None)

    def forget_all(self) -> list[T]:
        """Return all that are kept, and keep none."""
        kept = list(self._kept.values())
        self._kept.clear()
        return kept

    def known(self) -> T | None:
        """Return the running loop's, if there is a loop that has one."""
        try:
            return self._kept.get(asyncio.get_running_loop())
        except RuntimeError:
            return None

    def __len__(self) -> int:
        return len(self._kept)

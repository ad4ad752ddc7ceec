"""One thing for each event loop, such as a pool: what belongs to a loop works in no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Keeps one for each event loop that asks; those of loops that were closed are dropped."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[asyncio.AbstractEventLoop, T]] = {}

    def here(self, make: Callable[[], T]) -> T:
        """Return the running loop's; the first time, what ``make`` makes."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(id(loop))
        if kept is not None and kept[0] is loop:
            return kept[1]
        self.forget_ended()  # the id of a loop that was closed may be another loop's by now
        made = make()
        self._kept[id(loop)] = (loop, made)
        return made

    def forget_here(self) -> T | None:
        """Return the running loop's, if there is one, and keep it no longer."""
        _, kept = self._kept.pop(id(asyncio.get_running_loop()), (None, None))
        return kept

    def forget_ended(self) -> None:
        """Keep nothing of loops that were closed: it can only be dropped."""
        for key, (known, _) in list(self._kept.items()):
            if known.is_closed():
                self._kept.pop(key, None)

    def forget_all(self) -> list[T]:
        """Return all that are kept, and keep none."""
        kept = [thing for _, thing in self._kept.values()]
        self._kept.clear()
        return kept

    def known(self) -> T | None:
        """Return the running loop's, if there is a loop that has one."""
        try:
            return self._kept.get(id(asyncio.get_running_loop()), (None, None))[1]
        except RuntimeError:
            return None

    def __len__(self) -> int:
        return len(self._kept)

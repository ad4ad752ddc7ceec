"""An answer that is filled from the store in parts, and reads little more than fits into it.

The size of items is not known before they are read. So the first part is small, and each further
one is as large as the items before it suggest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from google.protobuf.message import Message

from pulsed.rpc.messages.contract import LARGEST_ANSWER

T = TypeVar("T")
M = TypeVar("M", bound=Message)

FIRST_PART = 100
"""Items to read before their size is known."""
LARGEST_PART = 4_000
GROWTH = 4


class SizedPage(Generic[T, M]):
    """The messages of one answer; at least one, however large it is."""

    def __init__(self, pack: Callable[[T], M], *, limit: int | None = None) -> None:
        self._pack = pack
        self._limit = limit
        self._size = 0
        self._next = FIRST_PART
        self.messages: list[M] = []
        self.is_cut = False
        """Some items did not fit; the client must request them again."""

    @property
    def wanted(self) -> int:
        """How many items to read next; 0 if there is no room for them."""
        if self.is_cut:
            return 0
        count = self._next
        if self.messages:
            average = self._size // len(self.messages) + 1
            count = min(count, (LARGEST_ANSWER - self._size) // average + 1)
        return count if self._limit is None else min(count, self._limit - len(self.messages))

    async def fill_from(self, read: Callable[[int, T | None], Awaitable[Sequence[T]]]) -> None:
        """Fill it part by part; ``read`` gets a count, and the last item of the part before."""
        last: T | None = None
        while count := self.wanted:
            items = await read(count, last)
            self.fill(items)
            if len(items) < count:
                return
            last = items[-1]

    def fill(self, items: Iterable[T]) -> int:
        """Pack as many items as there is room for; returns how many."""
        before = len(self.messages)
        self._next = min(self._next * GROWTH, LARGEST_PART)
        for item in items:
            message = self._pack(item)
            size = message.ByteSize()
            if self.messages and self._size + size > LARGEST_ANSWER:
                self.is_cut = True
                break
            self._size += size
            self.messages.append(message)
        return len(self.messages) - before

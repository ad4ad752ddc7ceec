"""Splits items into batches, bounded by number and by bytes.

A transaction or a message needs both bounds: a thousand small items fit where ten large ones do
not. An item that is larger than a batch is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Limits(NamedTuple):
    """The maximum size of a batch."""

    items: int
    bytes: int


TRANSACTION = Limits(500, 4 * 1024 * 1024)
"""What one transaction writes: tens of milliseconds, for which other writers may wait."""


def text_size(text: str | None) -> int:
    """Return the size of a text in bytes of UTF-8; an ASCII text need not be encoded."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def halves(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split a batch in two, to find the item that makes it fail."""
    middle = len(items) // 2
    return items[:middle], items[middle:]


def first_batch(items: Sequence[T], size: Callable[[T], int], limits: Limits) -> Sequence[T]:
    """Return the items at the head that fit into a batch: at least one, if there are any."""
    head = items[: limits.items]
    sizes = list(map(size, head))
    if sum(sizes) <= limits.bytes:
        return head
    fitting = sum(total <= limits.bytes for total in accumulate(sizes))
    return head[: max(1, fitting)]


class Gathering(Generic[T]):
    """A batch that is being filled."""

    def __init__(self, size: Callable[[T], int], limits: Limits) -> None:
        self._size = size
        self._limits = limits
        self._items: list[T] = []
        self._number = self._bytes = 0

    def add(self, item: T, number: int = 1) -> Iterator[list[T]]:
        """Add an item; yields the earlier batch if it has no room, and the item's own once full."""
        size = self._size(item)
        if self._items and (
            self._number + number > self._limits.items or self._bytes + size > self._limits.bytes
        ):
            yield self.take()
        self._items.append(item)
        self._number += number
        self._bytes += size
        if self._number >= self._limits.items or self._bytes >= self._limits.bytes:
            yield self.take()

    def extend(self, items: Sequence[T]) -> Iterator[list[T]]:
        """Add items as ``add`` does one by one, but at once if all of them fit."""
        size, number = sum(map(self._size, items)), self._number + len(items)
        if number < self._limits.items and self._bytes + size < self._limits.bytes:
            self._items += items
            self._number = number
            self._bytes += size
            return
        for item in items:
            yield from self.add(item)

    def take(self) -> list[T]:
        """Return the items of the batch, and start a new one."""
        items, self._items = self._items, []
        self._number = self._bytes = 0
        return items


def batches(
    items: Iterable[T],
    size: Callable[[T], int],
    limits: Limits = TRANSACTION,
    *,
    count: Callable[[T], int] = lambda _: 1,
) -> Iterator[list[T]]:
    """Yield the items in batches within the limits; ``count`` is what an item counts for."""
    gathering = Gathering(size, limits)
    for item in items:
        yield from gathering.add(item, count(item))
    if rest := gathering.take():
        yield rest

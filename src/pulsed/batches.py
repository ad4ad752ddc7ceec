"""Cutting what is many or large into batches, by number and by bytes, and sending them.

A transaction or a message has to be bounded both ways: a thousand small items fit where ten large
ones do not. An item that is larger than a batch goes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Limits(NamedTuple):
    """How large a batch may become."""

    items: int
    bytes: int


TRANSACTION = Limits(500, 4 * 1024 * 1024)
"""What one transaction writes: tens of milliseconds, for which others may have to wait."""


def batches(
    items: Iterable[T],
    size: Callable[[T], int],
    limits: Limits = TRANSACTION,
    *,
    count: Callable[[T], int] = lambda _: 1,
) -> Iterator[list[T]]:
    """Yield the items in batches within the limits; an item counts as one unless ``count`` says."""
    batch: list[T] = []
    number = total = 0
    for item in items:
        more, larger = count(item), size(item)
        if batch and (number + more > limits.items or total + larger > limits.bytes):
            yield batch
            batch, number, total = [], 0, 0
        batch.append(item)
        number += more
        total += larger
    if batch:
        yield batch

"""The items of a large request, converted in a thread: no other caller waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pulsed.rpc.server.access import Caller

T = TypeVar("T")

LARGE = 131_072
"""Bytes from which on a request is worth a thread."""


class Turns:
    """Converts one large request of each caller at a time; its next one waits."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    async def each(
        self, convert: Callable[[Any], T], messages: Iterable[Any], request: Any, caller: Caller
    ) -> list[T]:
        """Return these messages of a request, converted in order; the first that fails raises."""
        if request.ByteSize() < LARGE:
            return [convert(message) for message in messages]
        async with self._locks.setdefault(caller.name, asyncio.Lock()):
            return await asyncio.to_thread(lambda: [convert(message) for message in messages])

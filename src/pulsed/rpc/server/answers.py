"""A cache of answers, for calls that are retried.

A few methods would answer a retry differently from the first attempt, which did the work. A retry
of these gets the answer of the first attempt, and waits for it if need be. The cache is bounded by
number and by bytes; the oldest answer is evicted first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from pulsed.batches import Limits

ANSWERED_ONCE = frozenset(
    {
        "ReplayJobs", "EditJob", "DeleteJobs", "ExpediteJobs", "PutSchedule", "EditSchedule",
        "DeleteSchedule", "SyncSchedules", "FireSchedules", "Watchdog", "TakeTurn", "PruneJobs",
        "PruneSchedules",
    }
)  # fmt: skip
"""Methods that would answer a retry differently from the first attempt, which did the work."""
REMEMBERED = Limits(1_000, 16 * 1024 * 1024)
"""How many answers are cached, and of how many bytes together; the latest may be larger."""


class RequestKey(NamedTuple):
    """The identity of a call, which all its attempts share."""

    caller: str
    method: str
    id: str

    @property
    def size(self) -> int:
        """About how many bytes it takes in the cache."""
        return len(self.caller) + len(self.method) + len(self.id)


class Answers:
    """Answers by request, the oldest first."""

    def __init__(self, limits: Limits = REMEMBERED) -> None:
        self._limits = limits
        self._tasks: OrderedDict[RequestKey, asyncio.Task[Any]] = OrderedDict()
        self._sizes: dict[RequestKey, int] = {}
        """Bytes of each answer that is complete."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    async def once(
        self, request: RequestKey, answer: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Return the answer to a request; computed once, and again only after a failure."""
        task = self._tasks.get(request)
        if task is None:
            task = self._tasks[request] = asyncio.create_task(answer())
            task.add_done_callback(lambda done: self._remember(request, done))
            self._forget_the_oldest()
        return await asyncio.shield(task)

    def _remember(self, request: RequestKey, done: asyncio.Task[Any]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if self._tasks.get(request) is not done:
            return  # evicted meanwhile
        if failed:
            del self._tasks[request]  # a retry may succeed
            return
        self._sizes[request] = size = request.size + done.result().ByteSize()
        self.bytes += size
        self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        while len(self._tasks) > 1 and self._are_too_many():
            request, _ = self._tasks.popitem(last=False)
            self.bytes -= self._sizes.pop(request, 0)

    def _are_too_many(self) -> bool:
        return len(self._tasks) > self._limits.items or self.bytes > self._limits.bytes

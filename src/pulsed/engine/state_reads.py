"""What several checks and pages read of a database: each of it once, however many need it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from pulsed.engine.shared_reads import SharedReads
from pulsed.model.job import WorkerInfo
from pulsed.store.base import Store
from pulsed.store.blocking import is_blocking
from pulsed.store.results import Audit, Backlog

T = TypeVar("T")

OVERDUE_AFTER = 20.0
"""Seconds after a lease's end, two intervals of a watchdog, from which an audit counts it."""


class StateReads:
    """The time, the workers and what is due, as of one moment."""

    def __init__(self, store: Store, shared: SharedReads | None = None) -> None:
        self._store = store
        self._shared = SharedReads() if shared is None else shared
        self._answers: dict[str, Any] = {}
        """Of a blocking caller, which has no event loop for shared reads."""

    async def now(self) -> datetime:
        """Return the database's time."""
        return await self._once("now", self._store.now)

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers, live and silent ones."""
        return await self._once("workers", self._store.workers)

    async def backlog(self) -> list[Backlog]:
        """Return what is due, by queue and topic."""
        return await self._once("backlog", self._store.backlog)

    async def audit(self) -> Audit:
        """Return how many jobs break an invariant."""
        return await self._once("audit", lambda: self._store.audit(slack=OVERDUE_AFTER))

    async def _once(self, name: str, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if not is_blocking():
            return await self._shared.get(name, read)
        if name not in self._answers:
            self._answers[name] = await read()
        answer: T = self._answers[name]
        return answer

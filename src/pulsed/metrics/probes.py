"""Whether a process is alive, and whether it is ready for work: ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

from pulsed.errors import SchemaError, StorageError
from pulsed.metrics.endpoint import Answer
from pulsed.store.base import Store

CHECK_WITHIN = 2.0
"""Seconds that the database has to answer."""
CHECKED_FOR = 1.0
"""Seconds for which an answer of the database stands."""

DOWN = "down"
READY = frozenset({"running", "serving"})
"""The states of a worker and of a server in which they take work."""


async def alive(_: Mapping[str, str]) -> Answer:
    """Answer, which shows that the event loop runs. Does not look at the database."""
    return Answer(HTTPStatus.OK, b"ok\n")


class Readiness:
    """Whether the database answers, has a schema to work with, and the process takes work."""

    def __init__(
        self,
        store: Store,
        state: Callable[[], str],
        *,
        check_within: float = CHECK_WITHIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._state = state
        self._check_within = check_within
        self._clock = clock
        self._check: asyncio.Task[str] | None = None
        self._checked_at = float("-inf")

    async def answer(self, _: Mapping[str, str]) -> Answer:
        """Say whether the process is ready, and if not, why. Never waits for long."""
        state = self._state()
        database = await self._database()
        is_ready = state in READY and database == "up"
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, f"state: {state}\ndatabase: {database}\n".encode())

    async def _database(self) -> str:
        """Return the state of the database; probes that come together share one check."""
        is_over = self._check is None or self._check.done()
        if self._check is None or (is_over and self._clock() - self._checked_at >= CHECKED_FOR):
            self._check = asyncio.create_task(self._ask())
        try:
            # A check that is cancelled may have to wait for its connection: no probe does.
            async with asyncio.timeout(self._check_within):
                return await asyncio.shield(self._check)
        except TimeoutError:
            return DOWN

    async def _ask(self) -> str:
        # Says nothing about where the database is: a probe needs no credentials.
        try:
            async with asyncio.timeout(self._check_within):
                await self._store.check_ready()
        except SchemaError:
            return "its schema does not fit this version of pulsed"
        except (StorageError, TimeoutError):
            return DOWN
        finally:
            self._checked_at = self._clock()
        return "up"

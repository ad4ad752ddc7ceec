"""Performs bulk operations, batch by batch, beside everything else that a process does.

A batch is followed by a rest of several times its length, so that the share of the database is
bounded, and smaller when the database is busy: claims and reports go on. One process performs an
operation at a time; if it dies, another one continues a few seconds later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

from pulsed.engine.forever import forever
from pulsed.errors import AccessDenied
from pulsed.model.bulk import BulkRow
from pulsed.store.base import Store
from pulsed.store.blocking import pause

log = logging.getLogger("pulsed.bulk")

REST = 4.0
"""The rest after a batch, as a multiple of the time that the batch took."""
EVERY = 5.0
"""Seconds between two polls for operations."""
POLL = 0.5
"""Seconds between two reads of an operation that another process performs, for a caller that waits.
"""


class BulkPerformer:
    """A loop that performs the operations that others have started."""

    def __init__(
        self,
        store: Store,
        *,
        rest: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._rest = rest
        self._clock = clock
        self._id = uuid4()

    async def run(self) -> None:
        """Perform for ever."""
        await self._rest(EVERY * random.random())  # noqa: S311 - workers that start together spread
        await forever(
            self.tick, "a bulk operation", log=log, after_failure=lambda _: _pause(),
            sleep=self._rest,
        )  # fmt: skip

    async def tick(self) -> float:
        """Perform one batch; returns how long to rest."""
        began = self._clock()
        row = await self._store.bulk.advance(self._id)
        if row is None:
            return _pause()
        if row.has_ended:
            log.info("bulk operation %s: %s", row.id, summary(row))
        return REST * (self._clock() - began)


def summary(row: BulkRow) -> str:
    """Return how an operation ended, or how far it is."""
    skipped = f", {row.skipped:,} skipped" if row.skipped else ""
    error = f": {row.error}" if row.error else ""
    return f"{row.state.lower()}, {row.done:,} {row.kind.done}{skipped}{error}"


def _pause() -> float:
    return EVERY * random.uniform(0.9, 1.1)  # noqa: S311


async def perform_to_end(
    store: Store,
    bulk_id: UUID,
    tell: Callable[[BulkRow], object] = lambda _: None,
    *,
    within: float | None = None,
) -> BulkRow | None:
    """Perform an operation, or wait while others do, until it has ended; None: there is none.

    ``tell`` gets it after each batch. After ``within`` seconds it returns how far it is.
    """
    performer = uuid4()
    give_up_at = None if within is None else time.monotonic() + within
    while True:
        row, rest = await _advance_or_read(store, performer, bulk_id)
        if row is not None:
            tell(row)
        is_late = give_up_at is not None and time.monotonic() + rest > give_up_at
        if row is None or row.has_ended or is_late:
            return row
        await pause(rest)


async def _advance_or_read(
    store: Store, performer: UUID, bulk_id: UUID
) -> tuple[BulkRow | None, float]:
    """Perform a batch, unless others do; returns how far it is, and how long to rest."""
    began = time.monotonic()
    with contextlib.suppress(AccessDenied):  # by a server, whose upkeep does it
        row = await store.bulk.advance(performer, bulk_id)
        if row is not None:
            return row, REST * (time.monotonic() - began)
    return await store.bulk.get(bulk_id), POLL

"""Removes jobs that ended long ago, in the background of every worker, without slowing it down.

Workers take turns: one of them prunes at a time, however many there are. It removes a small batch,
then rests for several times as long as that took. So its share of the database is bounded, and
smaller when the database is busy; what is left waits for the next turn. Schedules that are done are
removed after their jobs, and old statistics are summed up. A prune also trims the audit log, so it
runs even if all jobs are kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from pulsed.engine.forever import forever
from pulsed.model.audit import Operator
from pulsed.model.job import Status
from pulsed.model.retention import LONGEST, Retention
from pulsed.store.base import Store
from pulsed.store.blocking import pause
from pulsed.wording import counted

log = logging.getLogger("pulsed.retention")

BATCH = 500
"""Rows removed in one transaction: some milliseconds, in which other writers wait on SQLite."""
REST = 4.0
"""The rest after a batch, as a multiple of the time that the batch took…"""
REST_WHEN_ASKED = 1.0
"""…and the same if a caller waits for the prune."""
EVERY = 60.0
"""Seconds between two ticks of one process."""
TURN = 50.0
"""Seconds until any process may take the next turn."""
BUDGET = 40.0
"""Seconds one tick may take; it ends before its turn does."""


class Pruner:
    """A loop that applies a retention policy."""

    def __init__(
        self,
        store: Store,
        retention: Retention,
        *,
        rest: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._ages = retention.ages
        self._stats_age = retention.stats_age
        self._rest = rest
        self._clock = clock

    async def run(self) -> None:
        """Prune for ever."""
        await self._rest(EVERY * random.random())  # noqa: S311 - workers that start together spread
        await forever(
            self._tick_and_pause,
            "pruning",
            log=log,
            after_failure=lambda _: _pause(),
            sleep=self._rest,
        )

    async def _tick_and_pause(self) -> float:
        await self.tick()
        return _pause()

    async def tick(self) -> dict[Status, int]:
        """Prune within the time budget, if it is this worker's turn; returns the jobs removed."""
        if not await self._store.take_turn(length=TURN):
            return {}
        give_up_at = self._clock() + BUDGET
        removed = await self._prune_jobs(give_up_at)
        await self._prune_schedules(give_up_at)
        await self._fold_statistics(give_up_at)
        return removed

    async def _prune_jobs(self, give_up_at: float) -> dict[Status, int]:
        removed: Counter[Status] = Counter()
        reached: Mapping[Status, datetime] = {}

        async def batch() -> int:
            nonlocal reached
            pruned = await self._store.prune(self._ages, limit=BATCH, since=reached)
            removed.update(pruned.removed)
            reached = pruned.reached
            return pruned.total

        if total := await self._in_batches(batch, give_up_at):
            log.info(
                "removed %s that ended long ago: %s", counted(total, "job"), _by_status(removed)
            )
        return dict(removed)

    async def _prune_schedules(self, give_up_at: float) -> None:
        """Remove schedules that have been done for as long as a success is kept."""
        age = self._ages.get(Status.SUCCEEDED)
        if age is None:
            return

        async def batch() -> int:
            return await self._store.schedules.prune(age, limit=BATCH)

        if total := await self._in_batches(batch, give_up_at):
            log.info("removed %s that were done long ago", counted(total, "schedule"))

    async def _fold_statistics(self, give_up_at: float) -> None:
        """Sum old statistics over longer spans, and remove those that are too old."""

        async def batch() -> int:
            return await self._store.rollups.fold(keep=self._stats_age, limit=BATCH)

        await self._in_batches(batch, give_up_at)

    async def _in_batches(self, batch: Callable[[], Awaitable[int]], give_up_at: float) -> int:
        """Remove batches until one is not full or time is up; returns the rows removed."""
        total = 0
        while True:
            began = self._clock()
            removed = await batch()
            ended = self._clock()
            total += removed
            rest = REST * (ended - began)
            if removed < BATCH or ended + rest > give_up_at:
                return total
            await self._rest(rest)


def _pause() -> float:
    return EVERY * random.uniform(0.9, 1.1)  # noqa: S311


async def prune_all(
    store: Store,
    ages: Mapping[Status, float],
    removed: Counter[Status] | None = None,
    *,
    by: Operator | None = None,
) -> dict[Status, int]:
    """Remove every job that ended longer ago than ``ages``, in batches, while the caller waits.

    Jobs that reach their age while this runs are left for another prune. ``removed`` is updated
    with each batch, so that the caller knows how far an interrupted prune has come.
    """
    removed = Counter() if removed is None else removed
    removed.update(dict.fromkeys(ages, 0))
    started = time.monotonic()
    reached: Mapping[Status, datetime] = {}
    while True:
        began = time.monotonic()
        waited = began - started
        standing = {status: min(age + waited, LONGEST) for status, age in ages.items()}
        batch = await store.prune(standing, limit=BATCH, since=reached, by=by)
        removed.update(batch.removed)
        if batch.total < BATCH:
            return dict(removed)
        reached = batch.reached
        await pause(REST_WHEN_ASKED * (time.monotonic() - began))


def _by_status(counted: Mapping[Status, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in counted.items() if number)

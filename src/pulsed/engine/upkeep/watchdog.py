"""What has to be done from time to time: recovering the jobs of silent workers, and presence.

Any number of processes do this at once; the database sees to it that nothing happens twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from pulsed.engine.upkeep.unserved import UnservedQueues
from pulsed.errors import StorageError
from pulsed.model.job import Status, WorkerInfo
from pulsed.store.base import Reaped, Store
from pulsed.store.log_throttle import level_of

log = logging.getLogger("pulsed.upkeep")

BATCH = 500
MOST_BATCHES = 20
"""A bound on one tick: what is left is there at the next."""


def pause(tick: float) -> float:
    """Return how long to sleep between two looks, so that they are at most a tick apart.

    With some room for the look itself, and for a loop that is busy; jitter keeps processes that
    began together from looking together for ever.
    """
    return tick * random.uniform(0.7, 0.9)  # noqa: S311


class Upkeep:
    """The watchdog and the presence row, on one timer."""

    def __init__(self, store: Store, *, tick: float, describe: Callable[[], WorkerInfo]) -> None:
        self._store = store
        self._tick = tick
        self._describe = describe
        self._unserved = UnservedQueues(store)
        self._is_behind = False

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            try:
                await self.tick()
            except Exception as error:  # recovery must not stop, whatever it is
                surprise = None if isinstance(error, StorageError) else error
                told = "upkeep failed (%s); again at the next tick"
                log.log(level_of(error), told, error, exc_info=surprise)
            # What a tick has left is done at once; but jobs are recovered in between.
            await asyncio.sleep(0 if self._is_behind else pause(self._tick))

    async def tick(self) -> list[Reaped]:
        """Show that we are here, put the jobs of silent workers on the retry path, stop orphans."""
        self._is_behind = False
        try:
            await self._store.announce(self._describe())
        finally:  # recovery does not depend on our own presence
            reaped = await reap(self._store)
            self._is_behind = await cancel_orphans(self._store)
            await self._unserved.tick()
        return reaped


async def cancel_orphans(store: Store) -> bool:
    """Cancel the children of ended workflows, where the process that ended those did not.

    Returns whether there may be more of them.
    """
    for _ in range(MOST_BATCHES):
        if not await store.cascade(limit=BATCH):
            return False
    return True


async def reap(store: Store) -> list[Reaped]:
    """Recover every job whose lease has expired."""
    reaped: list[Reaped] = []
    for _ in range(MOST_BATCHES):
        answer = await store.watchdog(limit=BATCH)
        if answer.in_grace:
            log.info("leases expired during an outage; their workers get time to beat first")
        reaped += answer.reaped
        if len(answer.reaped) < BATCH:
            break
    for job in reaped:
        log.log(
            logging.ERROR if job.status is Status.DEAD_LETTERED else logging.WARNING,
            "job %s (%s): worker %s went silent; now %s",
            job.job_id,
            job.topic,
            job.worker_id,
            job.status,
            extra={"job_id": str(job.job_id), "topic": job.topic},
        )
    return reaped

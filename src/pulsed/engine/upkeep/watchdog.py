"""Watchdog: recovers the jobs of silent workers, ends expired ones, announces this process.

It also cancels orphans: children of a workflow that has failed or was cancelled. Any number of
processes do this at once; the database ensures that nothing happens twice.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pulsed.engine.forever import forever
from pulsed.engine.upkeep.unserved import UnservedQueues
from pulsed.model.events import (
    JobDeadLettered,
    JobExpired,
    JobRetryScheduled,
    LeasesExpired,
    RunCancelled,
    RunFinished,
    RunHandedBack,
    counts_of,
)
from pulsed.model.job import Status, WorkerInfo, WorkerRequest
from pulsed.model.outcome import LEASE_ERROR
from pulsed.store.base import Store
from pulsed.store.results import Expired, Reaped
from pulsed.wording import counted

log = logging.getLogger("pulsed.upkeep")

BATCH = 500
MOST_BATCHES = 20
"""Batches in one tick at most; the rest is left to the next."""


def pause(tick: float) -> float:
    """Return the seconds to sleep between two scans, so that they are at most a tick apart.

    This leaves room for the scan itself, and for a busy event loop; jitter spreads the scans of
    processes that started together.
    """
    return tick * random.uniform(0.7, 0.9)  # noqa: S311


class Watchdog:
    """A loop that recovers jobs and announces this process, on one timer."""

    def __init__(
        self,
        store: Store,
        *,
        tick: float,
        describe: Callable[[], WorkerInfo] | None = None,
        on_ended: Callable[[Sequence[RunFinished | JobExpired]], None] | None = None,
        on_request: Callable[[WorkerRequest], None] = lambda _: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._tick = tick
        self._describe = describe
        self._on_ended = on_ended
        self._on_request = on_request
        self._now = now
        """The time of its events."""
        self._unserved = UnservedQueues(store)
        self._is_behind = False

    async def run(self) -> None:
        """Tick for ever."""
        await forever(
            self._tick_and_pause, "upkeep", log=log, after_failure=lambda _: pause(self._tick)
        )

    async def _tick_and_pause(self) -> float:
        await self.tick()
        # What a tick has left is next at once; but jobs of silent workers are recovered first.
        return 0 if self._is_behind else pause(self._tick)

    async def tick(self) -> list[Reaped]:
        """Announce this process, recover jobs, end expired ones, cancel orphans."""
        self._is_behind = False
        try:
            if self._describe is not None:
                request = await self._store.announce(self._describe())
                if request is not None:
                    self._on_request(request)
        finally:  # recovery must not depend on the announcement
            reaped = await reap(self._store)
            if reaped:
                at = self._now()
                ended = [end_of_silence(job, at) for job in reaped]
                expired = LeasesExpired(count=len(reaped))
                self._store.events.publish([expired, *ended, *counts_of(ended)])
                self._tell(ended)
            self._is_behind = await self._end_expired()
            self._is_behind |= await cancel_orphans(self._store)
            await self._unserved.tick()
        return reaped

    async def _end_expired(self) -> bool:
        """End jobs that no worker has started in time; returns whether more may be left."""
        for _ in range(MOST_BATCHES):
            expired = await self._store.expire(limit=BATCH)
            if expired:
                at = self._now()
                ended = [
                    JobExpired(job.job_id, job.topic, job.queue, at, job.expired_at)
                    for job in expired
                ]
                _log_expired(expired)
                self._store.events.publish(ended)
                self._tell(ended)
            if len(expired) < BATCH:
                return False
        return True

    def _tell(self, ended: Sequence[RunFinished | JobExpired]) -> None:
        if self._on_ended is not None:
            self._on_ended(ended)


Recovered: TypeAlias = RunCancelled | JobDeadLettered | JobRetryScheduled | RunHandedBack


def end_of_silence(job: Reaped, at: datetime) -> Recovered:
    """Return the event that ends a run whose worker went silent."""
    fields: dict[str, Any] = {
        "job_id": job.job_id,
        "topic": job.topic,
        "queue": job.queue,
        "at": at,
        "worker_id": job.worker_id,
        "attempt": job.attempt,
        "waited": None,
        "ran": None,
    }
    match job.status:
        case Status.CANCELLED:
            return RunCancelled(**fields)
        case Status.DEAD_LETTERED:
            return JobDeadLettered(**fields, error_type="LeaseExpired", error=LEASE_ERROR)
        case Status.RETRYING:
            return JobRetryScheduled(**fields, error_type="LeaseExpired", error=LEASE_ERROR)
        case _:  # it ran beside other jobs, so its attempt is given back
            return RunHandedBack(**fields)


def _log_expired(expired: Sequence[Expired]) -> None:
    """Log how many jobs of each topic expired: there may be thousands."""
    for (topic, queue), number in Counter((job.topic, job.queue) for job in expired).items():
        log.warning(
            "%s of %s in the queue %s expired: not started in time",
            counted(number, "job"),
            topic,
            queue,
            extra={"topic": topic, "queue": queue},
        )


async def cancel_orphans(store: Store) -> bool:
    """Cancel the children of ended workflows, where the process that ended those did not.

    Returns whether more may be left.
    """
    for _ in range(MOST_BATCHES):
        if not await store.workflows.cascade(limit=BATCH):
            return False
    return True


async def reap(store: Store) -> list[Reaped]:
    """Recover the jobs whose leases have expired; returns what became of each."""
    reaped: list[Reaped] = []
    for _ in range(MOST_BATCHES):
        answer = await store.watchdog(limit=BATCH)
        if answer.in_grace:
            log.info("leases expired during an outage; workers get time for a heartbeat first")
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

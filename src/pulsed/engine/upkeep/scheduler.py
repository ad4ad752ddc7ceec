"""Fires schedules: turns due occurrences into jobs.

Any number of processes do this at once, without a leader. Due schedules are read, decided here by
pure functions, and written back under a guard that only one process passes. A schedule that cannot
be fired goes to ERROR with its reason and does not hold up the others; one in a time zone that this
machine does not know is left to other machines. Large results are written in several transactions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import UUID

from pulsed.batches import TRANSACTION, batches, halves
from pulsed.engine.enqueuing import publish_enqueued
from pulsed.engine.forever import Alarm, forever
from pulsed.errors import StorageError, StorageRefused, UnknownZone
from pulsed.handler import clean_text
from pulsed.model.fields import TEMPLATE, attributes_of
from pulsed.model.job import NewJob, with_limit_key
from pulsed.model.limit import LimitRule
from pulsed.model.schedule import ScheduleRow, ScheduleSpec, occurrence_id, plan
from pulsed.store.base import Store
from pulsed.store.schedules import Fire

log = logging.getLogger("pulsed.schedules")

BATCH = 500
"""Schedules read at a time."""
MOST_AT_A_TIME = 500
"""Occurrences of one schedule in one transaction, while it catches up."""
JOB_BYTES = 400
"""Approximate size of a job without its payload."""
BUDGET = 5.0
"""Seconds one tick may take; the rest is fired by the next."""
SHORTEST_SLEEP = 0.1
"""Seconds between two ticks at least. Debounces hints: those of a file name nothing."""
AFTER_FAILURE = 1.0
"""Seconds until a failed tick is retried."""
LONGEST_SLEEP = 5.0
"""Seconds between two ticks at most: a lost hint costs no more than this."""


class Scheduler:
    """A loop that sleeps until the next occurrence and fires it."""

    def __init__(
        self,
        store: Store,
        *,
        declare: Callable[[], Awaitable[None]] | None = None,
        limits: Callable[[], Mapping[str, LimitRule]] = dict,
        longest_sleep: float = LONGEST_SLEEP,
    ) -> None:
        self._store = store
        self._declare = declare
        """Writes the schedules that the program declares; called until it has succeeded once."""
        self._limits = limits
        """How the keys of topics with a limit are computed; a worker computes those of others."""
        self._longest_sleep = longest_sleep
        self._alarm = Alarm()
        self._until_next: float | None = None
        self._left: dict[UUID, str] = {}
        """Due schedules that are left to other machines, and why."""

    def wake(self) -> None:
        """Check soon: a schedule may have been added or changed."""
        self._alarm.ring()

    async def run(self) -> None:
        """Fire for ever, and concurrently write what is declared: neither holds up the other."""
        firing = forever(
            self._tick_and_pause,
            "firing schedules",
            log=log,
            after_failure=lambda _: AFTER_FAILURE,
            sleep=self._sleep,
        )
        declaring = forever(
            self._write_declarations,
            "declaring schedules",
            log=log,
            after_failure=lambda _: AFTER_FAILURE,
        )
        await asyncio.gather(firing, declaring)

    async def _tick_and_pause(self) -> float:
        await self.tick()
        pause = self._longest_sleep * random.uniform(0.8, 1.0)  # noqa: S311
        return pause if self._until_next is None else min(pause, max(0.0, self._until_next))

    async def _write_declarations(self) -> None:
        if self._declare is not None:
            await self._declare()
            self.wake()

    async def tick(self) -> list[NewJob]:
        """Fire the due schedules within the time budget; returns the jobs made here."""
        made: list[NewJob] = []
        give_up_at = time.monotonic() + BUDGET
        left: dict[UUID, str] = {}
        while True:
            due = await self._store.schedules.due(BATCH + len(left), skip=len(left))
            self._until_next = None
            if due.next_run_at is not None:
                self._until_next = (due.next_run_at - due.now).total_seconds()
            rows = [row for row in due.rows if row.id not in left]
            if not rows or time.monotonic() > give_up_at:
                self._left = left
                return made
            made += await self._fire(rows, due.now, left, give_up_at)

    async def _fire(
        self, rows: list[ScheduleRow], now: datetime, left: dict[UUID, str], give_up_at: float
    ) -> list[NewJob]:
        made: list[NewJob] = []
        broken: list[tuple[ScheduleRow, Exception]] = []
        limits = self._limits()

        def decisions() -> Iterator[Fire]:
            for row in rows:
                try:
                    yield with_limit_keys(decide(row, now), limits)
                except UnknownZone as error:
                    self._leave(row, str(error), left)
                except Exception as error:  # noqa: BLE001 - one bad schedule must not stop others
                    broken.append((row, error))

        for fires in batches(decisions(), _bytes_of, count=lambda each: max(1, len(each.jobs))):
            fired = await self._fire_batch(fires)
            publish_enqueued(self._store.events, fired)
            made += fired
            if time.monotonic() > give_up_at:
                break
        for row, error in broken:
            await self._set_error(row, error)
        return made

    def _leave(self, row: ScheduleRow, why: str, left: dict[UUID, str]) -> None:
        """Leave a schedule to machines that can fire it."""
        left[row.id] = why
        if self._left.get(row.id) != why:  # logged once, not at every tick
            log.warning("schedule %s of %s is left to other machines: %s", row.name, row.app, why)

    async def _fire_batch(self, fires: Sequence[Fire]) -> list[NewJob]:
        try:
            return await self._store.schedules.fire(fires)
        except Exception as error:
            if _is_trouble_of_the_database(error):
                raise
            if len(fires) > 1:  # one refused schedule must not stop the others
                return [job for half in halves(fires) for job in await self._fire_batch(half)]
            await self._set_error(fires[0].row, error)
            return []

    async def _set_error(self, row: ScheduleRow, error: Exception) -> None:
        reason = clean_text(f"{type(error).__name__}: {error}")
        log.error("schedule %s of %s cannot be fired: %s", row.name, row.app, reason)
        await self._store.schedules.set_error(row, reason)

    async def _sleep(self, seconds: float) -> None:
        await self._alarm.sleep(seconds, debounce=SHORTEST_SLEEP)


def _is_trouble_of_the_database(error: Exception) -> bool:
    """Whether an error is the database's, not the schedule's, which is fired when that is over."""
    return isinstance(error, StorageError) and not isinstance(error, StorageRefused)


def decide(row: ScheduleRow, now: datetime) -> Fire:
    """Return what a due schedule does at ``now``."""
    spec = row.spec
    assert row.next_run_at is not None
    what = plan(
        spec.timetable,
        row.next_run_at,
        now,
        anchor=row.anchor,
        end=spec.end,
        catch_up=spec.catch_up,
        limit=spec.limit,
        most=max(1, min(MOST_AT_A_TIME, TRANSACTION.bytes // (len(spec.payload) + JOB_BYTES))),
    )
    jobs = [job_of(row, spec, occurrence) for occurrence in what.fire]
    return Fire(row, what, jobs, spec.overlap)


def with_limit_keys(fire: Fire, limits: Mapping[str, LimitRule]) -> Fire:
    """Return a fire whose jobs have the keys of their limits."""
    rule = limits.get(fire.row.spec.topic)
    if rule is None:
        return fire
    return fire._replace(jobs=[with_limit_key(job, rule) for job in fire.jobs])


def _bytes_of(fire: Fire) -> int:
    return sum(len(job.payload) + JOB_BYTES for job in fire.jobs)


def job_of(row: ScheduleRow, spec: ScheduleSpec, occurrence: datetime) -> NewJob:
    """Return the job of one occurrence: the same, to the byte, whichever process makes it."""
    job_id = occurrence_id(row.id, occurrence)
    spread = timedelta(seconds=spec.jitter * (job_id.int % 10_007) / 10_007)
    return template(row, spec, job_id, at=occurrence + spread, occurrence=occurrence)


def template(
    row: ScheduleRow,
    spec: ScheduleSpec,
    job_id: UUID,
    *,
    at: datetime | None = None,
    occurrence: datetime | None = None,
) -> NewJob:
    """Return a job with the topic, payload and options of the schedule."""
    template_values = zip(_TEMPLATE, _template(spec), strict=True)
    return NewJob(
        id=job_id, at=at, schedule_id=row.id, occurrence=occurrence, **dict(template_values)
    )


_TEMPLATE = attributes_of(TEMPLATE)
_template = attrgetter(*_TEMPLATE)

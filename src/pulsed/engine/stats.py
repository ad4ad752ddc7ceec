"""Counts what happens to a worker's runs, and writes it to the database every few seconds.

A flush writes the totals of a minute so far into rows that no other recorder writes, so it never
waits for another one, and may be repeated. A process that dies loses what it has counted since its
last flush: some seconds of statistics, and never a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, TypeAlias
from uuid import UUID

from pulsed.engine.forever import forever
from pulsed.errors import StorageError
from pulsed.model.events import (
    JobDeadLettered,
    JobExpired,
    JobRetryScheduled,
    Published,
    RunCancelled,
    RunCount,
    RunEvent,
    RunFailed,
    RunStarted,
    RunSucceeded,
    counts_of,
)
from pulsed.model.rollup import (
    LATEST,
    MINUTE,
    MOST_ERRORS,
    MOST_LANES,
    OTHERS,
    Durations,
    ErrorRollup,
    Rollup,
    Stats,
    error_text,
    floor,
)
from pulsed.model.timetable import EPOCH
from pulsed.store.base import Store

log = logging.getLogger("pulsed.stats")

INTERVAL = 5.0
"""Seconds between two flushes."""
LONGEST_PAUSE = 60.0
"""Seconds until the next flush after several that failed."""
LAST_FLUSH = 5.0
"""Seconds that the flush at the end may take."""
MOST_MINUTES = int(LATEST // MINUTE) + 1
"""Minutes that are kept while flushes fail; the database would ignore older ones."""
A_MINUTE = timedelta(seconds=MINUTE)

COUNTS: dict[type[RunEvent], str] = {
    RunStarted: "started",
    RunSucceeded: "succeeded",
    JobRetryScheduled: "failed",
    JobDeadLettered: "dead_lettered",
    RunCancelled: "cancelled",
}
"""The events that are counted, and where."""
ERRORS: frozenset[type[Published]] = frozenset({JobRetryScheduled, JobDeadLettered})
"""The events whose errors are kept."""

LaneKey: TypeAlias = tuple[str, str]


class StatsRecorder:
    """Counts the runs of one worker, and the jobs that this process's watchdog has recovered.

    Several workers of a process share one bus of events, so each counts its own runs only. All of
    it is for the event loop's thread.
    """

    def __init__(
        self,
        store: Store,
        worker_id: UUID | None = None,
        *,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._sleep = sleep
        self._minutes: list[_Minute] = [_Minute(EPOCH, uuid.uuid4())]
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Count the worker's runs from now on."""
        if self._worker_id is not None:
            self._unsubscribe = self._store.events.subscribe(self._count_own, {RunCount, *ERRORS})

    def stop(self) -> None:
        """Count nothing more."""
        self._unsubscribe()

    async def run(self) -> None:
        """Flush for ever."""
        await self._sleep(INTERVAL * random.random())  # noqa: S311 - workers that start together spread
        await forever(
            self._tick,
            "recording statistics",
            log=log,
            after_failure=lambda failures: min(LONGEST_PAUSE, INTERVAL * 2**failures),
            sleep=self._sleep,
            level=lambda _, failures: logging.WARNING if failures == 1 else logging.DEBUG,
        )

    async def _tick(self) -> float:
        await self.flush()
        return INTERVAL

    async def close(self) -> None:
        """Stop counting, and write what is left; not for ever."""
        self.stop()
        with contextlib.suppress(StorageError, TimeoutError):
            async with asyncio.timeout(LAST_FLUSH):
                await self.flush()

    async def flush(self) -> None:
        """Write what has changed since the last flush. What cannot be written is kept for the next.

        A minute that is over is forgotten once it is written.
        """
        changed = [minute for minute in self._minutes if minute.has_changed]
        for recorder, minutes in groupby(changed, key=lambda minute: minute.recorder):
            written = list(minutes)
            taken = [minute.take() for minute in written]
            try:
                await self._store.rollups.record(
                    recorder,
                    [rollup for rollups, _ in taken for rollup in rollups],
                    [error for _, errors in taken for error in errors],
                )
            except BaseException:
                for minute, (rollups, errors) in zip(written, taken, strict=True):
                    minute.put_back(rollups, errors)
                raise
        self._minutes = [
            minute for minute in self._minutes[:-1] if minute.has_changed
        ] + self._minutes[-1:]

    def count(self, events: Sequence[RunEvent | JobExpired]) -> None:
        """Count events that happened at the same time."""
        for counted in counts_of(event for event in events if isinstance(event, RunEvent)):
            self._minute_of(counted.at).count(counted)
        for event in events:
            if isinstance(event, RunFailed):
                self._minute_of(event.at).count_error(event)
            elif isinstance(event, JobExpired):
                self._minute_of(event.at).count_expired(event)

    def _count_own(self, published: Sequence[RunCount | RunFailed]) -> None:
        """Count what happened to the worker's own runs; watchdogs call ``count`` instead."""
        for each in published:
            if each.worker_id != self._worker_id:
                continue
            if isinstance(each, RunCount):
                self._minute_of(each.at).count(each)
            elif each.waited is not None:  # None: a watchdog's
                self._minute_of(each.at).count_error(each)

    def count_submitted(self, lanes: Mapping[LaneKey, int], at: datetime) -> None:
        """Count jobs that were enqueued, by queue and topic."""
        minute = self._minute_of(at)
        for (queue, topic), count in lanes.items():
            minute.count_submitted(queue, topic, count)

    def _minute_of(self, at: datetime) -> _Minute:
        """Return the minute to count in.

        The database's clock may be a little behind its last measurement: the newest minute gets
        that. If it was set back, a new recorder counts the earlier minutes again, because a total
        of this one may be there already.
        """
        newest = self._minutes[-1]
        if newest.at <= at < newest.end:
            return newest
        if newest.at - A_MINUTE <= at < newest.at:
            return newest
        recorder = newest.recorder if at >= newest.end else uuid.uuid4()
        newest = _Minute(floor(at, MINUTE), recorder)
        self._minutes = [*self._minutes[-MOST_MINUTES + 1 :], newest]
        return newest


class _Minute:
    """What happened in one minute so far."""

    __slots__ = ("_changed", "_changed_errors", "_errors", "_lanes", "at", "end", "recorder")

    def __init__(self, at: datetime, recorder: UUID) -> None:
        self.at = at
        self.end = at + A_MINUTE
        self.recorder = recorder
        self._lanes: dict[LaneKey, _Lane] = {}
        self._errors: dict[tuple[str, str, str], ErrorRollup] = {}
        self._changed: set[LaneKey] = set()
        self._changed_errors: set[tuple[str, str, str]] = set()

    @property
    def has_changed(self) -> bool:
        return bool(self._changed or self._changed_errors)

    def take(self) -> tuple[list[Rollup], list[ErrorRollup]]:
        """Return what has changed since the last time."""
        rollups = [Rollup(self.at, *key, self._lanes[key].stats()) for key in self._changed]
        errors = [self._errors[key] for key in self._changed_errors]
        self._changed, self._changed_errors = set(), set()
        return rollups, errors

    def put_back(self, rollups: list[Rollup], errors: list[ErrorRollup]) -> None:
        """Take these the next time again."""
        self._changed |= {(each.queue or OTHERS, each.topic or OTHERS) for each in rollups}
        self._changed_errors |= {(each.queue, each.topic, each.error) for each in errors}

    def count(self, counted: RunCount) -> None:
        """Count events of one kind, queue and topic."""
        name = COUNTS.get(counted.kind)
        if name is None:
            return
        lane = self._lane(counted.queue, counted.topic)
        lane.counts[name] += counted.count
        durations = lane.wait if counted.kind is RunStarted else lane.run
        durations.add(counted.seconds, counted.buckets)

    def count_submitted(self, queue: str, topic: str, count: int) -> None:
        """Count jobs that were enqueued."""
        self._lane(queue, topic).counts["submitted"] += count

    def count_expired(self, event: JobExpired) -> None:
        """Count a job that was not started in time."""
        self._lane(event.queue, event.topic).counts["expired"] += 1

    def count_error(self, event: RunFailed) -> None:
        """Count an error, and keep its message."""
        name, message = error_text(event.error_type, event.error)
        key = (event.queue, event.topic, name)
        if key not in self._errors and len(self._errors) >= MOST_ERRORS:
            key = (OTHERS, OTHERS, OTHERS)
        dead = int(type(event) is JobDeadLettered)
        this = ErrorRollup(self.at, *key, 1, dead, event.at, message)
        known = self._errors.get(key)
        self._errors[key] = this if known is None else known + this
        self._changed_errors.add(key)

    def _lane(self, queue: str, topic: str) -> _Lane:
        key = (queue, topic)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                key = (OTHERS, OTHERS)
            lane = self._lanes.setdefault(key, _Lane())
        self._changed.add(key)
        return lane


class _Lane:
    """The counts of a queue and topic in one minute."""

    __slots__ = ("counts", "run", "wait")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wait, self.run = Durations(), Durations()

    def stats(self) -> Stats:
        return Stats(**self.counts, wait=self.wait.histogram(), run=self.run.histogram())

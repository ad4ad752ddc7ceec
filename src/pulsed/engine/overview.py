"""The state of a whole database at a glance, for the dashboard and ``pulsed top``.

Everything comes from statistics and the heads of queues: nothing here counts a table.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import NamedTuple

from pulsed.engine.doctor.examine import examine
from pulsed.engine.doctor.finding import Severity
from pulsed.engine.governed import GOVERNED_KEPT, Governed, Warn, control_warnings, read_governed
from pulsed.engine.lanes import Lanes, LaneState, by_name, recent_rate
from pulsed.engine.shared_reads import SharedReads
from pulsed.engine.state_reads import StateReads
from pulsed.engine.why import is_live, live, no_worker_for
from pulsed.model.control import ControlScope
from pulsed.model.job import JobFilter, Status, WorkerInfo
from pulsed.model.rollup import RollupFilter, Series
from pulsed.store.base import Store
from pulsed.store.results import Backlog
from pulsed.wording import counted, format_duration

URGENT = {"open transactions", "overdue schedules", "schedules", "autovacuum", "failing workers"}
"""Findings of the doctor that an overview shows; it finds the others itself, or they can wait."""
URGENT_CHECKS = ("workers", "schedules")
"""The checks that find them, beside what the database says of itself; others read many jobs."""
MOST_SILENT = 3
"""Silent workers that get a warning each."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
STATISTICS_KEPT = 10.0
"""Seconds for which statistics of the past stand."""
FINDINGS_KEPT = 30.0
"""Seconds for which the doctor's findings stand: some of its checks read thousands of rows."""


class Glance(NamedTuple):
    """The statistics behind the tiles."""

    new_dead: int
    per_minute: float
    usual_per_minute: float
    failure_rate: float | None
    usual_failure_rate: float | None
    wait_p95: float | None
    run_p95: float | None


class DeadLetters(NamedTuple):
    """How many dead letters there are."""

    number: int
    at_least: bool
    """There may be more."""


class Overview(NamedTuple):
    """The state of a database, or of one of its queues."""

    lanes: Lanes
    queues: list[LaneState]
    """The longest due first."""
    hour: Series
    """What happened in the last hour, by the minute."""
    glance: Glance
    dead: DeadLetters | None
    """None for one queue: no index counts its dead letters."""
    warnings: list[Warn]
    governed: Governed

    @property
    def oldest(self) -> LaneState | None:
        """The queue with the oldest due job."""
        due = [queue for queue in self.queues if queue.oldest is not None]
        return max(due, key=lambda queue: queue.oldest or 0, default=None)

    @property
    def workers(self) -> list[WorkerInfo]:
        """The live workers."""
        return [each for each in self.lanes.workers if is_live(each, self.lanes.now)]


class OverviewReader:
    """Reads overviews of a database, or of one queue, again and again."""

    def __init__(self, store: Store, queue: str | None = None) -> None:
        self._store = store
        self._queue = queue
        self._shared = SharedReads()

    async def read(self) -> Overview:
        """Read the state of now. What changes slowly is read every few seconds only."""
        lanes, dead, (hour, day, by_queue), found, governed = await asyncio.gather(
            self._lanes(),
            self._dead(),
            self._shared.get("statistics", self._statistics, seconds=STATISTICS_KEPT),
            self._shared.get("urgent", lambda: urgent(self._store), seconds=FINDINGS_KEPT),
            self._shared.get("governed", self._governed, seconds=GOVERNED_KEPT),
        )
        return Overview(
            lanes=lanes,
            queues=lanes.queues(by_queue, besides=self._paused(governed)),
            hour=hour,
            glance=glance(hour, day),
            dead=dead,
            warnings=[*control_warnings(lanes, governed), *warnings(lanes), *found],
            governed=governed,
        )

    async def _lanes(self) -> Lanes:
        store = self._store
        lanes = Lanes(
            *await asyncio.gather(store.backlog(), store.running(), store.workers(), store.now())
        )
        return lanes if self._queue is None else lanes.of(self._queue)

    async def _governed(self) -> Governed:
        """Read what governs the database; for one queue without limits, which are of no queue."""
        found = await read_governed(self._store)
        return found if self._queue is None else found._replace(limits=())

    def _paused(self, governed: Governed) -> list[str]:
        """Return the queues that are listed although they may have neither jobs nor workers."""
        paused = [each.name for each in governed.of(ControlScope.QUEUE).values() if each.paused]
        return [name for name in paused if self._queue in (None, name)]

    async def _dead(self) -> DeadLetters | None:
        if self._queue is not None:
            return None
        status = Status.DEAD_LETTERED
        counts = await self._store.counts(JobFilter(status=(status,)))
        return DeadLetters(counts[status], status in counts.at_least)

    async def _statistics(self) -> tuple[Series, Series, dict[str, Series]]:
        """Read three series of rollups: of the last hour and day, and of the hour by queue."""
        rollups, now = self._store.rollups, await self._store.now()
        last_hour = RollupFilter(now - HOUR, queue=self._queue)
        hour, day, by_queue = await asyncio.gather(
            rollups.series(last_hour),
            rollups.series(RollupFilter(now - DAY, queue=self._queue)),
            rollups.series(last_hour, by=["queue"]),
        )
        return hour.series(), day.series(), by_name(by_queue, "queue")


def glance(hour: Series, day: Series) -> Glance:
    """Return what the tiles show, of the last hour and beside the last day."""
    busy = [point.stats for point in day.points if point.stats.ended]
    minutes = max(1.0, len(busy) * day.step / 60)
    last_hour, last_day = hour.stats, day.stats
    return Glance(
        new_dead=last_day.dead_lettered,
        per_minute=recent_rate([point.stats.ended for point in hour.points]),
        usual_per_minute=last_day.ended / minutes,
        failure_rate=last_hour.failure_rate,
        usual_failure_rate=last_day.failure_rate,
        wait_p95=last_hour.wait.p95,
        run_p95=last_hour.run.p95,
    )


def warnings(lanes: Lanes) -> list[Warn]:
    """Return what needs a person: due jobs that no worker takes, and workers that fell silent."""
    backlog, _, workers, now = lanes
    living = live(workers, now)
    unserved: dict[str, list[Backlog]] = {}
    for lane in backlog:
        if no_worker_for(lane.queue, lane.topic, living):
            unserved.setdefault(lane.queue, []).append(lane)
    found = [_unserved(queue, lanes, living, now) for queue, lanes in unserved.items()]
    silent = [each for each in workers if not is_live(each, now) and each.running]
    for each in silent[:MOST_SILENT]:
        last = format_duration((now - each.last_beat).total_seconds()) if each.last_beat else "long"
        found.append(
            Warn(
                f"Worker {each.host}:{each.pid} has sent no heartbeat for {last}, with "
                f"{counted(each.running, 'job')} running. Other workers take over when its "
                "leases expire.",
                "pulsed workers",
            )
        )
    return found


async def urgent(store: Store, reads: StateReads | None = None) -> list[Warn]:
    """Return what the doctor finds that a person has to act on."""
    findings = await examine(store, checks=URGENT_CHECKS, reads=reads)
    return [
        Warn(f"{_sentence(one.check)}: {one.detail}. {_sentence(one.advice)}.", "pulsed doctor")
        for one in findings
        if one.check in URGENT and one.level is not Severity.OK
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _unserved(queue: str, lanes: list[Backlog], living: list[WorkerInfo], now: datetime) -> Warn:
    due = sum(lane.due for lane in lanes)
    more = " or more" if any(lane.at_least for lane in lanes) else ""
    oldest = format_duration((now - min(lane.oldest for lane in lanes)).total_seconds())
    is_served = any(queue in worker.queues for worker in living)
    topics = ", ".join(sorted({lane.topic for lane in lanes})[:3])
    verb = "is" if due == 1 else "are"
    missing = f"has a handler for {topics}" if is_served else "takes from it"
    command = "pulsed worker module:app" + ("" if is_served else f" -q {queue}")
    return Warn(
        f"Queue {queue}: {counted(due, 'job')}{more} {verb} due and no live worker {missing}, "
        f"the oldest for {oldest}.",
        command,
    )

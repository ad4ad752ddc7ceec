"""The first page: what is wrong, how much there is to do, how fast it goes."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import NamedTuple

from starlette.responses import Response

from pulsed.app import Pulse
from pulsed.engine.doctor import Severity
from pulsed.engine.why import is_live, live, no_worker_for
from pulsed.model.job import WorkerInfo
from pulsed.model.rollup import Errors, Series
from pulsed.store.base import Backlog
from pulsed.web.charts import bars, chart_data
from pulsed.web.pages.system import examined
from pulsed.web.site import PageCall
from pulsed.wording import counted, format_duration

SPANS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
"""The lengths of time that the charts can show."""
STATISTICS_KEPT = 10.0
"""Seconds for which statistics of the past are shared by all tabs."""
RECENT_MINUTES = 5
MOST_ERRORS = 5
URGENT = {"open transactions", "overdue schedules", "schedules", "autovacuum", "failing workers"}
"""Findings of the doctor that the page shows; it finds the others by itself, or they can wait."""
MOST_QUEUES = 30


class Warn(NamedTuple):
    """Something that needs a person, and the command that helps."""

    text: str
    command: str = ""


class QueueLine(NamedTuple):
    """A queue in the table of queues."""

    name: str
    due: int
    at_least: bool
    oldest: float | None
    """Seconds."""
    per_minute: float
    bars: str
    workers: int


class Glance(NamedTuple):
    """The statistics behind the tiles."""

    new_dead: int
    per_minute: float
    usual_per_minute: float
    failure_rate: float | None
    usual_failure_rate: float | None
    wait_p95: float | None
    run_p95: float | None


class OverviewStatistics(NamedTuple):
    """All statistics that the page shows."""

    glance: Glance
    chart: Series
    errors: Errors
    by_queue: dict[str, Series]


async def show(call: PageCall) -> Response:
    """Show the state of the whole database."""
    span = call.query.get("span", "1h")
    span = span if span in SPANS else "1h"
    summary = await call.site.summary()
    shared = call.site.shared
    statistics = await shared.get(
        ("statistics", span), lambda: read_statistics(call.app, span), seconds=STATISTICS_KEPT
    )
    backlog, workers = await shared.get("lanes", lambda: _lanes(call.app))
    is_empty = not summary.workers and not any(summary.counts.values())
    return await call.page(
        "overview.html",
        span=span,
        spans=SPANS,
        warnings=[*warnings(backlog, workers, summary.now), *await _examined(call)],
        glance=statistics.glance,
        errors=statistics.errors,
        chart=chart_data(statistics.chart),
        chart_stats=statistics.chart.stats,
        queues=queue_lines(backlog, workers, statistics.by_queue, summary.now),
        is_empty=is_empty,
    )


async def _examined(call: PageCall) -> list[Warn]:
    """Return what the doctor found that a person has to act on, at most half a minute old."""
    found = (await examined(call)).findings
    return [
        Warn(f"{one.check.capitalize()}: {one.detail}. {one.advice}", "pulsed doctor")
        for one in found
        if one.check in URGENT and one.level is not Severity.OK
    ]


async def _lanes(app: Pulse) -> tuple[list[Backlog], list[WorkerInfo]]:
    store = app.store
    return await asyncio.gather(store.backlog(), store.workers())


async def read_statistics(app: Pulse, span: str) -> OverviewStatistics:
    """Read the statistics of the page: four reads of rollups, however many jobs there are."""
    stats = app.stats
    hour, day, chart, errors, by_queue = await asyncio.gather(
        stats.aseries(SPANS["1h"]),
        stats.aseries(SPANS["24h"]),
        stats.aseries(SPANS[span]),
        stats.aerrors(SPANS["1h"], limit=MOST_ERRORS),
        stats.aseries_by("queue", SPANS["1h"]),
    )
    return OverviewStatistics(glance(hour, day), chart, errors, by_queue)


def glance(hour: Series, day: Series) -> Glance:
    """Return what the tiles show, of the last hour and beside the last day."""
    recent = hour.points[-1 - RECENT_MINUTES : -1]  # without the minute that is not over
    busy = [point.stats for point in day.points if point.stats.ended]
    minutes = max(1.0, len(busy) * day.step / 60)
    last_hour, last_day = hour.stats, day.stats
    return Glance(
        new_dead=last_day.dead_lettered,
        per_minute=sum(point.stats.ended for point in recent) / max(1, len(recent)),
        usual_per_minute=last_day.ended / minutes,
        failure_rate=last_hour.failure_rate,
        usual_failure_rate=last_day.failure_rate,
        wait_p95=last_hour.wait.p95,
        run_p95=last_hour.run.p95,
    )


def warnings(backlog: list[Backlog], workers: list[WorkerInfo], now: datetime) -> list[Warn]:
    """Return what needs a person: due jobs that no worker takes, and workers that fell silent."""
    living = live(workers, now)
    unserved: dict[str, list[Backlog]] = {}
    for lane in backlog:
        if no_worker_for(lane.queue, lane.topic, living):
            unserved.setdefault(lane.queue, []).append(lane)
    found = [_unserved(queue, lanes, living, now) for queue, lanes in unserved.items()]
    silent = [each for each in workers if not is_live(each, now) and each.running]
    for each in silent[:3]:
        last = format_duration((now - each.last_beat).total_seconds()) if each.last_beat else "long"
        found.append(
            Warn(
                f"Worker {each.host}:{each.pid} has sent no heartbeat for {last}, with "
                f"{counted(each.running, 'job')} running. They restart elsewhere when their "
                "leases expire.",
                "pulsed workers",
            )
        )
    return found


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


def queue_lines(
    backlog: list[Backlog],
    workers: list[WorkerInfo],
    by_queue: dict[str, Series],
    now: datetime,
) -> list[QueueLine]:
    """Return the queues that have due jobs, workers or a past hour, those with due jobs first."""
    living = live(workers, now)
    names = {lane.queue for lane in backlog} | {name for name in by_queue if name}
    names |= {queue for worker in living for queue in worker.queues}
    lines = [_queue_line(name, backlog, living, by_queue.get(name), now) for name in names]
    lines.sort(key=lambda line: (-(line.oldest or 0), -line.per_minute, line.name))
    return lines[:MOST_QUEUES]


def _queue_line(
    name: str,
    backlog: list[Backlog],
    living: list[WorkerInfo],
    series: Series | None,
    now: datetime,
) -> QueueLine:
    lanes = [lane for lane in backlog if lane.queue == name]
    ended = [point.stats.ended for point in series.points] if series else []
    recent = ended[-1 - RECENT_MINUTES : -1]
    oldest = min((lane.oldest for lane in lanes), default=None)
    return QueueLine(
        name=name,
        due=sum(lane.due for lane in lanes),
        at_least=any(lane.at_least for lane in lanes),
        oldest=None if oldest is None else (now - oldest).total_seconds(),
        per_minute=sum(recent) / len(recent) if recent else 0.0,
        bars=bars(ended),
        workers=sum(name in worker.queues for worker in living),
    )

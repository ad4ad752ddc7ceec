"""The first page: what is wrong, how much there is to do, how fast it goes."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import NamedTuple

from starlette.responses import Response

from pulsed.app import Pulse
from pulsed.engine.doctor import Severity
from pulsed.engine.lanes import Lanes, recent_rate
from pulsed.engine.why import is_live, live, no_worker_for
from pulsed.model.job import WorkerInfo
from pulsed.model.rollup import Errors, Series
from pulsed.store.base import Backlog
from pulsed.web.charts import SPANS, STATISTICS_KEPT, bars, chart_data, span_in
from pulsed.web.pages.system import examined
from pulsed.web.site import PageCall
from pulsed.wording import counted, format_duration

MOST_ERRORS = 5
URGENT = {"open transactions", "overdue schedules", "schedules", "autovacuum", "failing workers"}
"""Findings of the doctor that the page shows; it finds the others by itself, or they can wait."""
MOST_QUEUES = 30


class Warn(NamedTuple):
    """Something that needs a person, and the command that helps."""

    text: str
    command: str = ""


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
    span = span_in(call.query)
    summary = await call.site.summary()
    shared = call.site.shared
    statistics = await shared.get(
        ("statistics", span), lambda: read_statistics(call.app, span), seconds=STATISTICS_KEPT
    )
    lanes = await call.site.lanes()
    is_empty = not summary.workers and not any(summary.counts.values())
    return await call.page(
        "overview.html",
        span=span,
        spans=SPANS,
        warnings=[*warnings(lanes), *await _examined(call)],
        glance=statistics.glance,
        errors=statistics.errors,
        chart=chart_data(statistics.chart),
        chart_stats=statistics.chart.stats,
        queues=lanes.queues(statistics.by_queue)[:MOST_QUEUES],
        bars=bars,
        is_empty=is_empty,
    )


async def _examined(call: PageCall) -> list[Warn]:
    """Return what the doctor found that a person has to act on, at most half a minute old."""
    found = (await examined(call)).findings
    return [
        Warn(f"{_sentence(one.check)}: {one.detail}. {_sentence(one.advice)}.", "pulsed doctor")
        for one in found
        if one.check in URGENT and one.level is not Severity.OK
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


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

"""Queues: how much is due, how fast it goes, and who takes from them."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from pulsed.engine.overview import STATISTICS_KEPT
from pulsed.engine.why import live
from pulsed.handler.options import checked_name
from pulsed.web.charts import SPANS, bars, chart_data, span_in
from pulsed.web.render import path, term
from pulsed.web.site import PageCall

MOST_LANES = 200
"""Queues, or topics of a queue, on one page."""


async def show(call: PageCall) -> Response:
    """Show all queues."""
    stats, shared = call.app.stats, call.site.shared
    by_queue, lanes, _ = await asyncio.gather(
        shared.get("series by queue", lambda: stats.aseries_by("queue"), seconds=STATISTICS_KEPT),
        call.site.lanes(),
        call.site.summary(),
    )
    found = lanes.queues(by_queue)
    return await call.page(
        "queues.html",
        queues=found[:MOST_LANES],
        left_out=len(found[MOST_LANES:]),
        bars=bars,
        where=lambda queue: term("queue", queue),
        link=lambda queue: call.url(f"/queues/{path(queue)}"),
    )


async def show_one(call: PageCall) -> Response:
    """Show a queue: its topics, its charts, and the workers that take from it."""
    name = checked_name("queue", call.path("name"))
    span = span_in(call.query)
    stats, shared = call.app.stats, call.site.shared
    by_topic, series, lanes, _ = await asyncio.gather(
        shared.get(
            ("series by topic", name),
            lambda: stats.aseries_by("topic", queue=name),
            seconds=STATISTICS_KEPT,
        ),
        shared.get(
            ("series", name, span),
            lambda: stats.aseries(SPANS[span], queue=name),
            seconds=STATISTICS_KEPT,
        ),
        call.site.lanes(),
        call.site.summary(),
    )
    topics = lanes.topics(name, by_topic)

    def where(topic: str) -> str:
        return f"{term('queue', name)} {term('topic', topic)}"

    return await call.page(
        "queue.html",
        name=name,
        span=span,
        spans=SPANS,
        topics=topics[:MOST_LANES],
        left_out=len(topics[MOST_LANES:]),
        workers=[each for each in live(lanes.workers, lanes.now) if name in each.queues],
        chart=chart_data(series),
        chart_stats=series.stats,
        bars=bars,
        where=where,
        link=lambda topic: call.url("/jobs", q=where(topic)),
    )

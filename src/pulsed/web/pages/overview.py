"""The first page: what is wrong, how much there is to do, how fast it goes."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.responses import Response

from pulsed.app import Pulse
from pulsed.engine.overview import STATISTICS_KEPT, Glance, glance, urgent, warnings
from pulsed.model.rollup import Errors, Series
from pulsed.web.charts import SPANS, bars, chart_data, span_in
from pulsed.web.pages.system import examined
from pulsed.web.site import PageCall

MOST_ERRORS = 5
MOST_QUEUES = 30


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
        warnings=[*warnings(lanes), *urgent((await examined(call)).findings)],
        glance=statistics.glance,
        errors=statistics.errors,
        chart=chart_data(statistics.chart),
        chart_stats=statistics.chart.stats,
        queues=lanes.queues(statistics.by_queue)[:MOST_QUEUES],
        bars=bars,
        is_empty=is_empty,
    )


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

"""The first page: what is wrong, how much there is to do, how fast it goes."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.responses import Response

from pulsed.app import Pulse
from pulsed.engine.governed import GOVERNED_KEPT, control_warnings, read_governed
from pulsed.engine.overview import FINDINGS_KEPT, STATISTICS_KEPT, Glance, glance, urgent, warnings
from pulsed.model.control import ControlScope
from pulsed.model.rollup import DAY, Errors, Series
from pulsed.web.charts import SPANS, bars, chart_data, span_in
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
    app, shared = call.app, call.site.shared
    statistics, found, governed, lanes, summary = await asyncio.gather(
        shared.get(
            ("statistics", span), lambda: read_statistics(app, span), seconds=STATISTICS_KEPT
        ),
        shared.get("urgent", lambda: urgent(app.store, call.site.reads), seconds=FINDINGS_KEPT),
        shared.get("governed", lambda: read_governed(app.store), seconds=GOVERNED_KEPT),
        call.site.lanes(),
        call.site.summary(),
    )
    is_empty = not summary.workers and not any(summary.counts.values())
    return await call.page(
        "overview.html",
        span=span,
        spans=SPANS,
        warnings=[*control_warnings(lanes, governed), *warnings(lanes), *found],
        glance=statistics.glance,
        errors=statistics.errors,
        chart=chart_data(statistics.chart),
        chart_stats=statistics.chart.stats,
        queues=lanes.queues(statistics.by_queue)[:MOST_QUEUES],
        bars=bars,
        paused={name for name, each in governed.of(ControlScope.QUEUE).items() if each.paused},
        is_empty=is_empty,
    )


async def read_statistics(app: Pulse, span: str) -> OverviewStatistics:
    """Read the statistics of the page: a few reads of rollups, however many jobs there are."""
    stats = app.stats
    wanted = ("1h", "7d") if span == "7d" else ("1h", "24h")  # a week contains its last day
    errors, by_queue, series = await asyncio.gather(
        stats.aerrors(SPANS["1h"], limit=MOST_ERRORS),
        stats.aseries_by("queue", SPANS["1h"]),
        asyncio.gather(*(stats.aseries(SPANS[each]) for each in wanted)),
    )
    found = dict(zip(wanted, series, strict=True))
    day = found["24h"] if "24h" in found else found["7d"].last(DAY)
    return OverviewStatistics(glance(found["1h"], day), found[span], errors, by_queue)

"""Queues: how much is due, how fast it goes, who takes from them, and what governs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

from starlette.responses import Response

from pulsed.engine.overview import STATISTICS_KEPT
from pulsed.engine.queues import next_start
from pulsed.engine.why import live
from pulsed.handler.options import checked_name
from pulsed.model.control import Control, ControlKey, ControlScope, described
from pulsed.model.control_text import texts_of
from pulsed.model.rollup import Series
from pulsed.web.charts import SPANS, bars, chart_data, span_in
from pulsed.web.control_form import OF_QUEUES, whose
from pulsed.web.pages.control_acts import ControlActs
from pulsed.web.render import term
from pulsed.web.site import PageCall

MOST_LANES = 200
"""Queues, or topics of a queue, on one page."""


async def show(call: PageCall) -> Response:
    """Show all queues."""
    stats, shared = call.app.stats, call.site.shared
    by_queue, lanes, controls, _ = await asyncio.gather(
        shared.get("series by queue", lambda: stats.aseries_by("queue"), seconds=STATISTICS_KEPT),
        call.site.lanes(),
        call.site.controls(),
        call.site.summary(),
    )
    governed = of_scope(controls, ControlScope.QUEUE)
    found = lanes.queues(by_queue, besides=governed)
    return await call.page(
        "queues.html",
        queues=found[:MOST_LANES],
        left_out=len(found[MOST_LANES:]),
        bars=bars,
        controls=governed,
        described=described,
        now=lanes.now,
        where=lambda queue: term("queue", queue),
        link=lambda queue: call.url(acts.address(queue)),
    )


def of_scope(controls: Mapping[ControlKey, Control], scope: ControlScope) -> dict[str, Control]:
    """Return the controls of queues, topics or limits, by name."""
    return {key.name: control for key, control in controls.items() if key.scope is scope}


async def show_one(call: PageCall) -> Response:
    """Show a queue: its topics, its charts, and the workers that take from it."""
    name = acts.name(call)
    span = span_in(call.query)
    (by_topic, series), lanes, controls, _ = await asyncio.gather(
        _statistics(call, name, span),
        call.site.lanes(),
        call.site.controls(),
        call.site.summary(),
    )
    topics = lanes.topics(name, by_topic)
    control = of_scope(controls, ControlScope.QUEUE).get(name) or _neutral(name)

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
        control=control,
        controls=of_scope(controls, ControlScope.TOPIC),
        described=described,
        whose=whose(control),
        running=sum(lane.running for lane in lanes.of(name).running),
        next_start=await _next_start(call, control, lanes.now),
        fields=OF_QUEUES,
        values=texts_of(control.numbers),
        base=acts.address(name),
        now=lanes.now,
        chart=chart_data(series),
        chart_stats=series.stats,
        bars=bars,
        where=where,
        link=lambda topic: call.url("/jobs", q=where(topic)),
    )


def _neutral(queue: str) -> Control:
    return Control(scope=ControlScope.QUEUE, name=queue)


async def _statistics(call: PageCall, name: str, span: str) -> tuple[dict[str, Series], Series]:
    """Return the statistics of a queue's topics, and those of the queue over a span of time."""
    stats, shared = call.app.stats, call.site.shared
    return await asyncio.gather(
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
    )


async def _next_start(call: PageCall, control: Control, now: datetime) -> datetime | None:
    """Return when the queue's rate permits the next start; None if it does now."""
    if control.numbers.rate is None:
        return None
    names = [control.name]
    rates = await call.site.shared.get(
        ("rate of queue", control.name),
        lambda: call.app.store.controls.rates(ControlScope.QUEUE, names),
    )
    return next_start(control, rates.get(control.name), now)


# -- acts -----------------------------------------------------------------------------------------


acts = ControlActs(
    "queue",
    lambda app: app.queues,
    lambda app, name, **numbers: app.queues.alimit(name, **numbers),
    OF_QUEUES,
)


async def pause_topic(call: PageCall) -> Response:
    """Start no more jobs of a topic, in whichever queue."""
    name = checked_name("topic", call.path("name"))
    await call.app.topics.apause(name)
    return call.done(f"The topic {name} is paused in all queues.", call.back("/queues"))


async def resume_topic(call: PageCall) -> Response:
    """Start jobs of a topic again."""
    name = checked_name("topic", call.path("name"))
    await call.app.topics.aresume(name)
    return call.done(f"The topic {name} starts jobs again.", call.back("/queues"))

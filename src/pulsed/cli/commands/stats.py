"""``pulsed stats``: what happened to jobs lately."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import click

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.view.output import Table, console, for_people, json_option, print_json
from pulsed.cli.view.times import past
from pulsed.model.rollup import ErrorRollup, Histogram, Rollup, RollupFilter, Stats
from pulsed.store.blocking import run_blocking
from pulsed.wording import format_duration

EXAMPLES = """\b
examples:
  pulsed stats --since 24h
  pulsed stats --queue mail --json | jq '{topic, succeeded, failed, run_p95}'"""

COUNTS = ("ENQUEUED", "STARTED", "OK", "FAILED", "DEAD")
TIMES = ("WAIT P50", "WAIT P95", "RUN P50", "RUN P95")
MOST_ERRORS = 10


@click.command(epilog=EXAMPLES)
@click.option("--since", type=past, metavar="TIME", help="30m, 2h, 3d or ISO-8601 [default: 1h].")
@click.option("--queue", metavar="NAME", help="Of this queue only.")
@click.option("--topic", metavar="NAME", help="Of this topic only.")
@json_option
@database_options
def stats(
    database: Database, since: datetime | None, queue: str | None, topic: str | None, as_json: bool
) -> None:
    """Show how many jobs were enqueued, how their runs ended, how long they took, and errors.

    Workers and producers write these numbers every five seconds. They are kept for 30 days, unless
    the app's retention says otherwise.
    """
    with database.store() as store:
        begin = since or run_blocking(store.now()) - timedelta(hours=1)
        where = RollupFilter(begin, queue=queue, topic=topic)
        totals = run_blocking(store.rollups.totals(where))
        errors = run_blocking(store.rollups.errors(where, limit=MOST_ERRORS))
    if not for_people(as_json=as_json):
        for each in totals:
            print_json(_as_json(each))
    elif totals:
        _show_table(totals)
        _show_errors(errors)
        if totals.is_cut:
            say("there are more queues and topics: --queue or --topic shows one of them")
    else:
        say("no job was enqueued, and no run began or ended in this time")


def _as_json(rollup: Rollup) -> dict[str, Any]:
    stats = dataclasses.asdict(rollup.stats)
    for name in ("wait", "run"):
        histogram: Histogram = getattr(rollup.stats, name)
        del stats[name]
        stats |= {f"{name}_{part}": getattr(histogram, part) for part in ("p50", "p95", "p99")}
        stats[f"{name}_mean"] = histogram.mean
    return {"queue": rollup.queue, "topic": rollup.topic, **stats}


def _show_table(totals: list[Rollup]) -> None:
    with_expired = any(each.stats.expired for each in totals)
    counts = (*COUNTS, *(["EXPIRED"] if with_expired else []))
    table = Table(
        "QUEUE",
        "TOPIC",
        *counts,
        *TIMES,
        flexible={"TOPIC": 12, "QUEUE": 8},
        optional=("WAIT P50", "RUN P50", "STARTED"),
        numbers=(*counts, *TIMES),
    )
    for each in totals:
        cells = _cells(each.stats, with_expired=with_expired)
        table.add(each.queue or "(others)", each.topic or "(others)", *cells)
    table.show(console())


def _cells(stats: Stats, *, with_expired: bool) -> list[str]:
    ends = [stats.succeeded, stats.failed, stats.dead_lettered]
    if with_expired:
        ends.append(stats.expired)
    times = (stats.wait.p50, stats.wait.p95, stats.run.p50, stats.run.p95)
    return [
        *(f"{count:,}" for count in (stats.submitted, stats.started, *ends)),
        *("-" if seconds is None else format_duration(seconds) for seconds in times),
    ]


def _show_errors(errors: list[ErrorRollup]) -> None:
    if not errors:
        return
    table = Table(
        "ERRORS",
        "DEAD",
        "TOPIC",
        "KIND",
        "LAST",
        flexible={"LAST": 20, "TOPIC": 12, "KIND": 16},
        numbers=("ERRORS", "DEAD"),
    )
    for each in errors:
        kind = each.error or "(others)"
        table.add(f"{each.count:,}", f"{each.dead_lettered:,}", each.topic, kind, each.message)
    console().print()
    table.show(console())

"""``pulsed workers``: who is at work."""

from __future__ import annotations

from datetime import datetime

import click
from rich.text import Text

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.view.output import (
    Table,
    console,
    for_people,
    joined,
    json_option,
    print_json,
    worker_as_json,
)
from pulsed.engine.why import is_live
from pulsed.model.job import WorkerInfo
from pulsed.store.blocking import run_blocking
from pulsed.wording import format_duration

EXAMPLES = """\b
examples:
  pulsed workers
  pulsed workers --json | jq 'select(.live | not)'

\b
environment:
  PULSED_URL, DATABASE_URL, PULSED_APP   the database, when --url and --app are not given"""


@click.command(epilog=EXAMPLES)
@json_option
@database_options
def workers(database: Database, as_json: bool | None) -> None:  # noqa: FBT001
    """Show the workers: their hosts, their queues and their last heartbeats."""
    with database.store() as store:
        found = run_blocking(store.workers())
        now = run_blocking(store.now())
    if not for_people(as_json=as_json):
        for worker in found:
            print_json(worker_as_json(worker) | {"live": is_live(worker, now)})
    elif found:
        _show_table(found, now)
    else:
        say("no workers; start one with `pulsed worker module:app`")


def _show_table(found: list[WorkerInfo], now: datetime) -> None:
    table = Table(
        "HOST",
        "PID",
        "STATE",
        "JOBS",
        "BEAT",
        "UP",
        "QUEUES",
        "TOPICS",
        flexible={"TOPICS": 10, "QUEUES": 8, "HOST": 16},
        optional=("UP", "TOPICS"),
        numbers=("PID", "JOBS"),
    )
    for worker in found:
        table.add(
            worker.host,
            str(worker.pid),
            _state(worker, now),
            f"{worker.running}/{worker.slots}",
            _age(worker.last_beat, now),
            _age(worker.started_at, now),
            joined(worker.queues, 4),
            joined(worker.topics),
        )
    table.show(console())


def _state(worker: WorkerInfo, now: datetime) -> Text:
    if not is_live(worker, now):
        return Text("silent", style="bold red")
    if worker.stuck:
        return Text(f"{worker.stuck} stuck", style="bold red")
    return Text(worker.state, style="green" if worker.state == "running" else "yellow")


def _age(instant: datetime | None, now: datetime) -> str:
    return "?" if instant is None else format_duration((now - instant).total_seconds())

"""Workers in a table, those with a problem first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.text import Text

from pulsed.cli.view.output import Table, joined
from pulsed.engine.why import is_live
from pulsed.model.job import WorkerInfo
from pulsed.wording import format_duration


def worker_table(workers: Iterable[WorkerInfo], now: datetime) -> Table:
    """Return a table of workers: their slots, heartbeats, queues and topics."""
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
        numbers=("PID", "JOBS", "BEAT", "UP"),
    )
    for worker in sorted(workers, key=lambda each: (_is_well(each, now), each.host, each.pid)):
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
    return table


def _is_well(worker: WorkerInfo, now: datetime) -> bool:
    return is_live(worker, now) and not worker.stuck and worker.state != "failing"


def _state(worker: WorkerInfo, now: datetime) -> Text:
    if not is_live(worker, now):
        return Text("silent", style="bold red")
    if worker.stuck:
        return Text(f"{worker.stuck} stuck", style="bold red")
    return Text(worker.state, style="green" if worker.state == "running" else "yellow")


def _age(instant: datetime | None, now: datetime) -> str:
    return "?" if instant is None else format_duration((now - instant).total_seconds())

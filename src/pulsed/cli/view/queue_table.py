"""Queues in a table, or as JSON data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from pulsed.cli.view.output import Table
from pulsed.engine.lanes import LaneState
from pulsed.wording import format_percent, format_rate, maybe_duration

NUMBERS = ("DUE", "OLDEST", "RUNNING", "PER MIN", "FAILED", "WORKERS")


def queue_as_json(queue: LaneState) -> dict[str, Any]:
    """Return a queue as JSON data."""
    return {
        "queue": queue.name,
        "due": queue.due,
        "due_at_least": queue.due_at_least,
        "oldest": queue.oldest,
        "running": queue.running,
        "running_at_least": queue.running_at_least,
        "per_minute": queue.per_minute_out,
        "failure_rate": queue.failure_rate,
        "workers": queue.workers,
    }


def queue_table(queues: Sequence[LaneState]) -> Table:
    """Return a table of queues; red: due jobs that no live worker takes, and failures."""
    table = Table("QUEUE", *NUMBERS, flexible={"QUEUE": 12}, numbers=NUMBERS)
    for queue in queues:
        unserved = bool(queue.due and not queue.workers)
        table.add(
            queue.name,
            number(queue.due, at_least=queue.due_at_least),
            maybe_duration(queue.oldest),
            number(queue.running, at_least=queue.running_at_least),
            format_rate(queue.per_minute_out),
            Text(format_percent(queue.failure_rate), style="red" if queue.failure_rate else ""),
            Text(f"{queue.workers or 'none'}", style="bold red" if unserved else ""),
        )
    return table


def number(value: int, *, at_least: bool) -> str:
    """Return a number of jobs; with ``≥`` if it is a lower bound."""
    return f"{'≥ ' if at_least else ''}{value:,}"

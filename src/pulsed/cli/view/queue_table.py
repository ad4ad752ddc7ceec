"""Queues in a table, or as JSON data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.text import Text

from pulsed.cli.view.output import Table
from pulsed.cli.view.times import iso, relative
from pulsed.engine.lanes import LaneState
from pulsed.engine.queues import QueueState
from pulsed.model.control import Control, described
from pulsed.wording import format_percent, format_rate, maybe_duration

NUMBERS = ("DUE", "OLDEST", "RUNNING", "PER MIN", "FAILED", "WORKERS")


def governed_as_json(state: QueueState) -> dict[str, Any]:
    """Return a queue with what governs it as JSON data."""
    next_start = {"next_start": iso(state.next_start)}
    return queue_as_json(state.lane) | control_as_json(state.control) | next_start


def control_as_json(control: Control) -> dict[str, Any]:
    """Return what governs a queue or a topic as JSON data."""
    return {
        control.scope.value: control.name,
        "paused": control.paused,
        "paused_at": iso(control.paused_at),
        "paused_by": control.paused_by,
        "limits": msgspec.to_builtins(control.numbers),
        "declared": msgspec.to_builtins(control.declared),
        "override": msgspec.to_builtins(control.override),
    }


def governed_table(queues: Sequence[QueueState], now: datetime) -> Table:
    """Return a table of queues, each with a line below it that says what governs it."""
    notes = {
        state.name: governed_by(state.control, now)
        for state in queues
        if not state.control.is_neutral
    }
    return queue_table([state.lane for state in queues], notes)


def governed_by(control: Control, now: datetime) -> Text:
    """Return in words what governs a queue or a topic."""
    words = Text()
    if control.paused:
        words.append("paused", style="bold yellow")
        if control.paused_by:
            words.append(f" by {control.paused_by}")
        if control.paused_at is not None:
            words.append(f" {relative(control.paused_at, now)}")
    if control.override is not None or control.declared is not None:
        whose = "declared" if control.override is None else "set by an operator"
        words.append(f"{'; ' if control.paused else ''}{described(control.numbers)} ({whose})")
    return words


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


def queue_table(queues: Sequence[LaneState], notes: Mapping[str, Text] | None = None) -> Table:
    """Return a table of queues; red: due jobs that no live worker takes, and failures.

    ``notes`` are lines below queues, by name.
    """
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
            below=(notes or {}).get(queue.name),
        )
    return table


def number(value: int, *, at_least: bool) -> str:
    """Return a number of jobs; with ``≥`` if it is a lower bound."""
    return f"{'≥ ' if at_least else ''}{value:,}"

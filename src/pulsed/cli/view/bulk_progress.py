"""How a bulk operation goes on, and what became of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pulsed.cli.exits import say
from pulsed.cli.view.output import Table, console
from pulsed.cli.view.times import moment, relative
from pulsed.model.audit import of_filter
from pulsed.model.bulk import BulkRow, BulkState, Skip
from pulsed.wording import counted

COLOURS = {
    BulkState.RUNNING: "blue",
    BulkState.DONE: "green",
    BulkState.STOPPED: "yellow",
    BulkState.FAILED: "bold red",
}


@contextmanager
def progress_bar(row: BulkRow) -> Iterator[Callable[[BulkRow], None]]:
    """A bar on a terminal; elsewhere nothing. Yields what tells it how far the operation is."""
    screen = console(sys.stderr)
    if not screen.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn(row.kind.verb), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=max(1, row.total))

        def tell(now: BulkRow) -> None:
            visited = now.done + now.skipped
            progress.update(task, completed=visited, total=max(now.total, visited, 1))

        yield tell


def print_end(row: BulkRow, skips: Sequence[Skip]) -> None:
    """Say what became of an operation, and why it left jobs as they are."""
    state = "" if row.state is BulkState.DONE else f"{row.state.lower()}: "
    skipped = f", {row.skipped:,} skipped" if row.skipped else ""
    say(f"{state}{row.kind.done} {counted(row.done, 'job')}{skipped}")
    if row.error:
        say(row.error)
    for skip in skips[:FEW]:
        say(f"job {skip.job_id} was left as it is: {skip.words}")
    if row.skipped > FEW:
        say(f"… `pulsed bulk show {row.id}` has more of them")


FEW = 5
"""Skipped jobs that are named right away."""


def print_table(rows: Sequence[BulkRow], now: datetime) -> None:
    """Print operations as a table."""
    heads = ("ID", "WHAT", "STATE", "DONE", "SKIPPED", "OF", "STARTED", "WHO", "FILTER")
    numbers = ("DONE", "SKIPPED", "OF")
    flexible = {"FILTER": 16, "WHO": 10}
    table = Table(
        *heads, flexible=flexible, numbers=numbers, optional=("WHO", "OF", "FILTER", "SKIPPED")
    )
    for row in rows:
        table.add(
            str(row.id),
            row.kind.verb,
            Text(row.state, style=COLOURS[row.state]),
            f"{row.done:,}",
            f"{row.skipped:,}",
            total_of(row),
            relative(row.started_at, now),
            row.actor,
            filter_words(row),
        )
    table.show(console())


def print_report(row: BulkRow, skips: Sequence[Skip], now: datetime) -> None:
    """Print one operation, and the jobs that it left as they are."""
    screen = console()
    lines = {
        "operation": str(row.id),
        "act": " ".join([row.kind.verb, *_arguments(row)]),
        "jobs": filter_words(row),
        "state": row.state.value if row.error is None else f"{row.state}: {row.error}",
        "done": f"{row.done:,} of {total_of(row)} ({row.percent} %), {row.skipped:,} skipped",
        "started": f"{moment(row.started_at, now)} by {row.claimed or row.actor}",
    }
    if row.ended_at is not None:
        lines["ended"] = moment(row.ended_at, now)
    for label, text in lines.items():
        screen.print(Text(f"{label:<10}", style="dim").append(text, style="not dim"))
    if skips:
        table = Table("SKIPPED", "WHY", flexible={"WHY": 20})
        for skip in skips:
            table.add(str(skip.job_id), skip.words)
        screen.print()
        table.show(screen)
        if row.skipped > len(skips):
            say(f"the first {len(skips):,} of {row.skipped:,} skipped jobs")


def total_of(row: BulkRow) -> str:
    """Return how many jobs were expected; with ``≥`` if it is a lower bound."""
    return f"{'≥ ' if row.is_at_least else ''}{row.total:,}"


def filter_words(row: BulkRow) -> str:
    """Return the filter as text."""
    return of_filter(row.where)


def as_json(row: BulkRow) -> dict[str, Any]:
    """Return an operation as JSON data."""
    fields = msgspec.structs.asdict(row)
    fields["filter"] = msgspec.Raw(row.filter.encode())
    fields["arguments"] = msgspec.Raw(row.arguments.encode())
    return fields


def _arguments(row: BulkRow) -> Iterator[str]:
    for name, value in msgspec.json.decode(row.arguments).items():
        yield f"{name}={value}"

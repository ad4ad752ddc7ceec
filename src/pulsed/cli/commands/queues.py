"""``pulsed queues``: what is due and running in each queue."""

from __future__ import annotations

import click
from rich.text import Text

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.view.output import Table, console, for_people, json_option, print_json
from pulsed.client.stats import last_hour_by_queue
from pulsed.engine.lanes import Lanes, LaneState
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.wording import format_duration

EXAMPLES = """\b
examples:
  pulsed queues
  pulsed queues --json | jq 'select(.due > 0 and .workers == 0)'

\b
environment:
  PULSED_URL, DATABASE_URL, PULSED_APP   the database, when --url and --app are not given"""


@click.command(epilog=EXAMPLES)
@json_option
@database_options
def queues(database: Database, as_json: bool | None) -> None:  # noqa: FBT001
    """Show the queues: what is due and running, how fast it goes, and who takes from them."""
    with database.store() as store:
        found = run_blocking(_read(store))
    if not for_people(as_json=as_json):
        for queue in found:
            print_json(_as_json(queue))
    elif found:
        _show_table(found)
    else:
        say("no queues: no job is due or running, and no worker is alive")


async def _read(store: Store) -> list[LaneState]:
    lanes = Lanes(
        await store.backlog(), await store.running(), await store.workers(), await store.now()
    )
    return lanes.queues(await last_hour_by_queue(store))


def _as_json(queue: LaneState) -> dict[str, object]:
    return {
        "queue": queue.name,
        "due": queue.due,
        "due_at_least": queue.due_at_least,
        "oldest": queue.oldest,
        "running": queue.running,
        "running_at_least": queue.running_at_least,
        "per_minute": queue.per_minute_out,
        "workers": queue.workers,
    }


def _show_table(found: list[LaneState]) -> None:
    numbers = ("DUE", "OLDEST", "RUNNING", "PER MIN", "WORKERS")
    table = Table("QUEUE", *numbers, flexible={"QUEUE": 12}, numbers=numbers)
    for queue in found:
        unserved = bool(queue.due and not queue.workers)
        table.add(
            queue.name,
            _number(queue.due, at_least=queue.due_at_least),
            "-" if queue.oldest is None else format_duration(queue.oldest),
            _number(queue.running, at_least=queue.running_at_least),
            f"{queue.per_minute_out:,.1f}".removesuffix(".0"),
            Text("none", style="bold red" if unserved else "")
            if not queue.workers
            else f"{queue.workers:,}",
        )
    table.show(console())


def _number(number: int, *, at_least: bool) -> str:
    return f"{'≥ ' if at_least else ''}{number:,}"

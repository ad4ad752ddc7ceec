"""``pulsed jobs stream``: what a job emits."""

from __future__ import annotations

import click
import msgspec
from rich.text import Text

from pulsed.cli.options.database import Database, database_options
from pulsed.cli.options.job_ids import find_id
from pulsed.cli.plain import in_line
from pulsed.cli.view.output import console, for_people, json_option, print_json
from pulsed.client.stream import StreamReader
from pulsed.model.stream import LAST_POSITION, StreamItem
from pulsed.store.blocking import run_blocking


@click.command("stream", short_help="Show what a job emits, and perhaps follow it.")
@click.argument("job_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Wait for more until the job ends.")
@click.option(
    "--after",
    type=click.IntRange(0, LAST_POSITION),
    default=0,
    metavar="N",
    help="Begin after the item of this position [default: 0].",
)
@json_option
@database_options
def stream(database: Database, job_id: str, follow: bool, after: int, as_json: bool | None) -> None:
    """Show the items that a job has emitted with ctx.emit, oldest first.

    A line for each: its position and its value on a terminal, JSON in a pipe.

    \b
    Example:
      pulsed jobs stream 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69 --follow
    """
    show = _show if for_people(as_json=as_json) else _show_json
    with database.store() as store:
        reader = StreamReader(lambda: store, find_id(store, job_id), after=after, follow=follow)
        while items := run_blocking(reader.next_items()):
            for item in items:
                show(item)
            reader.position = items[-1].position


def _show(item: StreamItem) -> None:
    console().print(
        Text.assemble((f"{item.position:>6}  ", "dim"), in_line(item.value)), soft_wrap=True
    )


def _show_json(item: StreamItem) -> None:
    print_json(
        {
            "position": item.position,
            "run": item.run,
            "emitted_at": item.emitted_at,
            "value": msgspec.Raw(item.value.encode()),
        }
    )

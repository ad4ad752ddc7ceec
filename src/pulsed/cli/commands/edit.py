"""``pulsed jobs edit``: other arguments for a dead letter, and a retry."""

from __future__ import annotations

import json

import click

from pulsed.cli.exits import say
from pulsed.cli.options.arguments import payload_of
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.options.job_ids import find_id


@click.command(short_help="Replace arguments of a dead letter, and retry it.")
@click.argument("job_id", metavar="ID")
@click.argument("arguments", metavar="[NAME=VALUE…|-]", nargs=-1)
@click.option("--json-args", metavar="OBJECT", help="All arguments as one JSON object.")
@click.option("--fresh", is_flag=True, help="Restart a workflow from the beginning.")
@database_options
def edit(
    database: Database, job_id: str, arguments: tuple[str, ...], json_args: str | None, fresh: bool
) -> None:
    """Replace arguments of a dead-lettered or cancelled job, and retry it.

    Arguments that are not given stay, unless --json-args or - (JSON on stdin) gives all of them.
    With --app they are checked against the handler.

    \b
    Examples:
      pulsed jobs edit 0197a8c2 to=grace@example.com --app shop.jobs:app
      pulsed jobs edit 0197a8c2 --json-args '{"to": "grace@example.com"}'
    """
    from pulsed.cli.commands.enqueue import producer  # noqa: PLC0415 - it loads the app

    given = payload_of(arguments, json_args)
    with producer(database) as app:
        found = find_id(app.store, job_id)
        if json_args is None and arguments != ("-",):
            given = json.loads(app.jobs.get(found).row.payload) | given
        status = app.jobs.edit_and_retry(found, given, fresh=fresh)
    print(found)
    say(f"the job has other arguments and is {status}")

"""``pulsed workers``: who is at work."""

from __future__ import annotations

import click

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.view.output import console, for_people, json_option, print_json, worker_as_json
from pulsed.cli.view.worker_table import worker_table
from pulsed.engine.why import is_live
from pulsed.store.blocking import run_blocking

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
        worker_table(found, now).show(console())
    else:
        say("no workers; start one with `pulsed worker module:app`")

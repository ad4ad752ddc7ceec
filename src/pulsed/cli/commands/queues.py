"""``pulsed queues``: what is due and running in each queue."""

from __future__ import annotations

import click

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.view.output import console, for_people, json_option, print_json
from pulsed.cli.view.queue_table import queue_as_json, queue_table
from pulsed.client.stats import last_hour_by_queue
from pulsed.engine.lanes import Lanes, LaneState
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking

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
            print_json(queue_as_json(queue))
    elif found:
        queue_table(found).show(console())
    else:
        say("no queues: no job is due or running, and no worker is alive")


async def _read(store: Store) -> list[LaneState]:
    lanes = Lanes(
        await store.backlog(), await store.running(), await store.workers(), await store.now()
    )
    return lanes.queues(await last_hour_by_queue(store))

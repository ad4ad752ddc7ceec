"""``pulsed queues``: what is due and running in each queue; pausing and limiting them."""

from __future__ import annotations

import click

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.groups import Group, refuse_options
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.view.output import console, for_people, json_option, print_json
from pulsed.cli.view.queue_table import (
    control_as_json,
    governed_as_json,
    governed_by,
    governed_table,
)
from pulsed.client.job import Client
from pulsed.client.queues import Queues
from pulsed.model.control import Control
from pulsed.model.control_text import typed_numbers
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking

EXAMPLES = """\b
examples:
  pulsed queues
  pulsed queues list --json | jq 'select(.due > 0 and .workers == 0)'
  pulsed queues pause mail
  pulsed queues limit encode --running 4 --rate 60/1m"""


@click.group(cls=Group, epilog=EXAMPLES + ENVIRONMENT, invoke_without_command=True)
@json_option
@database_options
@click.pass_context
def queues(ctx: click.Context, database: Database, as_json: bool | None) -> None:
    """Show the queues, pause, resume and limit them.

    Without a command, it lists them.
    """
    if ctx.invoked_subcommand is None:
        _list(database, as_json=as_json)
    else:
        refuse_options(ctx)


@queues.command("list")
@json_option
@database_options
def list_(database: Database, as_json: bool | None) -> None:
    """Show what is due and running, how fast it goes, and who takes from each queue."""
    _list(database, as_json=as_json)


@queues.command()
@click.argument("name")
@json_option
@database_options
def pause(database: Database, name: str, as_json: bool | None) -> None:
    """Start no more jobs of a queue. Those that run continue."""
    with database.store() as store:
        tell(store, queues_of(store).pause(name), as_json=as_json)


@queues.command()
@click.argument("name")
@json_option
@database_options
def resume(database: Database, name: str, as_json: bool | None) -> None:
    """Start jobs of a queue again, at once."""
    with database.store() as store:
        tell(store, queues_of(store).resume(name), as_json=as_json)


@queues.command()
@click.argument("name")
@click.option("--running", metavar="N", help="The most jobs that run at the same time, or none.")
@click.option("--rate", metavar="N/TIME", help="How often jobs start: 60/1m, or none.")
@click.option("--burst", metavar="N", help="How many of a rate may start at once.")
@click.option("--age", metavar="TIME", help="Waiting that raises a priority by 1: 5m, or none.")
@json_option
@database_options
def limit(
    database: Database,
    name: str,
    running: str | None,
    rate: str | None,
    burst: str | None,
    age: str | None,
    as_json: bool | None,
) -> None:
    """Override the limits that the code declares for a queue.

    What you leave out stays as it is. The override lasts until `pulsed queues clear`.

    \b
    Examples:
      pulsed queues limit encode --running 4
      pulsed queues limit mail --rate 600/1m --burst 50
      pulsed queues limit encode --running none --age 5m
    """
    if running is rate is age is None:
        raise CommandError("which limit? Give --running, --rate or --age.", Code.USAGE)
    given = typed_numbers({"running": running, "rate": rate, "burst": burst, "age": age})
    with database.store() as store:
        tell(store, queues_of(store).limit(name, **given), as_json=as_json)


@queues.command()
@click.argument("name")
@json_option
@database_options
def clear(database: Database, name: str, as_json: bool | None) -> None:
    """Remove your override of a queue's limits. Those that the code declares apply again."""
    with database.store() as store:
        tell(store, queues_of(store).clear(name), as_json=as_json)


def queues_of(store: Store) -> Queues:
    """Return the queues of a store, as an app has them."""
    return Queues(Client.over(store))


def tell(store: Store, control: Control, *, as_json: bool | None) -> None:
    """Print what governs a queue or a topic after an act."""
    if not for_people(as_json=as_json):
        print_json(control_as_json(control))
        return
    words = governed_by(control, run_blocking(store.now()))
    line = words if words.plain else "not paused and not limited"
    console().print(f"{control.scope} {control.name}: ", line, sep="")


def _list(database: Database, *, as_json: bool | None) -> None:
    with database.store() as store:
        found = queues_of(store).list()
        now = run_blocking(store.now())
    if not for_people(as_json=as_json):
        for queue in found:
            print_json(governed_as_json(queue))
    elif found:
        governed_table(found, now).show(console())
    else:
        say("no queues: no job is due or running, and no worker is alive")

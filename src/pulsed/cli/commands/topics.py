"""``pulsed topics``: pausing and resuming topics."""

from __future__ import annotations

import click

from pulsed.cli.commands.queues import tell
from pulsed.cli.exits import say
from pulsed.cli.groups import Group
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.view.output import console, for_people, json_option, print_json
from pulsed.cli.view.queue_table import control_as_json, governed_by
from pulsed.client.job import Client
from pulsed.client.queues import TopicActs
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking

EXAMPLES = """\b
examples:
  pulsed topics pause send_newsletter
  pulsed topics paused
  pulsed topics resume send_newsletter"""


@click.group(cls=Group, epilog=EXAMPLES + ENVIRONMENT)
def topics() -> None:
    """Pause and resume topics, in all queues."""


@topics.command()
@json_option
@database_options
def paused(database: Database, as_json: bool | None) -> None:
    """List the topics that are paused."""
    with database.store() as store:
        found = topics_of(store).paused()
        now = run_blocking(store.now())
    for control in found:
        if for_people(as_json=as_json):
            console().print(f"{control.name}: ", governed_by(control, now), sep="")
        else:
            print_json(control_as_json(control))
    if not found:
        say("no topic is paused")


@topics.command()
@click.argument("name")
@json_option
@database_options
def pause(database: Database, name: str, as_json: bool | None) -> None:
    """Start no more jobs of a topic. Those that run continue."""
    with database.store() as store:
        tell(store, topics_of(store).pause(name), as_json=as_json)


@topics.command()
@click.argument("name")
@json_option
@database_options
def resume(database: Database, name: str, as_json: bool | None) -> None:
    """Start jobs of a topic again."""
    with database.store() as store:
        tell(store, topics_of(store).resume(name), as_json=as_json)


def topics_of(store: Store) -> TopicActs:
    """Return the topics of a store, as an app has them."""
    return TopicActs(Client.over(store))

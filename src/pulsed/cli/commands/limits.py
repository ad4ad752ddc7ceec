"""``pulsed limits``: what limits have in use, and their numbers at run time."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.view.output import Table, console, for_people, json_option, print_json
from pulsed.cli.view.queue_table import number
from pulsed.client.job import Client
from pulsed.client.limits import LimitActs
from pulsed.engine.limits import KeyState, LimitState
from pulsed.model.control import Control, described
from pulsed.model.control_text import typed_numbers
from pulsed.store.base import Store

EXAMPLES = """\b
examples:
  pulsed limits list
  pulsed limits show openai
  pulsed limits set openai --running 3
  pulsed limits set openai --rate 60/1m --burst 10
  pulsed limits set openai --running none
  pulsed limits clear openai
  pulsed limits pause openai

\b
environment:
  PULSED_ACTOR   who acts, for the audit log [default: user@host]
  PULSED_URL, DATABASE_URL, PULSED_APP   the database, when --url and --app are not given"""


@click.group(epilog=EXAMPLES)
def limits() -> None:
    """Show limits and what they have in use; change, pause and resume them."""


@limits.command("list")
@json_option
@database_options
def list_(database: Database, as_json: bool | None) -> None:
    """Show all limits: their numbers, how many jobs run, and how many wait."""
    with database.store() as store:
        found = limits_of(store).list()
    if not for_people(as_json=as_json):
        for limit in found:
            print_json(limit_as_json(limit))
    elif found:
        _limit_table(found).show(console())
    else:
        say("no limits: a limit is listed once a worker that declares it has started")


@limits.command()
@click.argument("name")
@click.option(
    "--keys", type=click.IntRange(1, 1_000), default=20, show_default=True,
    help="How many keys at the most; the busiest come first.",
)  # fmt: skip
@json_option
@database_options
def show(database: Database, name: str, keys: int, as_json: bool | None) -> None:
    """Show a limit: for each of its keys who holds it, how many wait, and when the next starts."""
    with database.store() as store:
        limit = limits_of(store).get(name, keys=keys)
    if not for_people(as_json=as_json):
        print_json(limit_as_json(limit))
        return
    _limit_table([limit]).show(console())
    if limit.keys:
        _key_table(limit.keys).show(console())


@limits.command("set")
@click.argument("name")
@click.option("--running", metavar="N", help="Jobs at once; none: as many as there are slots.")
@click.option("--rate", metavar="N/TIME", help="How often jobs start: 60/1m; none: no rate.")
@click.option("--burst", metavar="N", help="How many of a rate may start at once.")
@database_options
def set_(
    database: Database, name: str, running: str | None, rate: str | None, burst: str | None
) -> None:
    """Override the numbers that the code declares, until `pulsed limits clear`."""
    fields = typed_numbers({"running": running, "rate": rate, "burst": burst})
    if not fields:
        raise click.UsageError("Say --running or --rate; `pulsed limits clear` ends an override.")
    with database.store() as store:
        _say(limits_of(store).override(name, **fields))


@limits.command()
@click.argument("name")
@database_options
def clear(database: Database, name: str) -> None:
    """Remove an override: the numbers that the code declares apply again."""
    with database.store() as store:
        _say(limits_of(store).clear(name))


@limits.command()
@click.argument("name")
@database_options
def pause(database: Database, name: str) -> None:
    """Start no more jobs of a limit; those that run continue."""
    with database.store() as store:
        _say(limits_of(store).pause(name))


@limits.command()
@click.argument("name")
@database_options
def resume(database: Database, name: str) -> None:
    """Start jobs of a limit again."""
    with database.store() as store:
        _say(limits_of(store).resume(name))


def limits_of(store: Store) -> LimitActs:
    """Return the limits of a store, as an app has them."""
    return LimitActs(Client.over(store))


def limit_as_json(limit: LimitState) -> dict[str, Any]:
    """Return a limit as JSON data."""
    found: dict[str, Any] = msgspec.to_builtins(limit)
    return found


def _limit_table(found: list[LimitState]) -> Table:
    table = Table(
        "LIMIT", "RUNNING", "WAITING", "NUMBERS", "STATE",
        flexible={"LIMIT": 12, "NUMBERS": 20}, numbers=("RUNNING", "WAITING"),
    )  # fmt: skip
    for limit in found:
        table.add(
            limit.name,
            number(limit.running, at_least=False),
            number(limit.waiting, at_least=limit.at_least),
            described(limit.numbers),
            _state(limit),
        )
    return table


def _state(limit: LimitState) -> str:
    words = ["paused"] if limit.paused else []
    if limit.override is not None:
        before = "nothing" if limit.declared is None else described(limit.declared)
        words.append(f"overridden (declared: {before})")
    return ", ".join(words)


def _key_table(keys: tuple[KeyState, ...]) -> Table:
    table = Table(
        "KEY", "RUNNING", "WAITING", "NEXT START", "HELD BY",
        flexible={"KEY": 12, "HELD BY": 20}, numbers=("RUNNING", "WAITING"),
    )  # fmt: skip
    for key in keys:
        at = "" if key.next_start is None else key.next_start.isoformat(timespec="milliseconds")
        table.add(
            "-" if key.value is None else key.value,
            number(key.running, at_least=False),
            number(key.waiting, at_least=False),
            at,
            ", ".join(key.holders),
        )
    return table


def _say(control: Control) -> None:
    state = ", paused" if control.paused else ""
    say(f"limit {control.name}: {described(control.numbers)}{state}")

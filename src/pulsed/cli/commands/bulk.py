"""``pulsed bulk``: the bulk operations of a database, whichever process started them."""

from __future__ import annotations

from uuid import UUID

import click

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.groups import Group
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.view.bulk_progress import as_json as row_as_json
from pulsed.cli.view.bulk_progress import print_end, print_report, print_table
from pulsed.cli.view.output import for_people, json_option, print_json
from pulsed.client.bulk import read_bulk, stop_bulk
from pulsed.client.one_job import checked_id
from pulsed.model.bulk import LONGEST_LIST
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking

EXAMPLES = """\b
examples:
  pulsed jobs retry --status dead --topic send_email --detach
  pulsed bulk list
  pulsed bulk show 0197a8c2
  pulsed bulk stop 0197a8c2"""


@click.group(cls=Group, epilog=EXAMPLES + ENVIRONMENT)
def bulk() -> None:
    """List, show and stop bulk operations: acts on all jobs that match a filter."""


@bulk.command("list")
@click.option(
    "--limit", "-n", type=click.IntRange(1, LONGEST_LIST), default=20, show_default=True,
    help="How many at the most.",
)  # fmt: skip
@json_option
@database_options
def list_(database: Database, limit: int, as_json: bool | None) -> None:
    """List bulk operations, newest first. They are kept for 90 days.

    \b
    Example:
      pulsed bulk list
    """
    with database.store() as store:
        found = run_blocking(store.bulk.list(limit=limit))
        now = run_blocking(store.now())
    if not for_people(as_json=as_json):
        for row in found:
            print_json(row_as_json(row))
    elif found:
        print_table(found, now)
    else:
        say("there was no bulk operation yet")


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@json_option
@database_options
def show(database: Database, bulk_id: str, as_json: bool | None) -> None:
    """Show one bulk operation, and the first thousand jobs that it left as they are.

    \b
    Example:
      pulsed bulk show 0197a8c2
    """
    with database.store() as store:
        row = run_blocking(read_bulk(store, _find(store, bulk_id)))
        skips = run_blocking(store.bulk.skips(row.id))
        now = run_blocking(store.now())
    if for_people(as_json=as_json):
        print_report(row, skips, now)
    else:
        print_json(row_as_json(row) | {"skips": skips})


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@database_options
def stop(database: Database, bulk_id: str) -> None:
    """Stop a bulk operation. What it has done stays done.

    \b
    Example:
      pulsed bulk stop 0197a8c2
    """
    with database.store() as store:
        row = run_blocking(stop_bulk(store, _find(store, bulk_id)))
        skips = run_blocking(store.bulk.skips(row.id))
    print_end(row, skips)


def _find(store: Store, given: str) -> UUID:
    """Return the id of the one operation, of the latest thousand, that begins as given."""
    digits = given.replace("-", "").lower()
    if len(digits) >= 32:
        return checked_id(given)
    found = [
        row.id
        for row in run_blocking(store.bulk.list(limit=LONGEST_LIST))
        if row.id.hex.startswith(digits)
    ]
    if len(found) > 1:
        some = ", ".join(map(str, found[:10]))
        raise CommandError(
            f"several operations begin with {given}: {some}; give more digits", Code.USAGE
        )
    if not found:
        raise CommandError(f"there is no bulk operation whose id begins with {given}",
                           Code.NOT_FOUND)  # fmt: skip
    return found[0]

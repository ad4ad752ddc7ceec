"""``pulsed audit``: what operators did."""

from __future__ import annotations

from datetime import datetime, timedelta

import click
import msgspec

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.view.output import Table, console, for_people, json_option, print_json
from pulsed.cli.view.times import past, relative
from pulsed.model.audit import LONGEST_LOG, AuditEntry
from pulsed.store.blocking import run_blocking

EXAMPLES = """\b
examples:
  pulsed audit --since 7d
  pulsed audit --actor ops --json | jq 'select(.act == "delete jobs")'

\b
environment:
  PULSED_ACTOR   who acts, for the entries that this and other commands write
                 [default: user@host]
  PULSED_URL, DATABASE_URL, PULSED_APP   the database, when --url and --app are not given"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--limit", "-n", type=click.IntRange(1, LONGEST_LOG), default=50, show_default=True,
    help="How many at the most.",
)  # fmt: skip
@click.option("--since", type=past, metavar="TIME", help="Done since: 30m, 2h, 3d or ISO-8601.")
@click.option("--until", type=past, metavar="TIME", help="Done before: 30m, 2h, 3d or ISO-8601.")
@click.option("--actor", metavar="NAME", help="Done by this user@host or token.")
@json_option
@database_options
def audit(
    database: Database,
    limit: int,
    since: datetime | None,
    until: datetime | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Show which operators cancelled, deleted, retried or pruned jobs, or changed schedules.

    The newest come first. Entries are kept for 90 days.
    """
    with database.store() as store:
        reading = store.audit_log(limit=limit, since=since, until=until, actor=actor)
        found = run_blocking(reading)
        now = run_blocking(store.now())
    if not for_people(as_json=as_json):
        for entry in found:
            print_json(msgspec.structs.asdict(entry))
    elif found:
        _show_table(found, now)
        if len(found) == limit:
            # Later by the least there is: acts of the same instant are shown again, and not lost.
            until = found[-1].at + timedelta(microseconds=1)
            say(f"there may be more: --until {until.isoformat()}")
    else:
        say("no operator did anything in this time")


def _show_table(found: list[AuditEntry], now: datetime) -> None:
    heads = ("WHEN", "WHO", "ACT", "COUNT", "WHAT")
    table = Table(*heads, flexible={"WHAT": 20, "WHO": 12}, numbers=("COUNT",))
    for entry in found:
        table.add(
            relative(entry.at, now), _who(entry), entry.act, f"{entry.affected:,}", entry.detail
        )
    table.show(console())


def _who(entry: AuditEntry) -> str:
    """Name the token, and behind it what its user says of itself."""
    proven = f"{entry.actor} ({entry.role})" if entry.role else entry.actor
    return f"{proven} as {entry.claimed}" if entry.claimed else proven

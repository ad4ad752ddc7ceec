"""``pulsed migrate``: the schema, applied, shown or written out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.groups import Group
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.view.output import Table, console, for_people, json_option, print_json
from pulsed.cli.view.times import iso
from pulsed.store import migrations
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.encoded import bare
from pulsed.store.sql_store.store import SqlStore

EXAMPLES = """\b
examples:
  pulsed migrate up --url postgresql://localhost/shop
  pulsed migrate status
  pulsed migrate sql > schema.sql"""


@click.group(cls=Group, epilog=EXAMPLES + ENVIRONMENT)
def migrate() -> None:
    """Create or update the database's tables, or see what that would do."""


@migrate.command(short_help="Bring the tables up to date.")
@database_options
def up(database: Database) -> None:
    """Bring the tables up to date; safe to run from several machines at once.

    Exits with 5 if they are too new for this pulsed.
    """
    with _sql_store(database, create=True) as store:
        applied = run_blocking(store.migrate())
        have = run_blocking(store.applied_migrations())
        migrations.check_schema(have, store.dialect.engine)  # it may be too new for this pulsed
    for migration in applied:
        print(f"{migration.version:04} {migration.name}")
    say(f"applied {len(applied)}" if applied else "the schema is up to date")


@migrate.command()
@json_option
@database_options
def status(database: Database, as_json: bool | None) -> int:
    """Show which migrations the database has. Exits with 5 if this pulsed cannot work with it."""
    with _sql_store(database) as store:
        applied = {row.version: row for row in run_blocking(store.applied_migrations())}
        known = {m.version: m.name for m in migrations.migrations(store.dialect.engine)}
        engine = store.dialect.engine
    rows: list[dict[str, object]] = [
        {
            "version": version,
            "name": known.get(version) or applied[version].name,
            "applied_at": iso(applied[version].applied_at) if version in applied else None,
        }
        for version in sorted(known | applied)
    ]
    _show(rows, as_json=as_json)
    migrations.check_schema(list(applied.values()), engine)
    return Code.OK


@migrate.command(short_help="Print the SQL of the migrations.")
@click.option("--since", type=int, default=0, help="Leave out migrations up to this version.")
@database_options
def sql(database: Database, since: int) -> None:
    """Print the SQL of the migrations, to apply them with another tool. Needs no database."""
    with _sql_store(database) as store:
        print(migrations.script(store.dialect, since=since), end="")


def _show(rows: list[dict[str, object]], *, as_json: bool | None) -> None:
    if not for_people(as_json=as_json):
        for row in rows:
            print_json(row)
        return
    table = Table("VERSION", "NAME", "APPLIED", flexible={"NAME": 10})
    for row in rows:
        table.add(f"{row['version']:04}", str(row["name"]), str(row["applied_at"] or "not yet"))
    table.show(console())


@contextmanager
def _sql_store(database: Database, *, create: bool = False) -> Iterator[SqlStore]:
    with database.store(create=create) as store:
        yield _with_tables(store)


def _with_tables(store: Store) -> SqlStore:
    store = bare(store)
    if isinstance(store, SqlStore):
        return store
    raise CommandError("only a database has tables to migrate; give its URL.", Code.USAGE)

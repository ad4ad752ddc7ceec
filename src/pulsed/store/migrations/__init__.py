"""Numbered migrations: read from the package, applied in order, safe to run concurrently.

The first process takes the database's lock; the others find the migrations applied. A schema newer
than this code is accepted as long as all its migrations are compatible with code of this version,
so that a rolling deploy does not stop the processes it has not reached yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from typing import NamedTuple

from pulsed.errors import SchemaError
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Script, VerbKind, verb

FOLDER = resources.files(__name__)
"""Resolved at import: resolving imports modules, and a fork at first use must not interrupt it."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One version of the schema, as the statements that lead to it."""

    version: int
    name: str
    statements: tuple[str, ...]
    oldest_code: int
    """The lowest schema version whose code still works once this one is applied."""

    @property
    def text(self) -> str:
        """The whole script."""
        return ";\n\n".join(self.statements) + ";\n"


class Applied(NamedTuple):
    """A migration that was applied to the database."""

    version: int
    name: str
    applied_at: datetime
    oldest_code: int


# For each migration, the oldest code compatible with it; one not listed here breaks older code.
# Code from before workflows (5) ends a child without waking its parent.
# Code from before the ticks of watchdogs (6) reads columns that were dropped.
# Code from before 7 does not set `updated_at`, which nothing depends on.
# Code from before 8 keeps no audit log.
# Code from before 10 claims suspects like any other job, and charges an attempt for all it reaps.
# Code from before 11 records no statistics.
# Code from before 12 does not release the key of a job that ends.
# 13 replaces an index by one that has all of its columns.
# Code from before 14 claims from queues that are paused, and beyond their limits.
# Code from before 15 claims jobs beyond their limits.
# Code from before 16 does not write the tags of its jobs where they are found.
# Code from before 17 does not learn that its worker is to drain or to stop.
# Code from before 18 starts jobs that have expired.
# Code from before 19 leaves the stream of a job that it removes.
# Code from before 20 finds jobs to claim on SQLite without an index, which is slow but right.
# 21 tests the same values in another way.
OLDEST_CODE = {
    1: 1, 2: 1, 3: 1, 4: 1, 7: 6, 8: 6, 9: 6, 10: 6, 11: 6, 13: 6, 17: 6, 19: 18, 20: 18, 21: 18
}  # fmt: skip


@cache
def migrations(engine: str) -> tuple[Migration, ...]:
    """Return an engine's migrations in order."""
    folder = FOLDER / engine
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(_read(name, (folder / name).read_text("utf-8")) for name in found)


def _read(file: str, text: str) -> Migration:
    version, _, name = file.removesuffix(".sql").partition("_")
    statements = tuple(part.strip() for part in text.split(";\n") if part.strip())
    number = int(version)
    return Migration(number, name, statements, OLDEST_CODE.get(number, number))


def newest(engine: str) -> int:
    """Return the schema version that this code was written for."""
    return migrations(engine)[-1].version


@verb(VerbKind.SINGLE, name="schema_check")
def read_applied(d: Dialect) -> Script[list[Applied]]:
    """Read the applied migrations; an empty list if the database has no pulsed tables."""
    exists = d.sql(d.has_migrations)
    select = d.sql(
        f"SELECT version, name, applied_at, oldest_code FROM {d.migrations} ORDER BY version"
    )
    if not (yield Statement(exists, {})):
        return []
    return [
        Applied(version, name, d.time(applied_at), oldest_code)
        for version, name, applied_at, oldest_code in (yield Statement(select, {}))
    ]


@verb(VerbKind.TRANSACTION)
def migrate(d: Dialect) -> Script[list[Migration]]:
    """Apply the missing migrations, under the database's lock; returns those applied."""
    record = d.sql(
        f"""INSERT INTO {d.migrations} (version, name, applied_at, oldest_code)
        VALUES (:version::int, :name::text, {d.now}, :oldest_code::int)"""
    )
    for text in d.before_migrating:
        yield Statement(d.sql(text), {})
    applied = yield Statement(d.sql(f"SELECT version FROM {d.migrations}"), {})
    have = {version for (version,) in applied}
    missing = [m for m in migrations(d.engine) if m.version not in have]
    for migration in missing:
        for text in migration.statements:
            yield Statement(d.verbatim(text), {})
        yield Statement(
            record,
            {
                "version": migration.version,
                "name": migration.name,
                "oldest_code": migration.oldest_code,
            },
        )
    return missing


def script(d: Dialect, *, since: int = 0) -> str:
    """Return the migrations after ``since`` as one transaction, to be applied by hand."""
    parts = ["BEGIN", *d.before_migrating]
    for migration in migrations(d.engine):
        if migration.version > since:
            named = f"{migration.version}, '{migration.name}'"
            parts += migration.statements
            parts.append(
                f"INSERT INTO {d.migrations} (version, name, applied_at, oldest_code)\n"
                f"VALUES ({named}, {d.literal_now}, {migration.oldest_code})"
            )
    return ";\n\n".join([*parts, "COMMIT"]) + ";\n"


def is_behind(applied: list[Applied], engine: str) -> bool:
    """Whether the database lacks a migration that this code needs."""
    return newest(engine) > max((row.version for row in applied), default=0)


def check_schema(applied: list[Applied], engine: str) -> None:
    """Raise SchemaError unless this code can work with the database."""
    this_version = newest(engine)
    database_version = max((row.version for row in applied), default=0)
    if database_version == 0:
        raise SchemaError(
            "The database has no pulsed tables yet. Run `pulsed migrate up`, or let pulsed create "
            "them on first use (it does, unless Pulse(migrate=False))."
        )
    if database_version < this_version:
        raise SchemaError(
            f"The database's schema is too old: version {database_version}, this pulsed "
            f"needs {this_version}. Run `pulsed migrate up`."
        )
    if max(row.oldest_code for row in applied) > this_version:
        raise SchemaError(
            f"The database's schema is too new: version {database_version}, this pulsed "
            f"knows {this_version}. Upgrade pulsed in this process; nothing was changed."
        )

"""What SQLite and PostgreSQL say differently; everything else in ``sql.py`` is shared.

Shared SQL is written with ``:name`` parameters and PostgreSQL's ``::type`` casts, which SQLite's
dialect drops. Times are ``timestamptz`` there and integer microseconds here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pulsed.backoff import LARGEST_EXPONENT
from pulsed.store.verb import Sql, named, numbered
from pulsed.timetable import EPOCH

FENCE = "j.status = 'RUNNING' AND j.locked_by = r.worker AND j.lease_token = r.token"
"""Every worker write carries it: ``j`` is the job, ``r`` the lease."""

HAS_WAITED = "wait_kind IS NOT NULL"
"""Of a job. Whoever has children has waited for them, unless it is still adding the first ones.
Those are locked after the others, and each of the two kinds in the order of their ids, so that two
batches of children, of parents or of both do not deadlock; docs/adr says what is left."""

MIGRATION_LOCK = 0x70756C736564
"""The advisory lock of a migration: ``pulsed`` in ASCII."""


def from_micros(micros: int) -> datetime:
    """Return the UTC instant of microseconds since the epoch, exactly."""
    return EPOCH + timedelta(microseconds=micros)


class Dialect(ABC):
    """The fragments that differ."""

    engine: str
    """The folder of its migrations."""
    now: str
    """The instant that predicates compare with."""
    clock: str
    """The instant that leases are granted from: later than ``now`` in a long transaction."""
    literal_now: str
    """The instant in a script that nobody binds parameters to."""
    next_token: str
    """A fencing token that only rises, also when a crash undid an unsynced claim."""
    backoff: str
    """Seconds until the next attempt, from the row's policy."""
    greatest: str
    least: str
    true: str
    false: str
    skip_locked: str = ""
    for_update: str = ""
    lateral: bool = False
    by_id: str = ""
    """Behind the name of the jobs' table: look jobs up by their ids, whatever statistics say."""
    by_family: str = ""
    """The same for the children of a job."""
    by_cancelling: str = ""
    """The same for running jobs that were asked to stop."""
    forever: str
    """An instant that never comes."""
    answers: bool = True
    """Whether a batch's write answers with its rows, and not only with their number."""

    def __init__(self, schema: str | None = None) -> None:
        prefix = f'"{schema}".' if schema else ""
        self.jobs = prefix + "pulse_jobs"
        self.failures = prefix + "pulse_failures"
        self.workers = prefix + "pulse_workers"
        self.schedules = prefix + "pulse_schedules"
        self.tokens = prefix + "pulse_tokens"
        self.audit = prefix + "pulse_audit"
        self.meta = prefix + "pulse_meta"
        self.ticks = prefix + "pulse_ticks"
        self.checkpoints = prefix + "pulse_checkpoints"
        self.signals = prefix + "pulse_signals"
        self.migrations = prefix + "pulse_migrations"
        self.schema = schema

    @abstractmethod
    def sql(self, text: str, rows: str = "", *, counted: bool = False) -> Sql:
        """Prepare a statement. ``rows`` declares the columns of its ``rows_of(...)``."""

    @property
    @abstractmethod
    def has_migrations(self) -> str:
        """Return a query with a row if the table of migrations exists."""

    @property
    @abstractmethod
    def before_migrating(self) -> tuple[str, ...]:
        """Return what makes a migration safe beside others, and the table that records it."""

    def skip_locked_of(self, table: str) -> str:
        """Return ``skip_locked`` for one table of a join."""
        return self.skip_locked.replace("UPDATE", f"UPDATE OF {table}")

    def for_update_of(self, table: str) -> str:
        """Return ``for_update`` for one table of a join."""
        return f"{self.for_update} OF {table}" if self.for_update else ""

    @staticmethod
    def verbatim(text: str) -> Sql:
        """Prepare a script's statement, in which a colon is only a colon."""
        return Sql(text, ())

    @abstractmethod
    def rows_of(self, columns: str, *, lock: str = "", table: str = "") -> str:
        """Return a relation ``r`` of the batch's rows.

        With ``lock`` (``wait`` or ``skip``) the jobs, or the rows of ``table``, that the first
        column names are locked first, by all in the same order; see HAS_WAITED. ``skip`` leaves
        out locked ones. ``held`` locks as well, and leaves out those whose lease is lost, for a
        statement that writes to another table than the jobs'. ``order`` has the rows in the order
        of their ids and leaves the locking to an UPDATE that looks up one after the other: it is
        cheaper by a look-up and a lock for each, and only for a statement that leaves out jobs
        which have waited, and whose plan is tested to be that.
        """

    @abstractmethod
    def inserted(self, values: str, columns: str) -> str:
        """Return what an INSERT inserts for each row of the batch, ``r``."""

    @abstractmethod
    def returning(self, columns: str) -> str:
        """Return the end of a batch's write; see ``answers``."""

    @abstractmethod
    def same_id(self, column: str, value: str) -> str:
        """Return the comparison of an indexed id with another relation's: a look-up, not a join."""

    @abstractmethod
    def id_among(self, column: str, ids: str) -> str:
        """Return whether an indexed id is among those of a subquery."""

    @abstractmethod
    def seconds(self, expression: str) -> str:
        """Turn a number of seconds into something to add to an instant."""

    @abstractmethod
    def milliseconds(self, expression: str) -> str:
        """Turn a number of milliseconds into something to add to an instant."""

    @abstractmethod
    def records(self, parameter: str, columns: str) -> str:
        """Return a SELECT over a JSON array of objects."""

    @abstractmethod
    def elements(self, column: str) -> str:
        """Return a relation ``e(value)`` of the texts in a JSON array."""

    @abstractmethod
    def uuid(self, value: Any) -> UUID:
        """Read an id."""

    @abstractmethod
    def time(self, value: Any) -> datetime:
        """Read an instant."""

    @abstractmethod
    def number(self, instant: str) -> str:
        """Turn an instant into a number, which a driver reads faster."""

    @abstractmethod
    def instant(self, number: Any) -> datetime:
        """Read such a number."""


def column_names(columns: str) -> tuple[str, ...]:
    """Return the names in a declaration such as ``"id uuid, token bigint"``."""
    return tuple(column.split()[0] for column in columns.split(","))


_OF_ROW = re.compile(r"\br\.(?=[a-z_])")


class SqliteDialect(Dialect):
    """Integer microseconds, blobs for ids, batches as JSON. Time is always a parameter."""

    engine = "sqlite"
    now = ":now"
    clock = ":now"
    literal_now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000"
    next_token = "max(lease_token + 1, :now)"  # noqa: S105 - not that kind of token
    backoff = (
        "pulse_backoff(backoff_base, backoff_power, backoff_factor, backoff_cap, backoff_jitter, "
        "attempts)"
    )
    greatest = "max"
    least = "min"
    true = "1"
    false = "0"
    # After an ANALYZE of an almost empty table it would go through all of it for each id.
    by_id = "INDEXED BY sqlite_autoindex_pulse_jobs_1"
    by_family = "INDEXED BY pulse_jobs_family"
    by_cancelling = "INDEXED BY pulse_jobs_cancelling"
    forever = "253402214400000000"  # 9999-12-31
    answers = False

    def sql(self, text: str, rows: str = "", *, counted: bool = False) -> Sql:
        if not rows:
            return named(text, counted=counted)
        sql = named(text, column_names(rows), counted=counted)
        batch = _batch(rows)
        if batch not in text:
            return sql
        row = ", ".join(f":r_{name} AS {name}" for name in sql.columns)
        return replace(sql, alone=sql.text.replace(batch, f"(SELECT {row})"))

    @property
    def has_migrations(self) -> str:
        return "SELECT 1 FROM sqlite_master WHERE name = 'pulse_migrations'"

    @property
    def before_migrating(self) -> tuple[str, ...]:
        return (  # BEGIN IMMEDIATE, which every writer begins with, is the lock
            """CREATE TABLE IF NOT EXISTS pulse_migrations (version INTEGER PRIMARY KEY,
            name TEXT NOT NULL, applied_at INTEGER NOT NULL,
            oldest_code INTEGER NOT NULL) STRICT""",
        )

    def rows_of(
        self,
        columns: str,
        *,
        lock: str = "",  # there is one writer
        table: str = "",  # noqa: ARG002
    ) -> str:
        rows = f"{_batch(columns)} AS r"
        if lock != "held":
            return rows
        jobs = f"{self.jobs} AS j {self.by_id}"
        return f"(SELECT r.* FROM {rows} CROSS JOIN {jobs} ON j.id = r.job_id AND {FENCE}) AS r"

    def inserted(self, values: str, columns: str) -> str:  # noqa: ARG002 - bound one by one
        return f"VALUES ({_OF_ROW.sub(':', values)})"

    def returning(self, columns: str) -> str:  # noqa: ARG002 - each row would be a step
        return ""

    def same_id(self, column: str, value: str) -> str:
        return f"{column} = {value}"

    def id_among(self, column: str, ids: str) -> str:
        return f"{column} IN ({ids})"

    def seconds(self, expression: str) -> str:
        return f"CAST(round({expression} * 1000000) AS INTEGER)"

    def milliseconds(self, expression: str) -> str:
        return f"{expression} * 1000"

    def records(self, parameter: str, columns: str) -> str:
        names = column_names(columns)
        fields = (f"json_extract(value, '$.{name}') AS {name}" for name in names)
        return f"SELECT {', '.join(fields)} FROM json_each({parameter})"

    def elements(self, column: str) -> str:
        return f"json_each({column}) AS e"

    def uuid(self, value: Any) -> UUID:
        return value if isinstance(value, UUID) else UUID(bytes=value)

    def time(self, value: Any) -> datetime:
        return from_micros(value)

    def number(self, instant: str) -> str:
        return instant

    def instant(self, number: Any) -> datetime:
        return from_micros(number)


def _batch(columns: str) -> str:
    """Return a batch's rows as a relation.

    Materialized, or every mention of a column would take it out of the JSON again; and said to be
    short, or after an ANALYZE of an almost empty table the batch looks longer than the table, which
    is then walked for it.
    """
    fields = ", ".join(
        _json_field(place, *column.split()) for place, column in enumerate(columns.split(","))
    )
    batch = f"WITH b AS MATERIALIZED (SELECT {fields} FROM json_each(:rows))"
    few = f"likelihood({column_names(columns)[0]} IS NOT NULL, 0.0001)"
    return f"({batch}, l AS MATERIALIZED (SELECT * FROM b WHERE {few}) SELECT * FROM l)"


def _json_field(place: int, name: str, kind: str) -> str:
    """Return a column out of a row's JSON array, which has the place of an id, not the id."""
    value = f"json_extract(value, '$[{place}]')"
    return f"substr(:ids, {value}, 16) AS {name}" if kind == "uuid" else f"{value} AS {name}"


class PostgresDialect(Dialect):
    """``timestamptz``, ``uuid``, arrays. The server's clock decides; a test may bring its own."""

    engine = "postgres"
    literal_now = "now()"
    forever = "'9999-12-31 00:00:00+00'::timestamptz"
    greatest = "greatest"
    least = "least"
    true = "true"
    false = "false"
    lateral = True
    skip_locked = "FOR UPDATE SKIP LOCKED"
    for_update = "FOR NO KEY UPDATE"
    # In logarithms, because power() overflows, and one such row would fail every batch it is in.
    backoff = (
        "CASE WHEN backoff_base > 0 THEN least(backoff_cap, exp(least(ln(backoff_base) "
        "+ backoff_power * ln(greatest(attempts, 1)) "
        f"+ (attempts - 1) * ln(backoff_factor), {LARGEST_EXPONENT}))) ELSE 0 END "
        "* (1 + backoff_jitter * (2 * random() - 1))"
    )

    def __init__(self, schema: str | None = None, *, own_clock: bool = False) -> None:
        super().__init__(schema)
        self.now = ":now::timestamptz" if own_clock else "now()"
        # In a subquery of their own, so that they are evaluated once and not for each row.
        self.clock = ":now::timestamptz" if own_clock else "(SELECT clock_timestamp())"
        self.next_token = (
            "greatest(lease_token + 1, "
            f"(SELECT (extract(epoch from {self.clock}) * 1000000)::bigint))"
        )

    def sql(self, text: str, rows: str = "", *, counted: bool = False) -> Sql:
        return numbered(text, column_names(rows) if rows else (), counted=counted)

    @property
    def has_migrations(self) -> str:
        return f"SELECT 1 WHERE to_regclass('{self.migrations}') IS NOT NULL"

    @property
    def before_migrating(self) -> tuple[str, ...]:
        create = (
            f"CREATE TABLE IF NOT EXISTS {self.migrations} (version integer PRIMARY KEY, "
            "name text NOT NULL, applied_at timestamptz NOT NULL, oldest_code integer NOT NULL)"
        )
        lock = f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"
        if not self.schema:
            return (lock, create)
        quoted = f'"{self.schema}"'
        # Even where it exists, CREATE asks for a privilege on the database; so look first.
        create_schema = (
            f"DO $$ BEGIN IF to_regnamespace('{quoted}') IS NULL THEN "
            f"CREATE SCHEMA IF NOT EXISTS {quoted}; END IF; END $$"
        )
        return (lock, create_schema, f"SET LOCAL search_path TO {quoted}", create)

    def rows_of(self, columns: str, *, lock: str = "", table: str = "") -> str:
        declared = [column.split() for column in columns.split(",")]
        names = ", ".join(name for name, _ in declared)
        arrays = ", ".join(f":{name}::{kind}[]" for name, kind in declared)
        relation = f"unnest({arrays}) AS u({names})"
        if not lock:
            return f"(SELECT * FROM {relation}) AS r"
        key = f"u.{declared[0][0]}"
        if lock == "order":
            return f"(SELECT * FROM {relation} ORDER BY {key}) AS r"
        if lock == "held":
            # The guards are in the statement that locks: only there they are looked at again
            # once the lock is ours.
            return (
                f"(WITH l AS MATERIALIZED (SELECT r.* FROM (SELECT * FROM {relation}) AS r "
                f"JOIN {self.jobs} AS j ON {self.same_id('j.id', 'r.job_id')} AND {FENCE} "
                f"ORDER BY j.{HAS_WAITED}, r.job_id FOR NO KEY UPDATE OF j) SELECT * FROM l) AS r"
            )
        skip = " SKIP LOCKED" if lock == "skip" else ""
        order = key if table else f"k.{HAS_WAITED}, {key}"
        return (
            f"(WITH l AS MATERIALIZED (SELECT u.* FROM {relation} "
            f"JOIN {table or self.jobs} AS k ON {self.same_id('k.id', key)} "
            f"ORDER BY {order} FOR NO KEY UPDATE OF k{skip}) SELECT * FROM l) AS r"
        )

    def inserted(self, values: str, columns: str) -> str:
        return f"SELECT {values} FROM {self.rows_of(columns)} WHERE true"

    def returning(self, columns: str) -> str:
        return f"RETURNING {columns}"

    def same_id(self, column: str, value: str) -> str:
        # A plain "=" may be planned as a scan of the whole index with the batch inside, and was,
        # when the statement was prepared while the table had ten rows. This form can only be
        # looked up, once for each row of the batch.
        return f"{column} = ANY(ARRAY[{value}])"

    def id_among(self, column: str, ids: str) -> str:
        return f"{column} = ANY(ARRAY({ids}))"

    def seconds(self, expression: str) -> str:
        return f"make_interval(secs => {expression})"

    def milliseconds(self, expression: str) -> str:
        return f"{expression} * interval '1 millisecond'"

    def records(self, parameter: str, columns: str) -> str:
        return f"SELECT * FROM json_to_recordset({parameter}::json) AS x({columns})"

    def elements(self, column: str) -> str:
        return f"json_array_elements_text({column}) AS e(value)"

    def uuid(self, value: Any) -> UUID:
        known: UUID = value
        return known

    def time(self, value: Any) -> datetime:
        known: datetime = value
        return known

    def number(self, instant: str) -> str:
        return f"date_part('epoch', {instant})"

    def instant(self, number: Any) -> datetime:
        # Exact for what is due before the year 2106: until then a double tells microseconds apart.
        try:
            return datetime.fromtimestamp(number, UTC)
        except (OverflowError, ValueError):  # '-infinity', in somebody's own INSERT
            return EPOCH

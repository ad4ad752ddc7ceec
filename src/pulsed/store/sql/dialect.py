"""The SQL that differs between SQLite and PostgreSQL; all else in ``store/sql`` is shared.

Shared SQL is written with ``:name`` parameters and PostgreSQL's ``::type`` casts, which SQLite's
dialect drops. Times are ``timestamptz`` in PostgreSQL and integer microseconds in SQLite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from pulsed.model.fields import Kind
from pulsed.store.sql.statement import Sql

FENCE = "j.status = 'RUNNING' AND j.locked_by = r.worker AND j.lease_token = r.token"
"""The condition of every worker write: the job ``j`` is still held under the lease ``r``."""

HAS_WAITED = "wait_kind IS NOT NULL"
"""Whether a job has waited, as every parent has that is not still adding its first children. Jobs
that have waited are locked after the others, and each of the two kinds in the order of ids, so that
two batches of children, of parents or of both do not deadlock; docs/adr says what is left."""

MIGRATION_LOCK = 0x70756C736564
"""The advisory lock of a migration: ``pulsed`` in ASCII."""


class ValueKind(Enum):
    """What a value in a payload is compared as."""

    TEXT = "text"
    NUMBER = "number"
    TRUE = "true"
    FALSE = "false"
    NULL = "null"


class Dialect(ABC):
    """The SQL fragments and value conversions of one engine."""

    engine: str
    """The folder of its migrations."""
    now: str
    """The instant that predicates compare with."""
    clock: str
    """The instant that leases are granted from: later than ``now`` in a long transaction."""
    literal_now: str
    """The current instant in a script without bound parameters."""
    next_token: str
    """A fencing token that only rises, even if a crash undid an unsynced claim."""
    backoff: str
    """Seconds until the next attempt, from the row's policy."""
    greatest: str
    least: str
    true: str
    false: str
    skip_locked: str = ""
    for_update: str = ""
    by_id: str = ""
    """After the name of the jobs' table: forces the index of ids, whatever statistics say."""
    by_family: str = ""
    """The same for the children of a job."""
    by_cancelling: str = ""
    """The same for running jobs that were asked to stop."""
    by_suspicion: str = ""
    """The same for suspects."""
    by_holder: str = ""
    """The same for jobs that hold a key."""
    forever: str
    """An instant that never comes."""
    row_id: str
    """The column with a row's place in its table, for a row that is found and removed at once."""
    native: frozenset[Kind] = frozenset()
    """The kinds of values that need no conversion: the driver returns the model's types."""

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
        self.stream = prefix + "pulse_stream"
        self.rollups = prefix + "pulse_rollups"
        self.error_rollups = prefix + "pulse_error_rollups"
        self.controls = prefix + "pulse_controls"
        self.rates = prefix + "pulse_rates"
        self.bulk = prefix + "pulse_bulk"
        self.bulk_skips = prefix + "pulse_bulk_skips"
        self.tags = prefix + "pulse_tags"
        self.migrations = prefix + "pulse_migrations"
        self.schema = schema

    @property
    def emptying(self) -> list[Sql]:
        """Delete every row of every table of users' data, and none of the schema's own."""
        return [self.sql(f"DELETE FROM {table}", counted=True) for table in self._data_tables()]

    def _data_tables(self) -> list[str]:
        kept = (self.migrations, self.meta)
        named = [value for value in vars(self).values() if isinstance(value, str)]
        tables = [value for value in named if value.rpartition(".")[2].startswith("pulse_")]
        return [table for table in tables if table not in kept]

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
        """Return the statements that lock out other migrations and create the table of them."""

    def skip_locked_of(self, table: str) -> str:
        """Return ``skip_locked`` for one table of a join."""
        return self.skip_locked.replace("UPDATE", f"UPDATE OF {table}")

    def for_update_of(self, table: str) -> str:
        """Return ``for_update`` for one table of a join."""
        return f"{self.for_update} OF {table}" if self.for_update else ""

    @staticmethod
    def verbatim(text: str) -> Sql:
        """Prepare a statement without parameters, in which a colon is only a colon."""
        return Sql(text, ())

    @abstractmethod
    def rows_of(self, columns: str, *, lock: str = "", table: str = "") -> str:
        """Return a relation ``r`` of the batch's rows.

        With ``lock`` the jobs, or the rows of ``table``, that the first column names are locked
        first, always in the same order; see HAS_WAITED.

        - ``wait`` waits for rows that another session has locked.
        - ``skip`` leaves them out.
        - ``held`` waits, and leaves out jobs whose lease is lost. It is for a statement that writes
          to another table than the jobs'.
        - ``order`` only sorts by id, and leaves the locking to an UPDATE that looks up the rows one
          by one. It saves a look-up and a lock for each. It is only for a statement that leaves out
          jobs that have waited, and whose plan is tested to be that.
        """

    @abstractmethod
    def inserted(self, values: str, columns: str) -> str:
        """Return the source of an INSERT: ``values`` for each row ``r`` of the batch."""

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
    def steps(self, since: str, until: str, seconds: str) -> str:
        """Return how many whole steps of so many seconds are between two instants."""

    @abstractmethod
    def records(self, parameter: str, columns: str) -> str:
        """Return a SELECT over a JSON array of objects."""

    @abstractmethod
    def elements(self, column: str) -> str:
        """Return a relation ``e(value)`` of the texts in a JSON array."""

    @abstractmethod
    def has_value(self, path: str, value: str, kind: ValueKind) -> str:
        """Return whether the payload has this value at this path; both are parameters' names.

        Numbers are equal if they are numerically. A payload that the database cannot parse has no
        values.
        """

    @abstractmethod
    def json_path(self, path: Sequence[str]) -> Any:
        """Return the parameter for a path of ``has_value``."""

    @abstractmethod
    def position(self, part: str, text: str) -> str:
        """Return where a part begins in a text, from 1 on; 0 if it is not there."""

    @abstractmethod
    def all_texts(self, text: str) -> str:
        """Return the texts of all rows as one, with spaces between them; NULL without a row."""

    @property
    @abstractmethod
    def id_digits(self) -> str:
        """Return the id's hexadecimal digits, in upper case."""

    @abstractmethod
    def uuid(self, value: Any) -> UUID:
        """Decode an id."""

    @abstractmethod
    def time(self, value: Any) -> datetime:
        """Decode an instant."""

    @abstractmethod
    def number(self, instant: str) -> str:
        """Turn an instant into a number, which a driver decodes faster."""

    @abstractmethod
    def instant(self, number: Any) -> datetime:
        """Decode an instant that was selected as a ``number``."""


@cache
def column_names(columns: str) -> tuple[str, ...]:
    """Return the names in a declaration such as ``"id uuid, token bigint"``."""
    return tuple(column.split()[0] for column in columns.split(","))

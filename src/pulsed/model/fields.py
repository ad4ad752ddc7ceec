"""Every column of a job, declared once.

Everything that treats all columns alike is derived from this table: SELECT lists, the INSERT, row
readers, a claim's answer, messages, a schedule's template, the server's checks. CONTRIBUTING.md has
the steps of adding a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Any


class Kind(StrEnum):
    """What a value is. It decides how the value is stored, read and sent."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    FLAG = "flag"
    ENUM = "enum"
    UUID = "uuid"
    INSTANT = "instant"
    EPOCH = "epoch"
    """An instant as a number, which drivers read faster. Only in the answer to a claim."""
    SECONDS = "seconds"
    """A duration, stored in milliseconds."""
    BACKOFF = "backoff"
    """Stored in a column for each of its numbers."""
    JSON = "json"
    """JSON text that is passed on as it is."""
    HEADERS = "headers"
    """Texts by name, stored as JSON."""
    TEXTS = "texts"
    """A list of texts, stored as JSON."""


SQL_TYPES = {
    Kind.TEXT: "text",
    Kind.INTEGER: "int",
    Kind.FLOAT: "float8",
    Kind.FLAG: "bool",
    Kind.ENUM: "text",
    Kind.UUID: "uuid",
    Kind.INSTANT: "timestamptz",
    Kind.SECONDS: "bigint",
    Kind.BACKOFF: "float8",
    Kind.JSON: "json",
    Kind.HEADERS: "json",
    Kind.TEXTS: "json",
}
"""The types in PostgreSQL."""

BACKOFF_PARTS = ("base", "power", "factor", "cap", "jitter")


class Use(Flag):
    """Where a field appears."""

    NEW = auto()
    """In ``NewJob``: a producer may set it."""
    ROW = auto()
    """In ``JobRow``: operators read it."""
    CLAIM = auto()
    """In a claim's answer: the worker gets it with the job."""
    TEMPLATE = auto()
    """In ``ScheduleSpec``: a schedule sets it for its jobs."""
    POLICY = auto()
    """In ``TopicPolicy``: the claim fills it from the worker's handler if the producer did not."""


NEW, ROW, CLAIM, TEMPLATE, POLICY = Use
_INTERNAL = Use(0)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a job: one column, or several that belong together."""

    name: str
    """The attribute; also the column and the message's field, unless they are given."""
    kind: Kind
    use: Use = _INTERNAL
    column: str = ""
    sql: str = ""
    """The column's type, if it is not the usual one of the kind."""
    wire: str = ""
    set_as: str = ""
    """The attribute where it is set (``NEW``, ``TEMPLATE``, ``POLICY``), if that has another name.
    """
    claimed_as: str = ""
    """The attribute of ``Assignment``, if that has another name."""
    unset: Any = None
    """The value that an INSERT leaves out, because it is the column's default."""
    is_stored: bool = True
    """Whether it has a column. A field without one decides the value of another column, or what
    happens when the job is stored."""

    def attribute(self, use: Use) -> str:
        """Return its name in one of the places where it appears."""
        other = self.claimed_as if use is CLAIM else "" if use is ROW else self.set_as
        return other or self.name

    def wire_name(self, use: Use) -> str:
        """Return its name in a message."""
        return self.wire or self.attribute(use)

    @property
    def columns(self) -> dict[str, str]:
        """Its columns, and the SQL type of each; without a column, its parameter."""
        column = self.column or self.name
        kind = self.sql or SQL_TYPES[self.kind]
        if self.kind is Kind.BACKOFF:
            return {f"{column}_{part}": kind for part in BACKOFF_PARTS}
        return {column: kind}


FIELDS = (
    Field("id", Kind.UUID, NEW | ROW | CLAIM),
    Field("queue", Kind.TEXT, NEW | ROW | TEMPLATE),
    Field("topic", Kind.TEXT, NEW | ROW | CLAIM | TEMPLATE),
    Field("status", Kind.ENUM, ROW),
    Field("priority", Kind.INTEGER, NEW | ROW | CLAIM | TEMPLATE, unset=0),
    Field("payload", Kind.JSON, NEW | ROW | CLAIM | TEMPLATE),
    Field("result", Kind.JSON, ROW),
    Field("headers", Kind.HEADERS, NEW | ROW | CLAIM | TEMPLATE),
    Field("tags", Kind.TEXTS, NEW | ROW | TEMPLATE, unset=()),
    Field("attempts", Kind.INTEGER, ROW | CLAIM, claimed_as="attempt"),
    Field("max_attempts", Kind.INTEGER, NEW | ROW | CLAIM | TEMPLATE | POLICY),
    Field("backoff", Kind.BACKOFF, NEW | TEMPLATE | POLICY),
    Field(
        "timeout",
        Kind.SECONDS,
        NEW | ROW | CLAIM | TEMPLATE | POLICY,
        column="timeout_ms",
        wire="timeout_seconds",
    ),
    Field(
        "lease_seconds",
        Kind.SECONDS,
        NEW | ROW | CLAIM | TEMPLATE | POLICY,
        column="lease_ms",
        wire="lease_seconds",
        set_as="lease",
    ),
    # When it may start: together they become the first next_run_at.
    Field("delay", Kind.FLOAT, NEW, wire="delay_seconds", unset=0.0, is_stored=False),
    Field("at", Kind.INSTANT, NEW, is_stored=False),
    Field("next_run_at", Kind.INSTANT, ROW | CLAIM),
    # When it has to have started: seconds after the first next_run_at, or an instant.
    Field("expires", Kind.FLOAT, NEW | TEMPLATE, wire="expires_seconds", is_stored=False),
    Field("expires_at", Kind.INSTANT, NEW | ROW),
    Field("lease_token", Kind.INTEGER, ROW | CLAIM, sql="bigint"),
    Field("locked_by", Kind.UUID, ROW),
    Field("lease_until", Kind.INSTANT, ROW),
    Field("cancel_requested", Kind.FLAG, ROW),
    Field("last_worker", Kind.UUID, ROW),
    Field("last_outcome", Kind.TEXT, ROW),
    Field("last_error", Kind.TEXT, ROW),
    Field("submitted_at", Kind.INSTANT, ROW | CLAIM),
    Field("started_at", Kind.INSTANT, ROW),
    Field("completed_at", Kind.INSTANT, ROW),
    Field("updated_at", Kind.INSTANT, ROW),
    Field("progress", Kind.JSON, ROW),
    Field("schedule_id", Kind.UUID, NEW | ROW | CLAIM),
    Field("occurrence", Kind.INSTANT, NEW | ROW | CLAIM),
    Field("parent_id", Kind.UUID, NEW | ROW | CLAIM),
    Field("parent_step", Kind.TEXT, NEW | ROW),
    Field("outlives", Kind.FLAG, NEW),
    Field("wait_kind", Kind.TEXT, ROW),
    Field("wait_key", Kind.TEXT, ROW),
    Field("crashes", Kind.INTEGER, ROW),
    # Its key; see ``model/keys.py``.
    Field("key", Kind.TEXT, NEW | ROW | TEMPLATE),
    Field("key_for", Kind.TEXT, NEW | ROW | TEMPLATE),
    Field("on_duplicate", Kind.TEXT, NEW | TEMPLATE, is_stored=False),
    Field("key_held", Kind.FLAG, ROW),
    Field("key_until", Kind.INSTANT, ROW),
    # What it shares with other jobs; see ``model/limit.py``.
    Field("limit_key", Kind.TEXT, NEW | ROW),
    # For the database's own decisions.
    Field("wait_job", Kind.UUID),
    Field("wait_enough", Kind.INTEGER),
    Field("wait_too_many", Kind.INTEGER),
    Field("generation", Kind.INTEGER),
    Field("watched", Kind.FLAG),
    Field("cascades", Kind.FLAG),
    Field("shared_lease", Kind.INTEGER, sql="bigint"),
)


def fields_of(use: Use) -> tuple[Field, ...]:
    """Return the fields that appear in a place, in the order of the table."""
    return tuple(field for field in FIELDS if field.use & use)


def columns_of(use: Use) -> dict[str, str]:
    """Return the columns that appear in a place, and their SQL types."""
    return {name: kind for field in fields_of(use) for name, kind in field.columns.items()}


def attributes_of(use: Use) -> tuple[str, ...]:
    """Return the attributes that fields have in a place."""
    return tuple(field.attribute(use) for field in fields_of(use))


def wire_names(use: Use) -> dict[str, str]:
    """Return the names of attributes in messages."""
    return {field.attribute(use): field.wire_name(use) for field in fields_of(use)}

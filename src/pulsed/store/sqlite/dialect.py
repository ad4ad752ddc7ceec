"""SQLite's SQL: integer microseconds, blobs for ids, batches as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from pulsed.model.timetable import EPOCH
from pulsed.store.sql.dialect import FENCE, Dialect, ValueKind, column_names
from pulsed.store.sql.statement import Sql, named


def from_micros(micros: int) -> datetime:
    """Return the UTC instant of microseconds since the epoch, exactly."""
    return EPOCH + timedelta(microseconds=micros)


_OF_ROW = re.compile(r"\br\.([a-z_]+)")

_LIST_OF_WORDS = re.compile(r"(\b[a-z_.]+) (NOT )?IN \(('[A-Z_]+'(?:, '[A-Z_]+'){2,})\)")

_ID_BY_PLACE = "substr(:ids, key * 16 + 1, 16)"
"""The id of a new row: they are in ``ids`` in the order of the rows."""

BATCH_OF_IDS = "SELECT substr(:ids, value, 16) FROM json_each(:rows)"
"""The rows of a batch of ids, for an IN, whose plan needs no estimate of how many there are."""

ID, TOKEN = 16, 20
"""Bytes of an id and of a token, as decimal digits, in a record."""

RECORD = {
    "job_id": f"substr(:ids, key * {ID + TOKEN} + 1, {ID})",
    "token": f"CAST(substr(:ids, key * {ID + TOKEN} + {ID + 1}, {TOKEN}) AS INTEGER)",
}
"""The columns of a batch of leases that are in records of the same length, at the beginning of
``:ids``: less than half of what it costs to take them from JSON."""


class SqliteDialect(Dialect):
    """Integer microseconds, blobs for ids, batches as JSON. Time is always a parameter."""

    engine = "sqlite"
    now = ":now"
    clock = ":clock"
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
    # After an ANALYZE of an almost empty table, SQLite would scan the whole table for each id.
    by_id = "INDEXED BY sqlite_autoindex_pulse_jobs_1"
    by_family = "INDEXED BY pulse_jobs_family"
    by_cancelling = "INDEXED BY pulse_jobs_cancelling"
    by_suspicion = "INDEXED BY pulse_jobs_suspects"
    by_holder = "INDEXED BY pulse_jobs_holders"
    forever = "253402214400000000"  # 9999-12-31
    row_id = "rowid"

    def sql(self, text: str, rows: str = "", *, counted: bool = False) -> Sql:
        text = with_comparisons(text)
        if not rows:
            return named(text, counted=counted)
        sql = named(text, column_names(rows), counted=counted)
        if _ID_BY_PLACE in text:
            return replace(sql, id_by_place=True)
        row = ", ".join(f":r_{name} AS {name}" for name in sql.columns)
        for batch, single in ((_batch(rows), f"(SELECT {row})"), (BATCH_OF_IDS, f"SELECT {row}")):
            if batch in text:
                return replace(sql, single_row_text=sql.text.replace(batch, single))
        return sql

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

    def inserted(self, values: str, columns: str) -> str:
        found = _new_rows(columns)
        listed = _OF_ROW.sub(lambda column: found[column[1]], values)
        return f"SELECT {listed} FROM json_each(:rows) WHERE true"

    def same_id(self, column: str, value: str) -> str:
        return f"{column} = {value}"

    def id_among(self, column: str, ids: str) -> str:
        return f"{column} IN ({ids})"

    def seconds(self, expression: str) -> str:
        return f"CAST(round({expression} * 1000000) AS INTEGER)"

    def milliseconds(self, expression: str) -> str:
        return f"{expression} * 1000"

    def steps(self, since: str, until: str, seconds: str) -> str:
        return f"({until} - {since}) / ({seconds} * 1000000)"

    def records(self, parameter: str, columns: str) -> str:
        names = column_names(columns)
        fields = (f"json_extract(value, '$.{name}') AS {name}" for name in names)
        return f"SELECT {', '.join(fields)} FROM json_each({parameter})"

    def elements(self, column: str) -> str:
        return f"json_each({column}) AS e"

    def has_value(self, path: str, value: str, kind: ValueKind) -> str:
        if kind is ValueKind.TEXT:
            types, test = "'text'", f" AND json_extract(payload, {path}) = {value}"
        elif kind is ValueKind.NUMBER:
            types = "'integer', 'real'"
            test = f" AND json_extract(payload, {path}) = CAST({value} AS NUMERIC)"
        else:
            types, test = f"'{kind.value}'", ""
        known = f"json_type(payload, {path}) IN ({types}){test}"
        return f"CASE WHEN json_valid(payload) THEN {known} ELSE 0 END"

    def json_path(self, path: Sequence[str]) -> str:
        return "$" + "".join(f'."{name}"' for name in path)

    def position(self, part: str, text: str) -> str:
        return f"instr({text}, {part})"

    def all_texts(self, text: str) -> str:
        return f"group_concat({text}, ' ')"

    @property
    def id_digits(self) -> str:
        return "hex(id)"

    def uuid(self, value: Any) -> UUID:
        return value if isinstance(value, UUID) else UUID(bytes=value)

    def time(self, value: Any) -> datetime:
        return from_micros(value)

    def number(self, instant: str) -> str:
        return instant

    def instant(self, number: Any) -> datetime:
        return from_micros(number)


def with_comparisons(text: str) -> str:
    """Return a text in which a value is compared with each of three words or more.

    For such a list SQLite makes a table whenever the statement is run, and searches it for each
    row. The conditions of indexes are written in the same way, or they would not be used.
    """
    return _LIST_OF_WORDS.sub(_compared, text)


def in_parameters(text: str) -> str:
    """Return a text in which the columns of the batch ``r`` are parameters of the same name."""
    return _OF_ROW.sub(r":\1", text)


def _compared(test: re.Match[str]) -> str:
    value, is_negated, words = test.groups()
    operator, link = ("<>", " AND ") if is_negated else ("=", " OR ")
    return f"({link.join(f'{value} {operator} {word}' for word in words.split(', '))})"


@cache
def _batch(columns: str) -> str:
    """Return a batch's rows as a relation.

    Materialized, or each use of a column would extract it from the JSON again. Marked as short by
    ``likelihood``, or after an ANALYZE of an almost empty table the planner takes the batch to be
    longer than the table, and scans the table.
    """
    declared = [column.split() for column in columns.split(",")]
    records = RECORD if has_records(column_names(columns)) else {}
    fixed = [f"{value} AS {name}" for name, value in records.items()]
    others = declared[len(fixed) :]
    found = [_json_field(_element(place, len(others)), *it) for place, it in enumerate(others)]
    fields = ", ".join(fixed + found)
    batch = f"WITH b AS MATERIALIZED (SELECT {fields} FROM json_each(:rows))"
    few = f"likelihood({column_names(columns)[0]} IS NOT NULL, 0.0001)"
    return f"({batch}, l AS MATERIALIZED (SELECT * FROM b WHERE {few}) SELECT * FROM l)"


@cache
def _new_rows(columns: str) -> dict[str, str]:
    """Return the expression of each column of a batch of new rows, whose first one is the id.

    They are not materialized, as ``_batch`` does: each is used once, or twice if it is short.
    """
    key, *declared = [column.split() for column in columns.split(",")]
    return {key[0]: _ID_BY_PLACE} | {
        name: _value(_element(place, len(declared)), kind)
        for place, (name, kind) in enumerate(declared)
    }


def has_records(columns: tuple[str, ...]) -> bool:
    """Whether the rows of a batch begin with the columns of RECORD."""
    return columns[: len(RECORD)] == tuple(RECORD)


def _element(place: int, columns: int) -> str:
    """Return a value of a row, which is an array unless it has a single column."""
    return "value" if columns == 1 else f"json_extract(value, '$[{place}]')"


def _json_field(value: str, name: str, kind: str) -> str:
    """Return a column of a batch."""
    return f"{_value(value, kind)} AS {name}"


def _value(element: str, kind: str) -> str:
    """Return a value of a batch; a UUID is stored as its offset in ``:ids``."""
    return f"substr(:ids, {element}, 16)" if kind == "uuid" else element

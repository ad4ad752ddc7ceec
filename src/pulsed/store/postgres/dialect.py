"""PostgreSQL's SQL: timestamptz, uuid, arrays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pulsed.model.backoff import LARGEST_EXPONENT
from pulsed.model.fields import Kind
from pulsed.model.timetable import EPOCH
from pulsed.store.sql.dialect import (
    FENCE,
    HAS_WAITED,
    MIGRATION_LOCK,
    Dialect,
    ValueKind,
    column_names,
)
from pulsed.store.sql.statement import Sql, numbered

_PAIR = r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}"
# A column of JSON may have NUL and lone surrogates as escapes, and reading any field then fails.
_IS_READABLE = f"""(strpos(payload::text, '\\u') = 0
    OR regexp_replace(payload::text, '{_PAIR}', '', 'gi') !~* '\\\\u(0000|d[89a-f])')"""


class PostgresDialect(Dialect):
    """``timestamptz``, ``uuid``, arrays. Time is the server's clock, or a test's own."""

    engine = "postgres"
    literal_now = "now()"
    forever = "'9999-12-31 00:00:00+00'::timestamptz"
    row_id = "ctid"
    greatest = "greatest"
    least = "least"
    true = "true"
    false = "false"
    native = frozenset({Kind.UUID, Kind.INSTANT, Kind.FLAG})
    skip_locked = "FOR UPDATE SKIP LOCKED"
    for_update = "FOR NO KEY UPDATE"
    # In logarithms, because power() overflows, and one such row would fail its whole batch.
    backoff = (
        "CASE WHEN backoff_base > 0 THEN least(backoff_cap, exp(least(ln(backoff_base) "
        "+ backoff_power * ln(greatest(attempts, 1)) "
        f"+ (attempts - 1) * ln(backoff_factor), {LARGEST_EXPONENT}))) ELSE 0 END "
        "* (1 + backoff_jitter * (2 * random() - 1))"
    )

    def __init__(self, schema: str | None = None, *, own_clock: bool = False) -> None:
        super().__init__(schema)
        self.now = ":now::timestamptz" if own_clock else "now()"
        # In a subquery, so that it is evaluated once and not for each row.
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
        # CREATE needs a privilege on the database even if the schema exists; so check first.
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
            # The guards are in the statement that locks: only there PostgreSQL rechecks them
            # after the lock is acquired.
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

    def same_id(self, column: str, value: str) -> str:
        # A plain "=" may be planned as a scan of the whole index with the batch inside, and was,
        # when the statement was prepared while the table had ten rows. This form can only be
        # planned as one index lookup for each row of the batch.
        return f"{column} = ANY(ARRAY[{value}])"

    def id_among(self, column: str, ids: str) -> str:
        return f"{column} = ANY(ARRAY({ids}))"

    def seconds(self, expression: str) -> str:
        return f"make_interval(secs => {expression})"

    def milliseconds(self, expression: str) -> str:
        return f"{expression} * interval '1 millisecond'"

    def steps(self, since: str, until: str, seconds: str) -> str:
        return f"floor(date_part('epoch', {until} - {since}) / {seconds})::bigint"

    def records(self, parameter: str, columns: str) -> str:
        return f"SELECT * FROM json_to_recordset({parameter}::json) AS x({columns})"

    def elements(self, column: str) -> str:
        return f"json_array_elements_text({column}) AS e(value)"

    def has_value(self, path: str, value: str, kind: ValueKind) -> str:
        # Each operator parses the payload again, so the one that most payloads fail comes first.
        field, text = f"payload #> {path}::text[]", f"payload #>> {path}::text[]"
        if kind is ValueKind.TEXT:
            test = f"{text} = {value}::text AND json_typeof({field}) = 'string'"
        elif kind is ValueKind.NUMBER:
            # Others are beyond the range of numeric, or of no use to anybody.
            number = r"^-?\d{1,100}(\.\d{1,100})?([eE][+-]?\d{1,3})?$"
            equal = f"""SELECT CASE WHEN t ~ '{number}' THEN t::numeric = {value}::text::numeric
                ELSE false END FROM (SELECT {text} AS t OFFSET 0) AS found"""
            test = f"({equal}) AND json_typeof({field}) = 'number'"
        elif kind is ValueKind.NULL:
            test = f"json_typeof({field}) = 'null'"
        else:
            test = f"json_typeof({field}) = 'boolean' AND {text} = '{kind.value}'"
        return f"CASE WHEN {_IS_READABLE} THEN {test} ELSE false END"

    def json_path(self, path: Sequence[str]) -> list[str]:
        return list(path)

    def position(self, part: str, text: str) -> str:
        return f"strpos({text}, {part})"

    def all_texts(self, text: str) -> str:
        return f"string_agg({text}, ' ')"

    @property
    def id_digits(self) -> str:
        return "upper(replace(id::text, '-', ''))"

    def uuid(self, value: Any) -> UUID:
        known: UUID = value
        return known

    def time(self, value: Any) -> datetime:
        known: datetime = value
        return known

    def number(self, instant: str) -> str:
        return f"date_part('epoch', {instant})"

    def instant(self, number: Any) -> datetime:
        # Exact to the microsecond for instants before the year 2106: a double's precision.
        try:
            return datetime.fromtimestamp(number, UTC)
        except (OverflowError, ValueError):  # '-infinity', from a user's own INSERT
            return EPOCH

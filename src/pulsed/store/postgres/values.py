"""A statement's parameters in the order of its numbers.

A batch is passed as one array per column. asyncpg takes Python values; for psycopg all values are
written as text, and the server infers their types from the statement's casts. That makes one
prepared statement for each text whatever the values are, and is four times faster than psycopg's
list adapter, which also refuses a list of 1 and 2.5. Only ids that were made together are written
as the server stores them, which saves it a tenth of the insertion.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pulsed.model.ids import ID_BYTES, JobIds
from pulsed.store.sql.statement import Statement


def arguments(
    statement: Statement,
    clock: Callable[[], datetime] | None,
    column: Callable[[Sequence[Any]], Any] = list,
) -> list[Any]:
    """Return the values for ``$1``, ``$2`` and so on; ``column`` makes one of a batch."""
    sql, values = statement.sql, statement.params
    if sql.columns:
        columns = statement.by_column() or [()] * len(sql.columns)
        values = {**values, **dict(zip(sql.columns, map(column, columns), strict=True))}
    if clock is not None and "now" in sql.names:
        values = {**values, "now": clock()}
    return list(map(values.__getitem__, sql.names))


def texts(values: Sequence[Any]) -> list[Any]:
    """Return values in PostgreSQL's text format, and bytes as they are."""
    return [value if type(value) is str else text_of(value) for value in values]


def column_of(values: Sequence[Any]) -> list[Any] | bytes:
    """Return a column of a batch: as bytes in PostgreSQL's binary format if that costs nothing."""
    if not isinstance(values, JobIds):
        return list(values)
    head = struct.pack(">iiIii", 1, 0, _UUID_TYPE, len(values), 1)  # one dimension, without NULLs
    return head + values.each_after(ID_BYTES.to_bytes(4))


_UUID_TYPE = 2950


def _array(values: list[Any]) -> str:
    kinds = set(map(type, values))
    if kinds == {str}:
        elements = [_quoted(value) for value in values]
    elif kinds == {int}:
        elements = list(map(str, values))
    elif all(issubclass(kind, UUID) for kind in kinds):  # a driver may have its own UUID class
        elements = [value.hex for value in values]
    else:
        elements = [_element(value) for value in values]
    return "{" + ",".join(elements) + "}"


def _element(value: Any) -> str:
    return _quoted(value) if isinstance(value, str) else str(text_of(value) or "NULL")


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def text_of(value: Any) -> str | bytes | None:
    """Return a value in PostgreSQL's text format, and bytes as they are."""
    if isinstance(value, UUID):
        return f"{value.int:032x}"
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, list):
        return _array(value)
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)

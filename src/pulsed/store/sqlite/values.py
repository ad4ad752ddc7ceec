"""Binds a statement's values and reads its rows, in as few SQLite steps as possible.

Every ``sqlite3_step`` releases the GIL and reacquires it, which takes up to 5 ms while a busy event
loop runs in another thread. So a batch goes in as one JSON text, with its ids in a blob beside it,
because JSON holds no bytes; tokens of leases are in the same blob. A claim comes out as one JSON
text, and a write returns its row count. A batch of a single row is bound directly, which is faster
by half than JSON.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from pulsed.model.ids import JobIds
from pulsed.model.timetable import to_micros
from pulsed.store.sql.statement import Rows, Sql, Statement
from pulsed.store.sqlite.dialect import ID, TOKEN, has_records

MOST_TEXT = 4 * 1024 * 1024
"""Characters in one JSON text: a batch of large results is split."""

_PLAIN = {str, int, float, bool, bytes, type(None)}

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


def execute(
    cursor: sqlite3.Cursor, statement: Statement, now: int, clock: int | None = None
) -> Rows:
    """Run a statement; returns its rows, or its row count as the only row.

    ``now`` is the instant of its verb, ``clock`` its own if the verb has taken time until then.
    """
    sql = statement.sql
    params: dict[str, Any] = {"now": now, "clock": now if clock is None else clock}
    for name, value in statement.params.items():
        params[name] = value if type(value) in _PLAIN else _adapt(value)
    if not sql.columns:
        text, names = _positional(sql.text)
        return _answer(cursor.execute(text, [params[name] for name in names]), sql)
    columns = statement.by_column()
    if not columns:
        return [(0,)] if sql.counted else []
    if sql.single_row_text and len(columns[0]) == 1:
        return _single_row(cursor, sql, params, columns)
    return _at_once(cursor, sql, params, columns)


def _answer(cursor: sqlite3.Cursor, sql: Sql) -> Rows:
    if sql.counted:
        return [(cursor.rowcount,)]
    if sql.unpack is not None:
        return sql.unpack(cursor.fetchone()[0])
    return cursor.fetchall()


def _single_row(
    cursor: sqlite3.Cursor, sql: Sql, params: dict[str, Any], columns: list[Sequence[Any]]
) -> Rows:
    for name, (value,) in zip(sql.columns, columns, strict=True):
        params[f"r_{name}"] = value if type(value) in _PLAIN else _adapt(value)
    return _answer(cursor.execute(sql.single_row_text, params), sql)


def _at_once(
    cursor: sqlite3.Cursor, sql: Sql, params: dict[str, Any], columns: list[Sequence[Any]]
) -> Rows:
    rows = len(columns[0])
    if rows > 1 and sum(map(_length, columns)) > MOST_TEXT:
        head, tail = slice(rows // 2), slice(rows // 2, None)
        first = _at_once(cursor, sql, params, [column[head] for column in columns])
        second = _at_once(cursor, sql, params, [column[tail] for column in columns])
        return [(first[0][0] + second[0][0],)] if sql.counted else [*first, *second]
    ids = bytearray()
    places: dict[bytes, int] = {}
    if sql.id_by_place:
        ids += _packed(columns.pop(0))
    elif has_records(sql.columns):
        ids += _records(columns.pop(0), columns.pop(0))
    encoded = [_encodable(column, ids, places) for column in columns]
    params["rows"] = msgspec.json.encode(_elements(encoded, rows)).decode()
    params["ids"] = bytes(ids)
    return _answer(cursor.execute(sql.text, params), sql)


def _elements(columns: Sequence[Iterable[Any]], rows: int) -> list[Any]:
    """Return the rows as elements of a JSON array; nothing but ids leaves them empty."""
    if not columns:
        return [0] * rows
    # Rows of a single column are no arrays, which SQLite would have to parse one by one.
    return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))


@functools.lru_cache(maxsize=64)
def _positional(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement that is bound by position: a name costs a lookup for every value."""
    return _PARAMETER.sub("?", text), tuple(_PARAMETER.findall(text))


def _encodable(column: Sequence[Any], ids: bytearray, places: dict[bytes, int]) -> Iterable[Any]:
    """Return a column's values in JSON's types: for an id, its offset in ``ids``."""
    kinds = set(map(type, column))
    if any(issubclass(kind, datetime) for kind in kinds):
        return map(_adapt, column)
    if not any(issubclass(kind, (UUID, bytes)) for kind in kinds):
        return column
    if kinds == {UUID}:
        return _offsets(column, ids)
    found: list[int | None] = []
    for value in column:
        key = _adapt(value)
        place = None if key is None else places.get(key)
        if place is None and key is not None:
            place = places[key] = len(ids) + 1
            ids += key
        found.append(place)
    return found


def _records(jobs: Sequence[UUID | bytes], tokens: Sequence[int]) -> bytes:
    """Return ids and tokens in records of one length, as ``RECORD`` reads them.

    The ids may be the driver's own values, as read by another statement of the same script.
    """
    ids = [job_id.int.to_bytes(ID) if type(job_id) is UUID else _adapt(job_id) for job_id in jobs]
    if are_alike(tokens):  # of one claim, as nearly always
        token = _token(tokens[0])
        return token.join(ids) + token
    return b"".join([part for pair in zip(ids, map(_token, tokens), strict=True) for part in pair])


def are_alike(values: Sequence[object]) -> bool:
    """Whether all values, of which there is at least one, are the same."""
    return values.count(values[0]) == len(values)


def _token(number: int) -> bytes:
    """Return the digits of a token, always as many."""
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"the token {number} is larger than SQLite's integers")
    return b"%0*d" % (TOKEN, number)


def _offsets(column: Sequence[UUID], ids: bytearray) -> Iterable[int]:
    """Append UUIDs to ``ids``, and return the offset of each."""
    first = len(ids) + 1
    ids += _packed(column)
    return range(first, len(ids) + 1, 16)


def _packed(column: Sequence[UUID]) -> bytes:
    """Return the bytes of UUIDs."""
    if isinstance(column, JobIds):
        return column.data
    return b"".join([value.int.to_bytes(ID) for value in column])


def _length(column: Sequence[Any]) -> int:
    if isinstance(column, JobIds) or not _has(str, column):
        return 0
    return sum([len(value) for value in column if isinstance(value, str)])


def _has(kind: type, column: Sequence[Any]) -> bool:
    return any(issubclass(each, kind) for each in set(map(type, column)))


def _adapt(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.int.to_bytes(ID)
    if isinstance(value, datetime):
        return to_micros(value)
    return value

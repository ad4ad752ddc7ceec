"""Runs a statement on libpq without a cursor, where little more than a row count is needed.

A cursor adapts parameters, describes columns and prepares loaders. For an insert of one job that
costs this process more time than sending it and waiting for the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

Value: TypeAlias = str | bytes | None
"""A parameter: in the text format, or as bytes in the binary one."""

Prepared: TypeAlias = dict[str, bytes]
"""The names of one connection's prepared statements, by text; the driver keeps its own."""

MOST_PREPARED = 256
"""More than a program uses; further statements are sent unprepared."""

_FINE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


def count(
    connection: psycopg.Connection[Any],
    text: str,
    values: Sequence[Value],
    prepared: Prepared | None,
) -> int:
    """Run a statement and return how many rows it changed; ``prepared`` None: do not prepare."""
    return _run(connection, text, values, prepared).command_tuples or 0


def counted_row(
    connection: psycopg.Connection[Any],
    text: str,
    values: Sequence[Value],
    prepared: Prepared | None,
) -> tuple[int, *tuple[str | None, ...]]:
    """Run a statement that ``counts_itself`` and return its row: the number, then texts."""
    result = _run(connection, text, values, prepared)
    encoding = connection.info.encoding
    number, *texts = (result.get_value(0, column) for column in range(result.nfields))
    return int(number or 0), *(None if each is None else each.decode(encoding) for each in texts)


def _run(
    connection: psycopg.Connection[Any],
    text: str,
    values: Sequence[Value],
    prepared: Prepared | None,
) -> PGresult:
    libpq, encoding = connection.pgconn, connection.info.encoding
    encoded = [None if value is None else _encoded(value, encoding) for value in values]
    formats = [_format(value) for value in values] if bytes in map(type, values) else None
    if prepared is not None and (text in prepared or len(prepared) < MOST_PREPARED):
        if text not in prepared:
            name = b"pulsed_%d" % len(prepared)
            libpq.send_prepare(name, text.encode(encoding))
            _answer(connection, encoding)
            prepared[text] = name
        libpq.send_query_prepared(prepared[text], encoded, formats)
    else:
        libpq.send_query_params(text.encode(encoding), encoded, None, formats)
    return _answer(connection, encoding)


def _format(value: Value) -> Format:
    return Format.BINARY if isinstance(value, bytes) else Format.TEXT


def _encoded(value: str | bytes, encoding: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if "\0" in value:  # libpq would end the text there
        raise psycopg.DataError("PostgreSQL text cannot contain NUL")
    return value.encode(encoding)


def _answer(connection: psycopg.Connection[Any], encoding: str) -> PGresult:
    result: PGresult = connection.wait(execute(connection.pgconn))[-1]
    if result.status not in _FINE:
        raise error_from_result(result, encoding=encoding)
    return result

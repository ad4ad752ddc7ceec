"""Runs a statement on libpq without a cursor, where little more than a row count is needed.

A cursor adapts parameters, describes columns and prepares loaders. For an insert of one job that
costs this process more time than sending it and waiting for the answer.

A call may have a follow-up: another transaction that the server gets in the same message, and
begins when the first one has committed, without a round trip between them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch, send
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from pulsed.store.postgres.psycopg_connection import Prepared, PsycopgConnection

Value: TypeAlias = str | bytes | None
"""A parameter: in the text format, or as bytes in the binary one."""

MOST_PREPARED = 256
"""More than a program uses; further statements are sent unprepared."""

HAS_PIPELINE = psycopg.Pipeline.is_supported()
"""Whether libpq can send a follow-up with its statement; the one in psycopg's wheels can."""

_FINE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class DirectCall(NamedTuple):
    """A statement with its values; without ``prepared``, it is not prepared."""

    text: str
    values: Sequence[Value]
    prepared: Prepared | None
    failed: Callable[[BaseException], None] | None = None
    """Gets the error of a follow-up, which its caller does not get."""


def count(
    connection: PsycopgConnection, call: DirectCall, follow_up: DirectCall | None = None
) -> int:
    """Run a statement and return how many rows it changed."""
    return _run(connection, call, follow_up).command_tuples or 0


def counted_row(
    connection: PsycopgConnection, call: DirectCall, follow_up: DirectCall | None = None
) -> tuple[int, *tuple[str | None, ...]]:
    """Run a statement that ``counts_itself`` and return its row: the number, then texts."""
    result = _run(connection, call, follow_up)
    encoding = connection.encoding
    number, *texts = (result.get_value(0, column) for column in range(result.nfields))
    return int(number or 0), *(None if each is None else each.decode(encoding) for each in texts)


def _run(connection: PsycopgConnection, call: DirectCall, follow_up: DirectCall | None) -> PGresult:
    if follow_up is not None:
        return _run_both(connection, call, follow_up)
    _send(connection, call, _prepare(connection, call))
    return _checked(connection, _answer(connection))


def _answer(connection: PsycopgConnection) -> PGresult:
    """Return the result of the statement that was sent.

    Most answers arrive at once, so one poll comes before the driver's wait: that takes as long as
    all the rest here, with its generators.
    """
    libpq = connection.pgconn
    results: list[PGresult] = []
    if not libpq.flush() and connection.hears_soon():
        libpq.consume_input()
        while not libpq.is_busy():
            result = libpq.get_result()
            if result is None:
                return results[-1]
            results.append(result)
    results += connection.wait(execute(libpq))
    return results[-1]


def _run_both(connection: PsycopgConnection, call: DirectCall, follow_up: DirectCall) -> PGresult:
    """Run two transactions in one round trip; returns the result of the first."""
    libpq = connection.pgconn
    names = _prepare(connection, call), _prepare(connection, follow_up)
    libpq.enter_pipeline_mode()
    for each, name in zip((call, follow_up), names, strict=True):
        _send(connection, each, name)
        libpq.pipeline_sync()  # ends its transaction
    result, other = connection.wait(_both_answers(libpq))
    libpq.exit_pipeline_mode()
    if other.status not in _FINE and follow_up.failed is not None:
        follow_up.failed(error_from_result(other, encoding=connection.encoding))
    return _checked(connection, result)


def _both_answers(libpq: PGconn) -> Generator[Any, Any, tuple[PGresult, PGresult]]:
    yield from send(libpq)
    results = []
    for _ in range(2):
        results.append((yield from fetch(libpq)))
        yield from fetch(libpq)  # nothing: the statement has no other result
        yield from fetch(libpq)  # the end of its transaction
    return results[0], results[1]


def _prepare(connection: PsycopgConnection, call: DirectCall) -> bytes | None:
    """Return the name of a prepared statement; None if it is to be sent unprepared."""
    text, prepared = call.text, call.prepared
    if prepared is None:
        return None
    name = prepared.get(text)
    if name is None and len(prepared) < MOST_PREPARED:
        name = b"pulsed_%d" % len(prepared)
        connection.pgconn.send_prepare(name, text.encode(connection.encoding))
        _checked(connection, connection.wait(execute(connection.pgconn))[-1])
        prepared[text] = name
    return name


def _send(connection: PsycopgConnection, call: DirectCall, name: bytes | None) -> None:
    encoding, formats = connection.encoding, None
    encoded: list[bytes | None] = []
    for value in call.values:
        if not isinstance(value, str):
            encoded.append(value)
        elif "\0" in value:  # libpq would end the text there
            raise psycopg.DataError("PostgreSQL text cannot contain NUL")
        else:
            encoded.append(value.encode(encoding))
    if bytes in map(type, call.values):
        formats = [_format(value) for value in call.values]
    if name is not None:
        connection.pgconn.send_query_prepared(name, encoded, formats)
    else:
        connection.pgconn.send_query_params(call.text.encode(encoding), encoded, None, formats)


def _format(value: Value) -> Format:
    return Format.BINARY if isinstance(value, bytes) else Format.TEXT


def _checked(connection: PsycopgConnection, result: PGresult) -> PGresult:
    if result.status not in _FINE:
        raise error_from_result(result, encoding=connection.encoding)
    return result

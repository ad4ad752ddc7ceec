"""Runs a statement on libpq without a cursor, where little more than a row count is needed.

A cursor adapts parameters, describes columns and prepares loaders. For an insert of one job that
costs this process more time than sending it and waiting for the answer.

A call may have a follow-up: another transaction that the server gets in the same message, and
begins when the first one has committed, without a round trip between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch, send
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from pulsed.store.postgres.psycopg_connection import PsycopgConnection
from pulsed.store.postgres.values import arguments, text_of
from pulsed.store.verbs.script import FollowUp

MOST_PREPARED = 256
"""More than a program uses; further statements are sent unprepared."""

_NUMBERS = itertools.count()
"""In the names of prepared statements, so that none is used again."""

HAS_PIPELINE = psycopg.Pipeline.is_supported()
"""Whether libpq can send a follow-up with its statement; the one in psycopg's wheels can."""

_FINE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


def counted_row(
    connection: PsycopgConnection, text: str, values: Sequence[Any], follow_up: FollowUp | None
) -> tuple[int, *tuple[str | None, ...]]:
    """Run a statement that ``counts_itself`` and return its row: the number, then texts."""
    result = run(connection, text, values, follow_up)
    encoding = connection.encoding
    number, *texts = (result.get_value(0, column) for column in range(result.nfields))
    return int(number or 0), *(None if each is None else each.decode(encoding) for each in texts)


def run(
    connection: PsycopgConnection, text: str, values: Sequence[Any], follow_up: FollowUp | None
) -> PGresult:
    """Run a statement, with another transaction behind it if there is a follow-up."""
    if follow_up is None:
        _send(connection, text, values)
        result = _answer(connection)
    else:
        result = _run_both(connection, text, values, follow_up)
    if result.status not in _FINE:
        raise error_from_result(result, encoding=connection.encoding)
    return result


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


def _run_both(
    connection: PsycopgConnection, text: str, values: Sequence[Any], follow_up: FollowUp
) -> PGresult:
    """Run two transactions in one round trip; returns the result of the first."""
    libpq, second = connection.pgconn, follow_up.statement
    for each in (text, second.sql.text):  # no statement can be prepared in between
        if connection.prepared is not None and each not in connection.prepared:
            _prepare(connection, each)
    libpq.enter_pipeline_mode()
    _send(connection, text, values)
    libpq.pipeline_sync()  # ends its transaction, and lets the server begin
    _send(connection, second.sql.text, arguments(second, None))
    libpq.pipeline_sync()
    result, other = connection.wait(_both_answers(libpq))
    libpq.exit_pipeline_mode()
    if other.status not in _FINE:
        follow_up.failed(error_from_result(other, encoding=connection.encoding))
    return result


def _both_answers(libpq: PGconn) -> Generator[Any, Any, tuple[PGresult, PGresult]]:
    yield from send(libpq)
    results = []
    for _ in range(2):
        results.append((yield from fetch(libpq)))
        yield from fetch(libpq)  # nothing: the statement has no other result
        yield from fetch(libpq)  # the end of its transaction
    return results[0], results[1]


def _send(connection: PsycopgConnection, text: str, values: Sequence[Any]) -> None:
    """Send a statement, prepared if that is allowed: bytes in the binary format, others as text."""
    encoding, formats = connection.encoding, None
    encoded: list[bytes | None] = []
    for value in values:
        written = value if type(value) is str else text_of(value)
        if isinstance(written, str):
            if "\0" in written:  # libpq would end the text there
                raise psycopg.DataError("PostgreSQL text cannot contain NUL")
            written = written.encode(encoding)
        encoded.append(written)
    if bytes in map(type, values):
        formats = [Format.BINARY if type(value) is bytes else Format.TEXT for value in values]
    prepared = connection.prepared
    name = None if prepared is None else prepared.get(text) or _prepare(connection, text)
    if name is not None:
        connection.pgconn.send_query_prepared(name, encoded, formats)
    else:
        connection.pgconn.send_query_params(text.encode(encoding), encoded, None, formats)


def _prepare(connection: PsycopgConnection, text: str) -> bytes | None:
    """Prepare a statement and return its name; None if there are too many already."""
    prepared = connection.prepared
    if prepared is None or len(prepared) >= MOST_PREPARED:
        return None
    name = b"pulsed_%d" % next(_NUMBERS)
    connection.pgconn.send_prepare(name, text.encode(connection.encoding))
    result = connection.wait(execute(connection.pgconn))[-1]
    if result.status not in _FINE:
        raise error_from_result(result, encoding=connection.encoding)
    prepared[text] = name
    return name

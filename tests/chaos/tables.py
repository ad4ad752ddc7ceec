"""The tables by plain SQL, past all of pulsed's own code."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

Query = Callable[[str], list[tuple[Any, ...]]]

ENDED = ("SUCCEEDED", "DEAD_LETTERED", "CANCELLED")


@contextmanager
def reading(url: str, patience: float = 30.0) -> Iterator[Query]:
    """Yield a function that runs one statement and returns its rows."""
    connection: Any
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, timeout=patience, check_same_thread=False)
        connection.isolation_level = None
    else:
        import psycopg  # noqa: PLC0415 - the many workers of a storm do not need it

        limit = f"-c statement_timeout={int(patience * 1000)}"
        connection = psycopg.connect(
            url, autocommit=True, connect_timeout=math.ceil(min(patience, 5)), options=limit
        )
    with closing(connection):
        yield lambda sql: _rows(connection.execute(sql))


def _rows(cursor: Any) -> list[tuple[Any, ...]]:
    return cursor.fetchall() if cursor.description else []


def as_uuid(value: Any) -> UUID:
    """Return an id of either engine."""
    return value if isinstance(value, UUID) else UUID(bytes=value)


def as_json(value: Any) -> Any:
    """Return a value of either engine; psycopg has parsed it already."""
    return json.loads(value) if isinstance(value, str) else value


def as_micros(value: Any) -> int:
    """Return an instant of either engine."""
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000)
    return int(value)

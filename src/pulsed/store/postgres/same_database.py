"""Whether a caller's connection leads to the app's own database.

Names alone cannot tell: a pooler has names of its own, and ``localhost`` is also 127.0.0.1. So a
connection whose host, port and database are those of the app's URL is accepted, and for any other
one both servers are asked, once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import psycopg

from pulsed.store.postgres.address import DEFAULT_PORT, PostgresAddress
from pulsed.store.sql.statement import Statement, numbered
from pulsed.store.submitter import another_database
from pulsed.store.verbs.script import Script, VerbKind, verb

# Any role may ask for these, so that the question cannot abort the caller's transaction.
_IDENTITY = numbered(
    "SELECT current_database()::text, extract(epoch FROM pg_postmaster_start_time())::text"
)

MOST_DESTINATIONS = 1_000
"""Destinations whose answer is remembered."""


class Destination(NamedTuple):
    """Where a connection leads to, by its own account."""

    host: str
    port: str
    database: str

    def __str__(self) -> str:
        return f"the database {self.database!r} on {self.host}:{self.port}"


@verb(VerbKind.READ)
def identity() -> Script[tuple[Any, ...]]:
    """Read the database's name, and when its server was started."""
    [row] = yield Statement(_IDENTITY, {})
    return tuple(row)


Ask = Callable[[], Coroutine[Any, Any, tuple[Any, ...]]]


class SameDatabase:
    """The destinations that are known to be the app's own database."""

    def __init__(self, address: PostgresAddress, ask: Ask) -> None:
        self._ask = ask
        self._where = address.where
        self._ours = {_of_keywords(each.keywords) for each in address.alternatives()}

    async def check(self, connection: Any, ask: Ask) -> None:
        """Raise ``ConfigError`` if a connection, which ``ask`` asks, leads to another database."""
        destination = destination_of(connection)
        if destination in self._ours:
            return
        if await ask() != await self._ask():
            raise another_database(f"to {destination or 'another one'}", self._where)
        if destination is not None and len(self._ours) < MOST_DESTINATIONS:
            self._ours.add(destination)


def destination_of(connection: Any) -> Destination | None:
    """Return where a connection leads to, if it says so."""
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        info = connection.info
        return Destination(info.host, str(info.port), info.dbname)
    # asyncpg has no public names for these.
    address, parameters = getattr(connection, "_addr", None), getattr(connection, "_params", None)
    database = getattr(parameters, "database", None)
    if not isinstance(database, str) or not address:
        return None
    if isinstance(address, str):  # the path of a socket
        folder, _, port = address.rpartition("/.s.PGSQL.")
        return Destination(folder, port, database)
    return Destination(str(address[0]), str(address[1]), database)


def _of_keywords(keywords: dict[str, str]) -> Destination:
    port = keywords.get("port") or str(DEFAULT_PORT)
    return Destination(keywords.get("host", ""), port, keywords.get("dbname", ""))

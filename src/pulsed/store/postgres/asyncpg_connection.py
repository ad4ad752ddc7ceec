"""Opens asyncpg connections, and runs statements on them with little in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import asyncpg

from pulsed.store.postgres.address import PostgresOptions
from pulsed.store.postgres.hosts import Hosts
from pulsed.store.postgres.session import Lane, Sessions
from pulsed.store.sql.statement import Rows, Sql


class AsyncpgConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that knows its host, and until when it waits for an answer."""

    place = 0
    """The index of its host in the URL."""
    server_pid = 0
    """The server's process id of its session."""
    deadline = math.inf
    """When the statement in flight has had no answer for too long, by the monotonic clock."""
    is_overdue = False
    """Whether it was aborted for that."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._known: dict[str, Any] = {}
        """What the driver knows of the statements that it has prepared, by their texts."""

    async def ask(self, sql: Sql, values: Sequence[Any], within: float | None = None) -> Rows:
        """Run a statement; ``within`` sets a timer of its own, for those whose seconds count.

        Once the driver has prepared a statement, it goes to the driver's protocol. What the driver
        does before, for each call, takes as long as sending it and reading the answer.
        """
        known = self._known.get(sql.text)
        if known is None or known.closed:
            known = self._find(sql.text)
        if known is not None:
            try:
                rows, status, _ = await self._protocol.bind_execute(
                    known, values, "", 0, True, within
                )
            except asyncpg.InvalidCachedStatementError:
                if self.is_in_transaction():
                    raise  # it has failed
            else:
                return [(changed(status),)] if sql.counted else rows
        if sql.counted:
            return [(changed(await self.execute(sql.text, *values, timeout=within)),)]
        return await self.fetch(sql.text, *values, timeout=within)  # type: ignore[no-any-return]

    def _find(self, text: str) -> Any:
        """Return what the driver has in its cache for a statement, and keep it until that ends."""
        self._known = {text: each for text, each in self._known.items() if not each.closed}
        known = self._stmt_cache.get((text, asyncpg.Record, False))
        if known is not None:
            self._known[text] = known
        return known


async def connect(
    hosts: Hosts, options: PostgresOptions, sessions: Sessions, lane: Lane
) -> AsyncpgConnection:
    """Open a connection for a lane, to the first suitable host."""
    if lane is not Lane.URGENT:
        sessions.crowding.check()
    try:
        connection = await _connect_to_one(hosts, options, sessions, lane)
    except asyncpg.PostgresError as error:
        sessions.crowding.note(error)
        raise
    sessions.crowding.note(None)
    return connection


async def _connect_to_one(
    hosts: Hosts, options: PostgresOptions, sessions: Sessions, lane: Lane
) -> AsyncpgConnection:
    """Try one host after the other: asyncpg itself has one timeout for all of them."""
    within = hosts.address.connect_timeout(options.connect_timeout)
    settings = sessions.at_connect(lane)
    failed: Exception | None = None
    for place in hosts.in_order():
        try:
            connection: AsyncpgConnection = await asyncpg.connect(
                **hosts.each[place].for_asyncpg(settings, within),
                connection_class=AsyncpgConnection,
                command_timeout=sessions.driver_timeout(lane),
                statement_cache_size=256 if options.prepared_statements else 0,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
            )
        except _NEXT_HOST as error:
            failed = error
        else:
            connection.place = place
            connection.server_pid = connection.get_server_pid()
            hosts.connected(place)
            return connection
    assert failed is not None
    raise failed


_NEXT_HOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.CannotConnectNowError,
)
"""Errors after which the next host is tried: time-out, down, disconnected, starting, standby."""


def changed(status: str | bytes) -> int:
    """Return how many rows a command changed, from its command tag: ``INSERT 0 5``."""
    return int(status.split()[-1])

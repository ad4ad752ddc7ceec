"""The libraries whose objects ``using(conn=…)`` accepts."""

from __future__ import annotations

from typing import Any

from pulsed.store.connections.caller import CallerConnection, ConnectionSource
from pulsed.store.connections.sqlalchemy import SqlAlchemy

_sources: list[ConnectionSource] = [SqlAlchemy()]


def add_source(source: ConnectionSource) -> None:
    """Accept the objects of another library; it is asked before those added earlier."""
    _sources.insert(0, source)


async def resolve(given: Any) -> CallerConnection:
    """Return the connection behind what a caller has passed; without a source, that itself."""
    for source in _sources:
        if source.accepts(given):
            return await source.resolve(given)
    return CallerConnection(given)

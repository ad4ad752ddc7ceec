"""What asyncpg asks every new connection about PostgreSQL's own types, asked once a process.

The answer is the same on every connection, and the question costs 11 ms each time it is put: on a
connection's first claim, and again on its first report.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

FIRST_OF_USERS = 16_384
"""Types below this number come with PostgreSQL; the others are a database's own."""

ASKING = asyncpg.Connection._introspect_types


def know_types() -> None:
    """Ask once in this process from now on."""
    known: dict[tuple[Any, ...], Any] = {}

    async def introspect(connection: asyncpg.Connection, types: Any, wait: Any) -> Any:
        if max(types) >= FIRST_OF_USERS:
            return await ASKING(connection, types, wait)
        key = (connection.get_server_version(), *sorted(types))
        if key not in known:
            known[key], _ = await ASKING(connection, types, wait)
        return known[key], SimpleNamespace(name="asked before, without a statement")

    asyncpg.Connection._introspect_types = introspect


@contextmanager
def asking_every_time() -> Iterator[None]:
    """For a test of what asyncpg's question meets on its way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg.Connection, "_introspect_types", ASKING)
        yield

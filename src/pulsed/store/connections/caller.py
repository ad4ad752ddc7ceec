"""A caller's own connection, and who finds it in the objects of a library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class CallerConnection:
    """A driver's connection inside of the caller's transaction."""

    driver: Any
    """Of sqlite3, aiosqlite, psycopg or asyncpg. The store refuses one that is in no transaction,
    and one that fits neither its database nor the method that was called."""

    after_commit: Callable[[Callable[[], None]], object] | None = None
    """Registers a function that the library calls when the transaction has committed, and not if
    it is rolled back. None if the library cannot tell."""


class ConnectionSource(Protocol):
    """Finds the driver's connection in the objects of one library."""

    def accepts(self, given: object) -> bool:
        """Whether this is an object of the library. Called for every ``conn=``, so be quick."""

    async def resolve(self, given: Any) -> CallerConnection:
        """Return its connection; begin the transaction if its first statement would.

        Raises ``ConfigError`` for an object that has none. It must not suspend if
        ``is_blocking()``.
        """

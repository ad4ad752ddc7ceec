"""Django's connections as ``using(conn=…)``: an alias, or ``connections[alias]``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist, ConnectionProxy

from pulsed.errors import ConfigError
from pulsed.store.blocking import is_blocking
from pulsed.store.connections.caller import CallerConnection
from pulsed.store.submitter import outside_transaction


class DjangoConnections:
    """Finds the driver's connection below Django's.

    Jobs of the project's own app need none of this: they join by themselves. It is for other apps,
    and for a second database.
    """

    def accepts(self, given: object) -> bool:
        """Whether this is an alias, or a connection of Django."""
        return isinstance(given, str | BaseDatabaseWrapper | ConnectionProxy)

    async def resolve(self, given: Any) -> CallerConnection:
        """Return the connection, which must be in ``transaction.atomic``."""
        connection = _named(given) if isinstance(given, str) else given
        if not is_blocking():
            raise ConfigError(
                "Django's connections belong to threads, so an a… method cannot use one. Call the "
                "blocking method in sync_to_async, inside of transaction.atomic. Nothing was "
                "stored."
            )
        connection.ensure_connection()
        if not connection.in_atomic_block and connection.get_autocommit():
            raise outside_transaction(f"`with transaction.atomic(using={connection.alias!r}):`")
        return CallerConnection(connection.connection, partial(_after_commit, connection.alias))


def _after_commit(alias: str, call: Callable[[], None]) -> None:
    transaction.on_commit(call, using=alias)


def _named(alias: str) -> Any:
    try:
        return connections[alias]
    except ConnectionDoesNotExist as error:
        raise ConfigError(f"using(conn={alias!r}): {error} Nothing was stored.") from error

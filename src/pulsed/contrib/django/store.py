"""The jobs of a project, through Django's own connections.

A blocking call runs on Django's connection of the calling thread, inside the transaction that is
open there: a job that is enqueued in ``transaction.atomic`` is stored if and when that commits, and
a web process needs no connections besides Django's. Async calls cannot use those, which belong to
threads; they use pulsed's own, and so do workers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from django.db import connections, transaction

from pulsed.contrib.django.driver import Driver, SqliteDriver
from pulsed.errors import ConfigError, SchemaError, StorageError
from pulsed.model.job import Lease
from pulsed.store.blocking import is_blocking, run_blocking
from pulsed.store.listener import Listener, Wake
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.submitter import Submitter
from pulsed.store.verbs.script import Verb
from pulsed.store.workflows import Transaction

T = TypeVar("T")

log = logging.getLogger("pulsed.store")

OWN_THREADS = "pulsed-"
"""What the names of pulsed's own threads begin with. Nothing else closes their connections."""


class ProjectStore(SqlStore):
    """The store of a project's producers, and of whatever else calls ``app.jobs``."""

    def __init__(self, own: SqlStore, alias: str) -> None:
        super().__init__(own.engine, own.options, clock=own.clock)
        self.own = own
        """The same database, through pulsed's own connections."""
        self._alias = alias
        self._driver = _driver_of(own)

    # -- running verbs --------------------------------------------------------------------------

    async def perform(self, verb: Verb[T]) -> T:
        if is_blocking():
            return self._perform_here(verb)
        if isinstance(self.own, SqliteStore) and self.own.path is None:
            raise ConfigError(
                f"The database {self._alias!r} is in memory, where only Django's connection of "
                "this thread finds it. Async methods and workers need a file: in tests, set "
                "DATABASES[…]['TEST'] = {'NAME': BASE_DIR / 'test.sqlite3'}."
            )
        return await self.own.perform(verb)

    def _perform_here(self, verb: Verb[T]) -> T:
        connection = connections[self._alias]
        try:
            return self._driver.run(connection, verb)
        finally:
            if threading.current_thread().name.startswith(OWN_THREADS):
                connection.close()

    async def _retried(self, verb: Verb[T], *, within: float | None = None) -> T:
        if is_blocking() and self.is_in_transaction():  # only the caller can begin it again
            return await self.perform(verb)
        return await super()._retried(verb, within=within)

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open on Django's connection of this thread."""
        connection = connections[self._alias]
        return connection.in_atomic_block or (
            connection.connection is not None and not connection.get_autocommit()
        )

    async def _make_schema_good(self) -> None:
        try:
            await super()._make_schema_good()
        except SchemaError as error:
            error.args = (f"{error} In a Django project: `python manage.py migrate`.",)
            raise

    # -- notifications --------------------------------------------------------------------------

    async def hint(self, queues: set[str]) -> None:
        if not is_blocking():
            await self.own.hint(queues)
        elif (announcement := self._announcement_to_come()) is not None:
            announcement.queues |= queues
        elif self._can_follow_commits():
            transaction.on_commit(Announcement(self, queues), using=self._alias)

    def _announcement_to_come(self) -> Announcement | None:
        """Return what announces queues after this commit already, whatever savepoint ends now."""
        connection = connections[self._alias]
        for savepoints, call, *_ in connection.run_on_commit:
            is_ours = isinstance(call, Announcement) and call.store is self
            if is_ours and savepoints <= set(connection.savepoint_ids):
                return call
        return None

    def _can_follow_commits(self) -> bool:
        """Whether Django tells of commits: not in a transaction that was begun behind its back."""
        connection = connections[self._alias]
        return bool(connection.in_atomic_block or connection.get_autocommit())

    def notify_workers(self, queues: set[str]) -> None:
        """Wake the workers, after the commit: no error here may look like a failed commit."""
        try:
            if (notification := self._driver.notification(queues)) is not None:
                self._perform_here(notification)
            else:
                run_blocking(self.own.hint(queues))
        except StorageError as error:
            log.debug("workers were not woken, they will find the jobs by polling: %s", error)

    def owe_hint(self, queues: set[str]) -> None:
        self.own.owe_hint(queues)

    # -- what needs connections of pulsed's own -------------------------------------------------

    def joined(self, connection: Any) -> Submitter:
        return self.own.joined(connection)

    def step_transaction(
        self, lease: Lease, *, plain: bool
    ) -> AbstractAsyncContextManager[Transaction]:
        return self.own.step_transaction(lease, plain=plain)

    def listen(self, queues: Sequence[str], wake: Wake) -> AbstractAsyncContextManager[Listener]:
        return self.own.listen(queues, wake)

    async def check(self) -> Mapping[str, str]:
        return await self.own.check()

    async def aclose(self) -> None:
        await self.own.aclose()


class Announcement:
    """Wakes workers after a commit: one notification for all that a transaction enqueues."""

    def __init__(self, store: ProjectStore, queues: set[str]) -> None:
        self.store = store
        self.queues = set(queues)

    def __call__(self) -> None:
        self.store.notify_workers(self.queues)


def _driver_of(own: SqlStore) -> Driver:
    if isinstance(own, SqliteStore):
        return SqliteDriver(own)
    # It needs psycopg, which a project on SQLite has no reason to install.
    from pulsed.contrib.django.postgres_driver import PostgresDriver  # noqa: PLC0415
    from pulsed.store.postgres.store import PostgresStore  # noqa: PLC0415

    assert isinstance(own, PostgresStore), "the URL is that of a database of Django"
    return PostgresDriver(own)

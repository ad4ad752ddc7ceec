"""Django's connections around every run, as Django keeps them around a request.

A worker's threads live long. Without this, a thread would keep a connection that the database or a
firewall has closed, and every job that it runs would fail, at once and one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections

from pulsed.engine.context import Context
from pulsed.errors import Snooze, TransientStorageError

if TYPE_CHECKING:
    from pulsed.app import Pulse

log = logging.getLogger("pulsed.django")

PAUSE = 1.0
"""Seconds until a job that lost its database connection runs again."""
MOST_LOSSES = 10
"""Runs of one job that may lose the connection before that counts as the job's own failure."""
REMEMBERED = 10_000

_lost: OrderedDict[UUID, int] = OrderedDict()
"""How often jobs have lost their connections in this process, the latest last."""
_guard = threading.Lock()
_kept: weakref.WeakSet[Any] = weakref.WeakSet()
"""The connections that were open after a run: Django's CONN_MAX_AGE lets threads keep them."""


def surround(app: Pulse) -> None:
    """Keep Django's connections fresh around the runs of an app."""

    @app.lifespan
    async def closing(_: Pulse) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(close_kept_connections)

    @app.around
    def in_thread(ctx: Context) -> Iterator[None]:
        handler = app.registry.find(ctx.topic)
        if handler is not None and handler.is_async:
            yield
            return
        close_stale_connections()
        try:
            with forgiving_outages(ctx.job_id):
                yield
        finally:
            give_back_connections()

    @app.around
    async def on_loop(ctx: Context) -> AsyncIterator[None]:
        handler = app.registry.find(ctx.topic)
        if handler is None or not handler.is_async:
            yield
            return
        await sync_to_async(close_stale_connections)()
        try:
            with forgiving_outages(ctx.job_id):
                yield
        finally:
            await sync_to_async(give_back_connections)()


def close_stale_connections() -> None:
    """Close the connections of this thread that are old, in error or dead."""
    for connection in _idle_connections():
        connection.close_if_unusable_or_obsolete()
        if connection.connection is not None and not connection.is_usable():
            connection.close()


def _idle_connections() -> Iterator[Any]:
    """Yield the connections of this thread that are in no transaction.

    Only in tests is one in a transaction around a run: that of a ``TestCase``, which must stay.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.in_atomic_block:
            yield connection


def give_back_connections() -> None:
    """Close the connections of this thread that are old or in error, and remember the others."""
    for connection in _idle_connections():
        connection.close_if_unusable_or_obsolete()
        if connection.connection is not None:
            _kept.add(connection)


def close_kept_connections() -> None:
    """Close the connections that threads of the worker have kept, when it ends."""
    while _kept:
        connection = _kept.pop()
        connection.inc_thread_sharing()  # its own thread is idle now
        connection.close()
        connection.dec_thread_sharing()


@contextmanager
def forgiving_outages(job_id: UUID) -> Iterator[None]:
    """Have a run that lost its database tried again, without counting an attempt.

    Only so often: a job may be the reason why its connection breaks.
    """
    try:
        yield
    except Exception as error:
        if not lost_the_database(error) or _losses(job_id) > MOST_LOSSES:
            raise
        log.warning("job %s lost its database, and runs again in %g s: %s", job_id, PAUSE, error)
        raise Snooze(PAUSE) from error
    with _guard:
        _lost.pop(job_id, None)


def lost_the_database(error: BaseException) -> bool:
    """Whether an error says that the database was away, or SQLite's file was locked."""
    if isinstance(error, TransientStorageError):
        return True
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0)
        return bool(code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
    if cause is None or type(cause).__module__.partition(".")[0] != "psycopg":
        return False
    from pulsed.store.postgres.errors import lost_the_server  # noqa: PLC0415 - only with psycopg

    return isinstance(error, InterfaceError) or lost_the_server(cause)  # it is closed, or broke


def _losses(job_id: UUID) -> int:
    with _guard:
        losses = _lost[job_id] = _lost.pop(job_id, 0) + 1
        if len(_lost) > REMEMBERED:
            _lost.popitem(last=False)
    return losses

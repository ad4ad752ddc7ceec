"""The life of a ``Pulse`` beside that of an ASGI application, perhaps with a worker inside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from pulsed.app import Pulse
from pulsed.engine.worker.options import WorkerSettings
from pulsed.engine.worker.worker import Exit, Worker
from pulsed.errors import ConfigError, TransientStorageError

STATE = "pulse"
"""Where the state of a request has the app."""
DRAIN_TIMEOUT = 10.0
"""Seconds that the jobs of an embedded worker may take to end when the application stops."""

log = logging.getLogger("pulsed.web")


def lifespan(
    app: Pulse, *, worker: WorkerSettings | bool = False
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Pulse]]]:
    """Return the ``lifespan=`` of a Starlette or FastAPI application that uses an app.

    It is for applications without one of their own; inside of yours, use ``running()``.
    """

    def life(_: Any) -> AbstractAsyncContextManager[dict[str, Pulse]]:
        return running(app, worker=worker)

    return life


@asynccontextmanager
async def running(
    app: Pulse, *, worker: WorkerSettings | bool = False
) -> AsyncIterator[dict[str, Pulse]]:
    """Open an app, creating its tables, and close it in the end; gives the state of requests.

    With ``worker=True`` or settings such as ``{"concurrency": 10}``, a worker runs in the same
    event loop. When the application stops, its jobs have ten seconds to end unless you set
    ``drain_timeout``; then they are handed back to their queues.
    """
    async with app:
        await _open(app)
        if worker is False:
            yield {STATE: app}
            return
        settings: WorkerSettings = {"drain_timeout": DRAIN_TIMEOUT}
        async with _working(app.worker(**settings | ({} if worker is True else worker))):
            yield {STATE: app}


def pulse_of(connection: HTTPConnection) -> Pulse:
    """Return the app of the application that answers a request: a dependency, in FastAPI."""
    found = getattr(connection.state, STATE, None)
    if isinstance(found, Pulse):
        return found
    raise ConfigError(
        "This application has no pulsed app. Give it one: FastAPI(lifespan=lifespan(app)), or in "
        "your own lifespan `async with running(app) as state: yield state`."
    )


async def _open(app: Pulse) -> None:
    """Use the database once: a wrong URL or schema is an error at the start of the application."""
    try:
        await app.store.now()
    except TransientStorageError as error:
        log.warning("the database is not there yet (%s); nothing is enqueued until it is", error)


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    """Run a worker meanwhile; one that ends early is logged, and raises at the end."""
    task = asyncio.create_task(worker.run(), name="pulsed-worker")
    task.add_done_callback(_say_if_failed)
    try:
        yield
    finally:
        worker.stop()
        await task


def _say_if_failed(task: asyncio.Task[Exit]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the embedded worker has failed, and runs no jobs any more", exc_info=error)

"""pulsed's backend in the places of the two that Django brings, with what their tests rely on."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.tasks.backends import dummy, immediate

from pulsed.contrib.django import app
from pulsed.contrib.django.backend import PulsedBackend
from pulsed.contrib.django.tables import empty_tables
from pulsed.testing import adrain, drain


class InPlaceOfDummy(PulsedBackend):
    """Keeps tasks, which no worker runs; a test can see and remove them."""

    @property
    def results(self) -> list[Any]:
        """What is enqueued, oldest first; read in a thread for tests on an event loop."""
        if asyncio._get_running_loop() is None:
            return self._read()
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(self._read_and_close).result()

    def _read(self) -> list[Any]:
        return [self.get_result(str(job.id)) for job in reversed(list(app.jobs.list()))]

    def _read_and_close(self) -> list[Any]:
        try:
            return self._read()
        finally:
            connection.close()

    def clear(self) -> None:
        """Remove all tasks."""
        empty_tables(app, "default")


class InPlaceOfImmediate(PulsedBackend):
    """Has a worker run each task, once and to its end, before `enqueue` returns.

    Not in a transaction, whose tasks a worker does not see before the commit.
    """

    def __init__(self, alias: str, params: Any) -> None:
        super().__init__(alias, params)
        self.defaults["max_attempts"] = 1

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a task, and run it."""
        result = super().enqueue(task, args, kwargs)
        if not connection.in_atomic_block:
            drain(app, raises=False)
            result.refresh()
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a task, and run it on this event loop."""
        result = await sync_to_async(super().enqueue)(task, args, kwargs)
        await adrain(app, raises=False)
        await result.arefresh()
        return result


def take_their_places() -> None:
    """Have settings and tests that name Django's backends get these."""
    dummy.DummyBackend = InPlaceOfDummy
    immediate.ImmediateBackend = InPlaceOfImmediate

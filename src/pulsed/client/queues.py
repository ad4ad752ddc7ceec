"""``app.queues`` and ``app.topics``: see what governs jobs, pause, resume and limit them."""

from __future__ import annotations

import builtins
from datetime import timedelta
from typing import Any

from msgspec import UNSET, UnsetType

from pulsed.client.job import Client
from pulsed.client.operator import operator
from pulsed.client.stats import last_hour_by_queue
from pulsed.engine.queues import QueueState, read_queues
from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_name
from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.model.rate import Rate
from pulsed.store.blocking import blocking
from pulsed.store.controls import ControlStore


class Queues:
    """The queues of an app's database: ``app.queues``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _controls(self) -> ControlStore:
        return self._client.store().controls

    async def alist(self) -> builtins.list[QueueState]:
        """Read the queues: what is due and runs in each, who takes from it, what governs it.

        The longest waiting comes first. A queue without jobs is listed while a worker takes from
        it, while it is paused or limited, and for an hour after its last job.
        """
        store = self._client.store()
        return await read_queues(store, await last_hour_by_queue(store))

    async def aget(self, name: str) -> Control:
        """Read what governs a queue: whether it is paused, and its limits."""
        return await self._controls.get(ControlScope.QUEUE, checked_name("queue", name))

    async def apause(self, name: str) -> Control:
        """Start no more jobs of a queue; those that run continue.

        Once it returns, no worker claims a job of the queue. Jobs that were claimed before may just
        be starting.
        """
        checked = checked_name("queue", name)
        return await self._controls.pause(ControlScope.QUEUE, checked, by=operator())

    async def aresume(self, name: str) -> Control:
        """Start jobs of a queue again, at once."""
        checked = checked_name("queue", name)
        return await self._controls.resume(ControlScope.QUEUE, checked, by=operator())

    async def alimit(
        self,
        name: str,
        *,
        running: int | UnsetType | None = UNSET,
        rate: Rate | UnsetType | None = UNSET,
        age: float | timedelta | UnsetType | None = UNSET,
    ) -> Control:
        """Set limits of a queue at run time, instead of those that the code declares.

        What you leave out stays as it is; None means no such limit. It counts until ``clear``.

        Args:
            name: The queue.
            running: The most jobs that run at the same time, on all workers.
            rate: How often jobs start.
            age: Seconds of waiting that raise the priority of a job by one.
        """
        checked = checked_name("queue", name)
        given: dict[str, Any] = {"running": running, "rate": rate, "age": _seconds(age)}
        fields = {key: value for key, value in given.items() if value is not UNSET}
        if not fields:
            raise InvalidOption("limit() needs running=, rate= or age=; clear() takes limits away.")
        numbers = Numbers(**fields)
        return await self._controls.override(
            ControlScope.QUEUE, checked, numbers, fields=list(fields), by=operator()
        )

    async def aclear(self, name: str) -> Control:
        """Take an operator's limits away: those that the code declares count again."""
        checked = checked_name("queue", name)
        return await self._controls.clear(ControlScope.QUEUE, checked, by=operator())

    list = blocking(alist)
    get = blocking(aget)
    pause = blocking(apause)
    resume = blocking(aresume)
    limit = blocking(alimit)
    clear = blocking(aclear)


class TopicActs:
    """The topics of an app's database: ``app.topics``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _controls(self) -> ControlStore:
        return self._client.store().controls

    async def apaused(self) -> builtins.list[Control]:
        """Read the topics that are paused, each with who did it and when."""
        found = [control async for control in self._controls.each(ControlScope.TOPIC)]
        return [control for control in found if control.paused]

    async def apause(self, name: str) -> Control:
        """Start no more jobs of a topic, in whichever queue; those that run continue."""
        checked = checked_name("topic", name)
        return await self._controls.pause(ControlScope.TOPIC, checked, by=operator())

    async def aresume(self, name: str) -> Control:
        """Start jobs of a topic again."""
        checked = checked_name("topic", name)
        return await self._controls.resume(ControlScope.TOPIC, checked, by=operator())

    paused = blocking(apaused)
    pause = blocking(apause)
    resume = blocking(aresume)


def _seconds(age: float | timedelta | UnsetType | None) -> float | UnsetType | None:
    return age.total_seconds() if isinstance(age, timedelta) else age

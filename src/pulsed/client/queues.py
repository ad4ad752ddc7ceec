"""``app.queues`` and ``app.topics``: see what governs jobs, pause, resume and limit them."""

from __future__ import annotations

import builtins
from datetime import timedelta

from msgspec import UNSET, UnsetType

from pulsed.client.controls import Governing, Pausing
from pulsed.client.stats import last_hour_by_queue
from pulsed.engine.queues import QueueState, read_queues
from pulsed.model.control import Control, ControlScope
from pulsed.model.rate import Rate
from pulsed.store.blocking import blocking


class Queues(Governing):
    """The queues of an app's database: ``app.queues``."""

    _scope = ControlScope.QUEUE
    _noun = "queue"

    async def alist(self) -> builtins.list[QueueState]:
        """Read the queues: what is due and runs in each, who takes from it, what governs it.

        The longest waiting comes first. A queue without jobs is listed while a worker takes from
        it, while it is paused or limited, and for an hour after its last job.
        """
        store = self._client.store()
        return await read_queues(store, await last_hour_by_queue(store))

    async def aget(self, name: str) -> Control:
        """Read what governs a queue: whether it is paused, and its limits."""
        return await self._controls.get(self._scope, self._checked(name))

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
        needed = "limit() needs running=, rate= or age=; clear() takes limits away."
        given = {"running": running, "rate": rate, "age": _seconds(age)}
        return await self._override(name, given, needed)

    list = blocking(alist)
    get = blocking(aget)
    limit = blocking(alimit)


class TopicActs(Pausing):
    """The topics of an app's database: ``app.topics``. A pause counts in all queues."""

    _scope = ControlScope.TOPIC
    _noun = "topic"

    async def apaused(self) -> builtins.list[Control]:
        """Read the topics that are paused, each with who did it and when."""
        found = [control async for control in self._controls.each(self._scope)]
        return [control for control in found if control.paused]

    paused = blocking(apaused)


def _seconds(age: float | timedelta | UnsetType | None) -> float | UnsetType | None:
    return age.total_seconds() if isinstance(age, timedelta) else age

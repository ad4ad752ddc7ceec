"""How much work there is, by queue and topic: for metrics and autoscalers.

Cheap, however large the table is, and bounded in time: callers share a read, an answer stands for
some seconds, and no caller waits longer than it asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pulsed.engine.governed import GOVERNED_KEPT, NOTHING, Governed, read_governed
from pulsed.engine.shared_reads import SharedReads
from pulsed.errors import StorageError
from pulsed.store.base import Store

KEEP = 5.0
"""Seconds for which an answer stands."""
READ_WITHIN = 15.0
"""Seconds after which a read is given up; a caller may give up earlier."""
GOVERNED_WITHIN = 1.0
"""Seconds for which the load waits for what governs it; after that, it has what was read before."""

LaneKey: TypeAlias = tuple[str, str]
"""A queue and a topic."""


class Load(NamedTuple):
    """The work of one topic in one queue."""

    due: int = 0
    oldest: float = 0.0
    """Seconds for which the oldest job has been due."""
    at_least: bool = False
    """There are more due jobs than counted."""
    running: int = 0

    @property
    def jobs(self) -> int:
        """Jobs that are due or run."""
        return self.due + self.running

    def plus(self, other: Load) -> Load:
        """Return the work of both."""
        return Load(
            self.due + other.due,
            max(self.oldest, other.oldest),
            self.at_least or other.at_least,
            self.running + other.running,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """The work of all queues, as it was read."""

    lanes: Mapping[LaneKey, Load]
    at: float
    """When, by the reader's clock."""
    governed: Governed = NOTHING
    """What governs the queues, if that was asked for."""


class LoadReader:
    """Reads the load of a store. Belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        *,
        keep: float = KEEP,
        clock: Callable[[], float] = time.monotonic,
        with_controls: bool = False,
    ) -> None:
        self._store = store
        self._with_controls = with_controls
        self._governed = NOTHING
        self.clock = clock
        self._reads = SharedReads(keep, clock)

    async def read(self, *, within: float) -> Reading:
        """Return the load, at most some seconds old.

        Raises what the read raised; a failure stands as long as an answer. ``StorageError`` if it
        takes longer than ``within`` seconds: then the read goes on, for a later call.
        """
        try:
            async with asyncio.timeout(within):
                reading = await self._reads.get("load", self._attempt)
        except TimeoutError:
            raise StorageError("The database did not answer in time.") from None
        if isinstance(reading, Exception):
            raise reading
        return reading

    async def _attempt(self) -> Reading | Exception:
        """Return the load or the error, which spares a database that is down."""
        try:
            async with asyncio.timeout(READ_WITHIN):
                return await self._read_now()
        except TimeoutError:
            return StorageError("The database did not answer in time.")
        except Exception as error:  # noqa: BLE001 - the callers raise it
            return error

    async def _read_now(self) -> Reading:
        store = self._store
        now, backlog, running = await asyncio.gather(store.now(), store.backlog(), store.running())
        lanes = {
            (each.queue, each.topic): Load(
                each.due, max(0.0, (now - each.oldest).total_seconds()), each.at_least
            )
            for each in backlog
        }
        for each in running:
            key = each.queue, each.topic
            lanes[key] = lanes.get(key, Load())._replace(running=each.running)
        return Reading(lanes, self.clock(), await self._read_governed())

    async def _read_governed(self) -> Governed:
        """Read the controls. They hold up the load only for a moment, however many there are."""
        if self._with_controls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOVERNED_WITHIN):
                    self._governed = await self._reads.get(
                        "governed", lambda: read_governed(self._store), seconds=GOVERNED_KEPT
                    )
        return self._governed

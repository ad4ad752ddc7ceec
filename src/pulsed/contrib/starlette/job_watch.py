"""Follows the jobs of open event streams: one read per tick for all of them, and none without."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TypeAlias
from uuid import UUID

from pulsed.errors import StorageError
from pulsed.model.job import JobRow
from pulsed.model.timetable import to_micros

TICK = 0.5
"""Seconds between two reads."""
AT_ONCE = 500
"""Jobs in one read."""

log = logging.getLogger("pulsed.web")

Read: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Mapping[UUID, JobRow]]]


def version_of(row: JobRow) -> str:
    """Return a text that changes with the job, and not with the heartbeats of its run."""
    return f"{to_micros(row.updated_at)}-{row.status}"


class JobWatch:
    """The jobs that the streams of one event loop follow."""

    def __init__(self, read: Read, *, tick: float) -> None:
        self._read = read
        self._tick = tick
        self._changed = asyncio.Condition()
        self._streams: Counter[UUID] = Counter()
        self._rows: dict[UUID, JobRow | None] = {}
        self._polling: asyncio.Task[None] | None = None
        self.reads = 0
        """How many reads there were."""

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    @contextmanager
    def following(self, row: JobRow) -> Iterator[None]:
        """Follow a job meanwhile, from a row that was just read."""
        self._streams[row.id] += 1
        self._rows[row.id] = row
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="pulsed-job-watch")
        try:
            yield
        finally:
            self._streams[row.id] -= 1
            if not self._streams[row.id]:
                del self._streams[row.id]
                self._rows.pop(row.id, None)

    def latest(self, row: JobRow) -> JobRow | None:
        """Return a followed job as it was last read; None if it was removed."""
        return self._rows[row.id]

    async def change(self, row: JobRow) -> JobRow | None:
        """Wait until a job has changed since a row was read; None if it was removed."""

        def has_changed() -> bool:
            latest = self._rows[row.id]
            return latest is None or version_of(latest) != version_of(row)

        async with self._changed:
            await self._changed.wait_for(has_changed)
            return self._rows[row.id]

    async def _poll(self) -> None:
        while self._streams:
            await asyncio.sleep(self._tick)
            await self.tick()

    async def tick(self) -> None:
        """Read all followed jobs once; the next tick makes up for one that fails."""
        ids = iter(list(self._streams))
        try:
            while part := list(islice(ids, AT_ONCE)):
                self.reads += 1
                found = await self._read(part)
                self._rows |= {each: found.get(each) for each in part if each in self._streams}
        except StorageError as error:
            log.warning("event streams of jobs cannot read the database: %s", error)
        async with self._changed:
            self._changed.notify_all()

"""The stream of a job, as its readers see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pulsed.client.signals import not_found
from pulsed.handler.envelope import plain_value
from pulsed.handler.options import checked_count
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.stream import LAST_POSITION, StreamItem
from pulsed.store.blocking import pause, refuse_in_event_loop, run_blocking

if TYPE_CHECKING:
    from pulsed.store.base import Store

PAGE = 100
"""Items in one read: at most as many times the largest item."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two reads: short after an item, as more may follow."""


class Item(NamedTuple):
    """What ``ctx.emit`` was given, and where in the job's stream it is."""

    position: int
    """Its number in the stream, from 1. Pass the last one you have as ``after=`` to go on."""
    value: Any
    run: int
    """Rises when the job is run again: items that were not final by then come again."""
    emitted_at: datetime


class StreamReader:
    """Reads the stored items of a job's stream, from a position on."""

    def __init__(
        self, store: Callable[[], Store], job_id: UUID, *, after: int = 0, follow: bool = True
    ) -> None:
        self._store = store
        self._follow = follow
        self._was_found = False
        self.job_id = job_id
        self.position = checked_count("after", after, 0, LAST_POSITION)
        """That of the last item you got."""

    async def next_items(self) -> Sequence[StreamItem]:
        """Wait for items after the position; none if there will not be any."""
        wait = FIRST_PAUSE
        while True:
            page = await self._store().streams.read(self.job_id, after=self.position, limit=PAGE)
            if page.status is None and not self._was_found:
                raise not_found(self.job_id)
            self._was_found = True
            if page.items or page.status is None or page.status in TERMINAL or not self._follow:
                return page.items
            await pause(wait)
            wait = min(wait * 1.5, LONGEST_PAUSE)


class ItemStream(StreamReader):
    """The items of a job's stream, for ``async for`` and for ``for``; ends when the job ends.

    Iterate again, and it goes on after the last item that you got.
    """

    async def __aiter__(self) -> AsyncIterator[Item]:
        while items := await self.next_items():
            for item in items:
                self.position = item.position
                yield decoded(self.job_id, item)

    def __iter__(self) -> Iterator[Item]:
        refuse_in_event_loop("async for")
        while items := run_blocking(self.next_items()):
            for item in items:
                self.position = item.position
                yield decoded(self.job_id, item)


def decoded(job_id: UUID, item: StreamItem) -> Item:
    """Return a stored item with its value; raises ``CodecError`` if it is encrypted."""
    what = f"Item {item.position} in the stream of job {job_id}"
    return Item(item.position, plain_value(what, item.value), item.run, item.emitted_at)

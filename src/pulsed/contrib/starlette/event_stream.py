"""A job's state and progress as server-sent events, until it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response, StreamingResponse

from pulsed.app import Pulse
from pulsed.client.job import Job
from pulsed.client.stream import PAGE, decoded
from pulsed.contrib.starlette.job_watch import TICK, JobWatch, version_of
from pulsed.contrib.starlette.life import pulse_of
from pulsed.errors import InvalidOption, JobNotFound, StorageError
from pulsed.model.job import JobRow, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.stream import StreamItem, StreamPage
from pulsed.store.per_loop import PerLoop

log = logging.getLogger("pulsed.web")

HEARTBEAT = 5.0
"""Seconds after which a silent stream sends a comment, so that proxies keep it open and a client
that went away is noticed."""
LONGEST_STREAM = 15.0
"""Seconds after which a stream ends and the browser opens another one: an application that stops
waits for open answers."""
MOST_STREAMS = 1_000
"""Streams of one event loop."""
MOST_WITH_ITEMS = 200
"""Streams of one event loop if one with items is to be opened: each of those reads for itself."""
FULL = b"retry: 5000\n\n"
"""The whole answer to a request of a burst, which passed the first check when there still was room:
the browser comes back in five seconds."""
LAST_ID = "end"
"""The id of the last event. A browser that connects again after it is told to stop."""
LONGEST_POSITION = 15
"""Digits of a position."""
REMOVED = "REMOVED"
"""The status of a job that retention has removed meanwhile."""

Describe = Callable[[Job[Any]], Mapping[str, Any]]

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_watches: WeakKeyDictionary[Pulse, PerLoop[JobWatch]] = WeakKeyDictionary()


def describe(job: Job[Any]) -> Mapping[str, Any]:
    """Return what a stream tells about a job unless told otherwise: no errors, and no results."""
    return {
        "id": str(job.id),
        "topic": job.topic,
        "status": job.status,
        "attempts": job.attempts,
        "progress": job.progress,
    }


async def job_events(
    connection: HTTPConnection,
    job_id: UUID | str,
    *,
    app: Pulse | None = None,
    describe: Describe = describe,
    items: bool = False,
) -> Response:
    """Answer a request with the states of a job as server-sent events, from now until it ends.

    Events are named ``job``, and the last one ``end``; their data is what ``describe`` returns.
    With ``items``, what the job emits is sent as well, in events named ``item``. The browser
    connects again by itself, and gets what it has not seen. A job that does not exist is a 404, and
    more than 1,000 streams, or 200 with items, are a 503. Who may follow a job is for you to check
    before.
    """
    app = app or pulse_of(connection)
    watch = watch_of(app)
    if watch.streams >= (MOST_WITH_ITEMS if items else MOST_STREAMS):
        raise HTTPException(503, "Too many event streams.", {"retry-after": "5"})
    seen = connection.headers.get("last-event-id", "")
    if seen == LAST_ID:
        return Response(status_code=204)  # it ends the reconnects of a browser
    try:
        job = await app.jobs.aget(job_id)
    except (JobNotFound, InvalidOption):
        raise HTTPException(404, "There is no such job.") from None
    stream = _Stream(app, watch, describe)
    events = stream.with_items(job.row, seen) if items else stream.events(job.row, seen)
    return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)


def watch_of(app: Pulse) -> JobWatch:
    """Return what follows the jobs of an app in this event loop."""
    here = _watches.setdefault(app, PerLoop())
    return here.here(lambda: JobWatch(app.store.get, tick=TICK))


class _Stream:
    """One answer."""

    def __init__(self, app: Pulse, watch: JobWatch, describe: Describe) -> None:
        self._app = app
        self._watch = watch
        self._describe = describe

    async def events(self, row: JobRow, seen: str) -> AsyncGenerator[bytes]:
        """Yield the current state unless the browser has it, and every later one."""
        now = asyncio.get_running_loop().time
        end = now() + LONGEST_STREAM
        if self._watch.streams >= MOST_STREAMS:
            yield FULL
            return
        with self._watch.following(row):
            yield b"retry: 1000\n\n"
            if version_of(row) != seen:
                yield self._event(row)
            while row.status not in TERMINAL:
                if now() >= end:
                    return
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        changed = await self._watch.change(row)
                except TimeoutError:
                    yield b": heartbeat\n\n"
                    continue
                if changed is None:
                    yield _text("end", LAST_ID, {"id": str(row.id), "status": REMOVED})
                    return
                row = changed
                yield self._event(row)

    async def with_items(self, row: JobRow, seen: str) -> AsyncGenerator[bytes]:
        """Yield the same, and what the job emits, after the position that the browser has."""
        now = asyncio.get_running_loop().time
        end, quiet_since = now() + LONGEST_STREAM, now()
        version, position = _parsed(seen)
        if self._watch.streams >= MOST_WITH_ITEMS:
            yield FULL
            return
        with self._watch.following(row):
            yield b"retry: 1000\n\n"
            while now() < end:
                page = await self._read(row, position)
                if version_of(row) != version and row.status not in TERMINAL:
                    version, quiet_since = version_of(row), now()
                    yield self._event(row, position)
                for item in page.items:
                    position, quiet_since = item.position, now()
                    yield self._item(row, item)
                if len(page.items) == PAGE:
                    continue
                if page.status is None or page.status in TERMINAL:
                    yield await self._end(row, position)
                    return
                if now() >= quiet_since + HEARTBEAT:
                    quiet_since = now()
                    yield b": heartbeat\n\n"
                await asyncio.sleep(TICK)
                row = self._watch.latest(row) or row

    async def _read(self, row: JobRow, after: int) -> StreamPage:
        try:
            return await self._app.store.streams.read(row.id, after=after, limit=PAGE)
        except StorageError as error:  # the next read makes up for it
            log.warning("an event stream of job %s cannot read the database: %s", row.id, error)
            return StreamPage([], Status.RUNNING)

    async def _end(self, row: JobRow, position: int) -> bytes:
        """Return the last event: the job has ended and all its items are sent, or it is gone."""
        latest = (await self._app.store.get([row.id])).get(row.id)
        if latest is None:
            return _text("end", LAST_ID, {"id": str(row.id), "status": REMOVED})
        return self._event(latest, position)

    def _event(self, row: JobRow, position: int | None = None) -> bytes:
        is_last = row.status in TERMINAL
        data = self._describe(self._app.jobs.of_row(row))
        if is_last:
            return _text("end", LAST_ID, data)
        at = "" if position is None else f"/{position}"
        return _text("job", version_of(row) + at, data)

    def _item(self, row: JobRow, stored: StreamItem) -> bytes:
        item = decoded(row.id, stored)
        data = {"position": item.position, "value": item.value, "run": item.run}
        return _text("item", f"{version_of(row)}/{item.position}", data)


def _parsed(seen: str) -> tuple[str, int]:
    """Return the version and the position in the id of the last event that a browser has seen."""
    version, _, position = seen.partition("/")
    known = position.isascii() and position.isdecimal() and len(position) <= LONGEST_POSITION
    return version, int(position) if known else 0


def _text(event: str, event_id: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\nid: %s\ndata: %s\n\n" % (
        event.encode(),
        event_id.encode(),
        msgspec.json.encode(data),
    )

"""A job's state and progress as server-sent events, until it ends."""

from __future__ import annotations

import asyncio
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
from pulsed.contrib.starlette.job_watch import TICK, JobWatch, version_of
from pulsed.contrib.starlette.life import pulse_of
from pulsed.errors import InvalidOption, JobNotFound
from pulsed.model.job import JobRow
from pulsed.model.lifecycle import TERMINAL
from pulsed.store.per_loop import PerLoop

HEARTBEAT = 5.0
"""Seconds after which a silent stream sends a comment, so that proxies keep it open and a client
that went away is noticed."""
LONGEST_STREAM = 15.0
"""Seconds after which a stream ends and the browser opens another one: an application that stops
waits for open answers."""
MOST_STREAMS = 1_000
"""Streams of one event loop."""
LAST_ID = "end"
"""The id of the last event. A browser that connects again after it is told to stop."""
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
) -> Response:
    """Answer a request with the states of a job as server-sent events, from now until it ends.

    Events are named ``job``, and the last one ``end``; their data is what ``describe`` returns. The
    browser connects again by itself, and gets the current state first. A job that does not exist is
    a 404, and more than 1,000 streams are a 503. Who may follow a job is for you to check before.
    """
    app = app or pulse_of(connection)
    watch = watch_of(app)
    if watch.streams >= MOST_STREAMS:
        raise HTTPException(503, "Too many event streams.", {"retry-after": "5"})
    seen = connection.headers.get("last-event-id", "")
    if seen == LAST_ID:
        return Response(status_code=204)  # it ends the reconnects of a browser
    try:
        job = await app.jobs.aget(job_id)
    except (JobNotFound, InvalidOption):
        raise HTTPException(404, "There is no such job.") from None
    stream = _Stream(app, watch, describe).events(job.row, seen)
    return StreamingResponse(stream, media_type="text/event-stream", headers=_HEADERS)


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
        yield b"retry: 1000\n\n"
        with self._watch.following(row):
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

    def _event(self, row: JobRow) -> bytes:
        is_last = row.status in TERMINAL
        data = self._describe(self._app.jobs.of_row(row))
        return _text("end" if is_last else "job", LAST_ID if is_last else version_of(row), data)


def _text(event: str, event_id: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\nid: %s\ndata: %s\n\n" % (
        event.encode(),
        event_id.encode(),
        msgspec.json.encode(data),
    )

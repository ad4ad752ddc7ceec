"""Wakes a worker when another process has written to the same SQLite file.

On Linux, inotify reports changes of the write-ahead log, which costs nothing while the file is
idle. The event comes just before the commit is visible, so the watcher then polls briefly for the
commit. Elsewhere it polls every 50 ms. It polls ``data_version`` on this process's writing
connection, which ignores that connection's own commits: this process notifies its listeners of
those directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import selectors
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from pulsed.store.listener import Listener, Wake
from pulsed.store.sqlite.writer import Writer

FIRST_POLL_AFTER = 0.00015
"""Seconds between the first two polls after an event; the interval then grows."""
POLL_GROWTH = 1.25
POLL_FOR = 0.02
SHORTEST_WAIT = 0.001
"""Seconds; the shortest wait for an event. A shorter pause is a plain sleep."""
REST_WHILE_WRITING = 0.001
"""Seconds between two polls while this process itself is writing."""
POLL_WITHOUT_EVENTS = 0.05
REST = 0.003
"""Debounce: the least seconds between two wake-ups, since a busy file changes all the time."""

_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_IN_NONBLOCK, _IN_CLOEXEC = 0o4000, 0o2000000
_EVENT = struct.Struct("iIII")


@asynccontextmanager
async def listening(
    path: Path | None,
    writer: Writer,
    listeners: list[Wake],
    wake: Wake,
) -> AsyncIterator[Listener]:
    """Call ``wake`` in this loop when jobs may have arrived, from this process or another."""
    loop = asyncio.get_running_loop()

    def wake_loop(names: Collection[str] | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            loop.call_soon_threadsafe(wake, names)

    listeners.append(wake_loop)
    watcher = None if path is None else FileWatcher(path, writer, wake_loop)
    try:
        yield watcher or InProcess()
    finally:
        if wake_loop in listeners:
            listeners.remove(wake_loop)
        if watcher is not None:
            watcher.stop()


class InProcess(Listener):
    """The listener of a database in memory, which no other process can write to."""

    healthy = True


class FileWatcher(Listener):
    """A listener with a thread that waits for other processes' commits to the file."""

    def __init__(self, path: Path, writer: Writer, changed: Callable[[], None]) -> None:
        self._path = path
        self._writer = writer
        self._seen: int | None = None
        self._changed = changed
        self._events: int | None = None
        self._stopping = threading.Event()
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="pulsed-wake", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # it has ended by itself
            os.write(self._stop_writer, b"x")
        self._thread.join(timeout=5)
        os.close(self._stop_writer)

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._stop_reader)
            self._events = _watch_folder(self._path.parent)
            if self._events is not None:
                stack.callback(os.close, self._events)
            while not self._stopping.is_set():
                if self._log_changes(within=None) and self._others_commit():
                    self._changed()
                    self._stopping.wait(REST)

    def _log_changes(self, *, within: float | None) -> bool:
        """Wait for the log to change; without inotify, always True after the polling interval."""
        if self._events is None:
            watched, within = [self._stop_reader], POLL_WITHOUT_EVENTS
        else:
            watched = [self._stop_reader, self._events]
        ready = _readable(watched, within)
        if self._events is None:
            return True
        return self._events in ready and _is_about(self._events, f"{self._path.name}-wal")

    def _others_commit(self) -> bool:
        """Poll for another connection's commit, for ``POLL_FOR`` seconds after the last event."""
        pause, commits = FIRST_POLL_AFTER, self._writer.commits
        give_up_at = time.monotonic() + POLL_FOR
        while not self._stopping.is_set():
            version = self._writer.version_of_others()
            if version is None or version != self._seen:
                self._seen = version
                return True
            if self._events is None or time.monotonic() >= give_up_at:
                break
            if commits != self._writer.commits:
                commits = self._writer.commits
                time.sleep(REST_WHILE_WRITING)
                continue
            if pause < SHORTEST_WAIT:
                time.sleep(pause)
            elif self._log_changes(within=pause):
                pause, give_up_at = FIRST_POLL_AFTER, time.monotonic() + POLL_FOR
                continue
            # Bounded: events of other files in the folder end a wait at once.
            pause = min(pause * POLL_GROWTH, POLL_FOR)
        return False


def _readable(descriptors: list[int], timeout: float | None) -> list[int]:
    """Return the readable descriptors. Not by ``select``, which fails above 1023."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(timeout)]


def _watch_folder(folder: Path) -> int | None:
    """Return an inotify descriptor for changes of files in ``folder``; None if unavailable."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        if descriptor < 0:
            return None
        if libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_MODIFY | _IN_CREATE) < 0:
            os.close(descriptor)
            return None
    except (OSError, AttributeError):
        return None
    return descriptor


def _is_about(events: int, name: str) -> bool:
    """Read all pending events; returns whether one of them is about the file ``name``."""
    try:
        data = os.read(events, 65_536)
    except BlockingIOError:
        return False
    wanted = os.fsencode(name)
    offset, changed = 0, False
    while offset < len(data):
        _, _, _, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        changed = changed or data[offset : offset + length].rstrip(b"\0") == wanted
        offset += length
    return changed

"""Waking a worker when another process has written to the same SQLite file.

On Linux the kernel tells when the write-ahead log changes (inotify), which costs nothing while
nothing happens. The event comes just before the commit can be seen, so the watcher then looks at
``data_version`` every now and then for a moment. Elsewhere it looks every 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import selectors
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pulsed.store.base import Listener

LOOK_AFTER = 0.00015
"""Seconds until the second look; the time between two looks then grows."""
LOOKS_GROW_BY = 1.25
LOOK_FOR = 0.02
LOOK_WITHOUT_EVENTS = 0.05
REST = 0.003
"""A busy file changes all the time; its worker need not be told more often than this."""

_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_IN_NONBLOCK, _IN_CLOEXEC = 0o4000, 0o2000000
_EVENT = struct.Struct("iIII")


@asynccontextmanager
async def listening(
    path: Path | None, listeners: list[Callable[[], None]], wake: Callable[[], None]
) -> AsyncIterator[Listener]:
    """Call ``wake`` in this loop when jobs may have arrived, from this process or another."""
    loop = asyncio.get_running_loop()

    def wake_loop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            loop.call_soon_threadsafe(wake)

    listeners.append(wake_loop)
    watcher = None if path is None else FileWatcher(path, wake_loop)
    try:
        yield watcher or InProcess()
    finally:
        if wake_loop in listeners:
            listeners.remove(wake_loop)
        if watcher is not None:
            watcher.stop()


class InProcess(Listener):
    """A database in memory has no writers elsewhere."""

    healthy = True


class FileWatcher(Listener):
    """A thread that waits for the file to change."""

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        self._path = path
        self._changed = changed
        self._stop_reader, self._stop_writer = os.pipe()
        self._stopping = threading.Event()
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
            events = _watch_folder(self._path.parent)
            if events is not None:
                stack.callback(os.close, events)
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            stack.callback(connection.close)
            self._tell_changes(connection, events)

    def _tell_changes(self, connection: sqlite3.Connection, events: int | None) -> None:
        idle = LOOK_WITHOUT_EVENTS if events is None else None
        watched = [self._stop_reader] if events is None else [self._stop_reader, events]
        seen = _data_version(connection)
        while self._stop_reader not in _readable(watched, idle):
            if events is not None and not _log_changed(events, f"{self._path.name}-wal"):
                continue
            version = self._look(connection, seen, LOOK_FOR if events is not None else 0)
            if version != seen:
                seen = version
                self._changed()
                self._stopping.wait(REST)

    def _look(self, connection: sqlite3.Connection, seen: int, patience: float) -> int:
        give_up_at = time.monotonic() + patience
        pause = LOOK_AFTER
        while True:
            version = _data_version(connection)
            if version != seen or time.monotonic() >= give_up_at:
                return version
            if self._stopping.wait(pause):
                return seen
            pause *= LOOKS_GROW_BY


def _readable(descriptors: list[int], patience: float | None) -> list[int]:
    """Return those that can be read. Not by ``select``, which knows no descriptor above 1023."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(patience)]


def _data_version(connection: sqlite3.Connection) -> int:
    try:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    except sqlite3.Error:  # locked for a moment, or gone: polling finds the jobs
        return -1
    return version


def _watch_folder(folder: Path) -> int | None:
    """Return a descriptor that is readable when a file in ``folder`` changes, if there is one."""
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


def _log_changed(events: int, name: str) -> bool:
    """Read all pending events; say whether one of them is about the file called ``name``."""
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

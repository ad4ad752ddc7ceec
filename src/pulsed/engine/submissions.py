"""Counts the jobs that a process enqueues, and writes that to the statistics every few seconds.

An enqueue only adds to a number in memory. A thread, which exists only while there is something to
write, writes the numbers with the database's time of that moment: so the clock of a producer does
not matter. A process that dies, or whose database is away at its end, loses up to five seconds of
these statistics, and never a job.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Sequence

from pulsed.engine.stats import INTERVAL, LAST_FLUSH, LaneKey, StatsRecorder
from pulsed.model.backoff import RetryPolicy
from pulsed.model.events import EnqueueCount
from pulsed.store.base import Store
from pulsed.store.blocking import is_blocking, run_blocking
from pulsed.store.retrying import OwnRetry, own_retry

log = logging.getLogger("pulsed.stats")

ONCE = RetryPolicy(max_attempts=1)


class _Process:
    """The id of this process, without a call of the system for each job."""

    def __init__(self) -> None:
        self.read()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.read)

    def read(self) -> None:
        self.id = os.getpid()


_process = _Process()


class SubmissionRecorder:
    """Counts what is enqueued through a store. Safe for any number of threads, loops and forks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begin()
        self.start()
        _recorders.add(self)
        _close_at_exit()

    def start(self) -> None:
        """Count what is enqueued from now on."""
        self.stop = self._store.events.subscribe(self._count, {EnqueueCount})
        """Counts nothing more, until it is started again."""

    def _begin(self) -> None:
        """Begin at nothing; in a forked child once more, since the parent writes its own."""
        self._process = _process.id
        self._recorder = StatsRecorder(self._store)
        self._counted: dict[LaneKey, int] = {}  # a Counter is assigned to in Python
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        """Ends the pause of the thread."""
        self._failed = False

    def _count(self, counts: Sequence[EnqueueCount]) -> None:
        if self._process != _process.id:
            self._begin()
        with self._lock:
            for each in counts:
                lane = each.queue, each.topic
                self._counted[lane] = self._counted.get(lane, 0) + each.count
            if self._thread is None:
                self._wake = threading.Event()
                arguments = (weakref.ref(self), self._wake)
                self._thread = threading.Thread(
                    target=_flush_later, args=arguments, name="pulsed-stats", daemon=True
                )
                self._thread.start()

    async def flush(self) -> None:
        """Write what was counted since the last flush. What cannot be written is kept."""
        if self._process != _process.id or not self._flushing.acquire(blocking=False):
            return
        try:
            with self._lock:
                counted, self._counted = self._counted, {}
            try:
                if counted:
                    self._recorder.count_submitted(counted, await self._store.now())
            except BaseException:
                with self._lock:
                    self._counted = dict(Counter(self._counted) + Counter(counted))
                raise
            await self._recorder.flush()
        finally:
            self._flushing.release()

    async def close(self) -> None:
        """Write what is left, in one attempt; more can be counted afterwards.

        What cannot be written is given up: nothing may open a connection after a close.
        """
        wake = self._wake
        limit = contextlib.nullcontext() if is_blocking() else asyncio.timeout(LAST_FLUSH)
        try:
            with own_retry(OwnRetry(ONCE)):
                async with limit:
                    await self.flush()
        except Exception as error:  # noqa: BLE001 - statistics must not make a close fail
            self._note(error)
            self._begin()
        wake.set()

    def flush_in_thread(self) -> bool:
        """Flush, and return whether there is more to do later."""
        try:
            run_blocking(self.flush())
            self._failed = False
        except Exception as error:  # noqa: BLE001 - statistics must not end the thread that owes them
            self._note(error)
        with self._lock:
            if not self._counted and not self._failed:
                self._thread = None
        return self._thread is not None

    def _note(self, error: Exception) -> None:
        """Log a failure, the first of several as a warning."""
        level = logging.DEBUG if self._failed else logging.WARNING
        log.log(level, "statistics of enqueued jobs could not be written (%r)", error)
        self._failed = True


def _flush_later(recorder: weakref.ref[SubmissionRecorder], wake: threading.Event) -> None:
    """Flush until nothing is left, or the store is gone."""
    while True:
        wake.wait(INTERVAL)
        wake.clear()
        found = recorder()
        if found is None or not found.flush_in_thread():
            return
        del found


_recorders: weakref.WeakSet[SubmissionRecorder] = weakref.WeakSet()


@functools.cache
def _close_at_exit() -> None:
    """See to it that what a program has enqueued is written if it closes nothing.

    Not at import: what is registered later is called earlier, so before stores are closed.
    """
    atexit.register(_at_exit)


def _at_exit() -> None:
    for recorder in list(_recorders):
        run_blocking(recorder.close())

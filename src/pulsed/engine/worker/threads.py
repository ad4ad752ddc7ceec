"""Reused threads for plain (``def``) handlers.

A thread takes one run after the other, so short handlers need few threads and few switches between
them. More threads are woken only when runs keep waiting. Ended runs go to the event loop in
batches, with one wake-up for each batch.

Not ``concurrent.futures``: its threads are joined when the interpreter exits, so one handler that
never returns would keep a finished worker alive for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TypeAlias

log = logging.getLogger("pulsed.worker")

Call: TypeAlias = Callable[[], Callable[[], object]]
"""What to do in a thread; it returns what to do on the event loop after that. It never raises."""

FEW = 2
"""Threads woken at once for waiting runs: with more, short handlers contend for the GIL."""

RECHECK_AFTER = 0.001
"""Seconds until the queue is checked again: runs that still wait get more threads."""


class HandlerThreads:
    """A pool of as many threads as runs ever needed. Used from the event loop's thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[Call, contextvars.Context]] = deque()
        self._ended: deque[Callable[[], object]] = deque()
        self._collecting = False
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._asleep = 0
        self._watching = False

    def put(self, calls: Iterable[Call]) -> None:
        """Queue calls for the threads, each with a copy of the current context variables."""
        self._loop = asyncio.get_running_loop()
        variables = contextvars.copy_context()
        self._waiting.extend((call, variables.copy()) for call in calls)
        with self._lock:
            awake = self._threads - self._asleep
        self._wake(min(FEW - awake, len(self._waiting)))
        if not self._watching:
            self._watch(len(self._waiting))

    def close(self) -> None:
        """Let idle threads end; a busy one ends after its call."""
        self._waiting.clear()
        for _ in range(self._threads):
            self._wake_ups.put(False)

    def _watch(self, waiting: int) -> None:
        """Schedule a check of whether the waiting runs are taken soon."""
        self._watching = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_later(RECHECK_AFTER, self._recheck, waiting)

    def _recheck(self, before: int) -> None:
        left = len(self._waiting)
        if 2 * left > before:  # drains too slowly: handlers run longer than a thread switch
            self._wake(max(FEW, min(left, self._threads - self._asleep)))
        self._watch(left)

    def _wake(self, threads: int) -> None:
        for _ in range(threads):
            with self._lock:
                sleeping = self._asleep > 0
                self._asleep -= sleeping
            if sleeping:
                self._wake_ups.put(True)
            elif not self._start_thread():
                return

    def _start_thread(self) -> bool:
        name = f"pulsed-handler-{self._threads + 1}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError as error:  # no more threads allowed; the next check retries
            log.warning("cannot start a thread (%s); plain functions wait for one", error)
            return False
        self._threads += 1
        return True

    def _serve(self) -> None:
        while True:
            self._run_waiting()
            with self._lock:
                if self._waiting:  # queued after the last check, perhaps without a wake-up
                    continue
                self._asleep += 1
            if not self._wake_ups.get():
                return

    def _run_waiting(self) -> None:
        while self._waiting:
            try:
                call, variables = self._waiting.popleft()
            except IndexError:  # another thread was faster
                return
            self._ended.append(variables.run(call))
            del call, variables  # an idle thread must not keep a job's objects alive
            self._call_loop()

    def _call_loop(self) -> None:
        if not self._collecting and self._loop is not None:
            self._collecting = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop is closed
                self._waiting.clear()

    def _collect(self) -> None:
        self._collecting = False  # first, so that runs which end from now on call again
        while self._ended:
            self._ended.popleft()()

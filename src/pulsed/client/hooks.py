"""Events for your code: hooks that are called with them, and a stream to iterate over.

A hook never holds up the run that it is about. Its events wait in a queue of their own, which
drops the oldest when it is full. A plain hook runs in a thread of its own, an async one on the
event loop of whoever publishes: a worker's, as a rule.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

from pulsed.errors import ConfigError
from pulsed.handler.function import describe
from pulsed.handler.options import checked_count
from pulsed.model.events import KINDS, Event
from pulsed.store.event_bus import Events
from pulsed.store.log_throttle import Throttle
from pulsed.wording import counted

log = logging.getLogger("pulsed.events")

E = TypeVar("E")

MOST_WAITING = 1_000
"""Events that wait for a hook at most."""

AT_A_TIME = 10
"""Calls of one async hook that run at a time."""

LAST_CALLS = 5.0
"""Seconds that a worker waits at its end for hooks to be called with what has happened."""

QUIET = 60.0
"""Seconds between two log lines about one hook."""


def kinds_of(given: Sequence[type[Any]]) -> frozenset[type[Event]]:
    """Return the kinds of events that classes stand for, base classes too; all of them for none."""
    kinds: set[type[Event]] = set()
    for each in given:
        found = {kind for kind in KINDS if isinstance(each, type) and issubclass(kind, each)}
        if not found:
            raise ConfigError(
                f"{each!r} is not a kind of event: take them from pulsed.events, as in "
                "@app.on(JobDeadLettered)."
            )
        kinds |= found
    return frozenset(kinds) if given else KINDS


class EventQueue:
    """Events that wait, the oldest first. The oldest are dropped when it is full. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._events: deque[Event] = deque(maxlen=most)
        self._lock = threading.Lock()
        self.dropped = 0

    def add(self, events: Sequence[Event]) -> int:
        """Add events; returns how many were dropped for them."""
        with self._lock:
            room = (self._events.maxlen or 0) - len(self._events)
            self._events.extend(events)
            dropped = max(0, len(events) - room)
            self.dropped += dropped
        return dropped

    def take(self) -> Event | None:
        """Remove and return the oldest; None if there is none."""
        with self._lock:
            return self._events.popleft() if self._events else None

    def __bool__(self) -> bool:
        return bool(self._events)


class Hook(ABC):
    """A function of the user's that is called with events."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn
        self._drops = Throttle(QUIET)
        self._errors = Throttle(QUIET)
        self.begin()

    def begin(self) -> None:
        """Begin without events; in a forked child once more, since the parent keeps its own."""
        self._process = os.getpid()
        self.waiting = EventQueue(MOST_WAITING)

    def __call__(self, events: Sequence[Event]) -> None:
        """Queue events, and see to it that the function is called with them."""
        if self._process != os.getpid():
            self.begin()
        if self.waiting.add(events) and self._drops.add() is not None:
            log.warning(
                "the hook %s is too slow: %s dropped so far",
                describe(self.fn),
                counted(self.waiting.dropped, "event"),
            )
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Call the function with what waits, soon and elsewhere."""

    @abstractmethod
    async def drain(self, seconds: float) -> None:
        """Wait until nothing waits any more, but not for ever."""

    def note_failure(self, error: Exception) -> None:
        """Log what the function raised, once in a while."""
        if (kept_back := self._errors.add()) is not None:
            more = f" ({kept_back:,} more errors since the last time)" if kept_back else ""
            log.error("the hook %s failed%s", describe(self.fn), more, exc_info=error)


class _PlainHook(Hook):
    """A plain function, called in a thread that lives as long as there are events."""

    def begin(self) -> None:
        super().begin()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            if self._thread is None and self.waiting:
                name = f"pulsed-hook-{getattr(self.fn, '__name__', 'hook')}"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            while (event := self.waiting.take()) is not None:
                try:
                    self.call(event)
                except Exception as error:  # noqa: BLE001 - the hook's own
                    self.note_failure(error)
            with self._lock:
                if not self.waiting:
                    self._thread = None
                    return

    def call(self, event: Event) -> None:
        """Call the function."""
        self.fn(event)

    async def drain(self, seconds: float) -> None:
        thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join, seconds)


class _AsyncHook(Hook):
    """An async function, called in tasks on the loop of the publisher.

    Without a running loop, as in a blocking enqueue, it runs on the worker's loop if there is one
    in the process, and otherwise in a thread.
    """

    def begin(self) -> None:
        super().begin()
        self.home: asyncio.AbstractEventLoop | None = None
        """The worker's event loop, while it runs."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._threaded = _InThread(self.fn)

    def start(self) -> None:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented
            self._start_task()
            return
        try:
            if self.home is not None:
                self.home.call_soon_threadsafe(self._start_task)
                return
        except RuntimeError:  # it has just been closed
            self.home = None
        while (event := self.waiting.take()) is not None:
            self._threaded([event])

    def _start_task(self) -> None:
        running = sum(not task.get_loop().is_closed() for task in self._tasks)
        if self.waiting and running < AT_A_TIME:
            task = asyncio.get_running_loop().create_task(self._serve(), name="pulsed-hook")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        while (event := self.waiting.take()) is not None:
            self._start_task()  # for the rest, while this one is awaited
            try:
                await self.fn(event)
            except Exception as error:  # noqa: BLE001 - the hook's own
                self.note_failure(error)

    async def drain(self, seconds: float) -> None:
        loop, until = asyncio.get_running_loop(), time.monotonic() + seconds
        while own := [task for task in self._tasks if task.get_loop() is loop]:
            left = until - time.monotonic()
            if left <= 0:
                return
            await asyncio.wait(own, timeout=left)
        await self._threaded.drain(seconds)


class _InThread(_PlainHook):
    """An async function for events without an event loop."""

    def call(self, event: Event) -> None:
        asyncio.run(self.fn(event))


class Hooks:
    """The hooks of an app."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._hooks: list[Hook] = []

    def add(self, fn: Callable[[Any], Any], kinds: Sequence[type[Any]]) -> None:
        """Call ``fn`` with each event of these kinds."""
        if not callable(fn):
            raise ConfigError(f"@app.on(...) is for functions, not for {fn!r:.100}.")
        hook = _AsyncHook(fn) if asyncio.iscoroutinefunction(fn) else _PlainHook(fn)
        self._hooks.append(hook)
        self._events.subscribe(hook, kinds_of(kinds))

    def settle_in(self) -> None:
        """Call async hooks on this loop if there is none where an event is published."""
        self._move(asyncio.get_running_loop())

    async def drain(self) -> None:
        """Wait a little until the hooks were called with everything that has happened."""
        await asyncio.gather(*(hook.drain(LAST_CALLS) for hook in self._hooks))
        self._move(None)

    def _move(self, home: asyncio.AbstractEventLoop | None) -> None:
        for hook in self._hooks:
            if isinstance(hook, _AsyncHook):
                hook.home = home


class EventStream(Generic[E]):
    """Events from now on, to iterate over with ``async for``.

    If you are too slow, the oldest are dropped; ``dropped`` says how many. It ends when you close
    it, by ``async with`` or ``close()``, or forget it.
    """

    def __init__(self, events: Events, kinds: Sequence[type[Any]], most: int) -> None:
        self._waiting = EventQueue(checked_count("most", most, 1, 1_000_000))
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        weak = weakref.WeakMethod(self._add)

        def add(events: Sequence[Event]) -> None:
            if (found := weak()) is not None:
                found(events)

        self._unsubscribe = weakref.finalize(self, events.subscribe(add, kinds_of(kinds)))

    @property
    def dropped(self) -> int:
        """How many events were dropped because you were too slow."""
        return self._waiting.dropped

    def _add(self, events: Sequence[Event]) -> None:
        self._waiting.add(events)
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._arrived.set)

    def close(self) -> None:
        """End the iteration, after the events that have already arrived."""
        self._closed = True
        self._unsubscribe()
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        self._loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            if (event := self._waiting.take()) is not None:
                return event  # type: ignore[return-value] # of one of its kinds
            if self._closed:
                raise StopAsyncIteration
            await self._arrived.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

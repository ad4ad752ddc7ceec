"""Debounced NOTIFY for workers in other processes.

Every NOTIFY takes a server-wide lock when it commits, so one per submit would more than halve the
server's throughput. The first submit to a queue is announced at once, by a statement that follows
its commit on the same connection. Submits within the next 5 ms are announced together when these
are over: by the next submit, or if none comes by a thread that exists only while there is something
to announce. (In a burst, a thread that wakes up every 5 ms would cost each submit a tenth of its
time.) What else is announced, like a freed slot of a limit, is sent on its own. In an event loop, a
caller waits only for the first notification of a burst; the others are tasks. A lost notification
costs a worker one polling interval and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from pulsed.errors import StorageError
from pulsed.store.blocking import is_blocking, run_blocking
from pulsed.store.sql.statement import Statement, numbered
from pulsed.store.verbs.script import FollowUp, Script, Verb, VerbKind, verb

AT_MOST_EVERY = 0.005
LATE_BY = 0.002
"""Extra seconds that the thread leaves to the next submit of a burst to send what is owed."""
OWN_FIRST = 0.002
"""Seconds for which a claim of this process goes before the announcement to others."""
BURST = 0.1
"""Seconds after an announcement in which the next one belongs to the same burst."""
LINGER = 1.0
"""Seconds that the thread waits for more to announce before it ends."""
FLUSH_WITHIN = 2.0
REMEMBERED = 1_000
"""Queues whose last announcement is remembered before the old ones are dropped."""

log = logging.getLogger("pulsed.store")

# A transaction that only notifies waits neither for the disk nor for a standby.
_NOTIFY = numbered(
    "SELECT pg_notify(:channel::text, queue) FROM unnest(:queues::text[]) AS queue", counted=True
)
_NOTIFY_ONE = numbered("SELECT pg_notify(:channel::text, :queue::text)", counted=True)


@verb(VerbKind.SINGLE, claim_lane=True)
def notify(channel: str, queues: Collection[str]) -> Script[None]:
    """Notify the listeners of these queues."""
    yield _notification(channel, queues)


def _notification(channel: str, queues: Collection[str]) -> Statement:
    if len(queues) == 1:  # a text is written and read in less time than an array
        (queue,) = queues
        return Statement(_NOTIFY_ONE, {"channel": channel, "queue": queue})
    return Statement(_NOTIFY, {"channel": channel, "queues": sorted(queues)})


class Notifier:
    """Debounces notifications for each queue. Safe for any number of threads and loops."""

    def __init__(
        self,
        channel: str,
        perform: Callable[[Verb[None]], Coroutine[Any, Any, None]],
        clock: Callable[[], float] = time.monotonic,
        thread_ends: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._perform = perform
        self._thread_ends = thread_ends
        self._clock = clock
        self.forget_inherited()

    def forget_inherited(self) -> None:
        """Reset the state, also in a forked child: the parent sends what is owed."""
        self._lock = threading.RLock()  # a signal handler may enqueue, too
        self._changed = threading.Condition(self._lock)
        self._last: dict[str, float] = {}
        self._forget_at = REMEMBERED
        self._owed: set[str] = set()
        self._thread: threading.Thread | None = None
        self._sending = False
        self._tasks: dict[asyncio.Task[None], asyncio.AbstractEventLoop] = {}

    async def announce(self, queues: set[str]) -> None:
        """Announce the queues of committed jobs, now or within 5 ms."""
        at_once, is_burst = self._split(queues)
        if not at_once:
            return
        if is_burst and not is_blocking():
            self._send_in_task(at_once)
        else:
            await self._send(at_once)

    def announce_later(self, queues: set[str]) -> None:
        """Announce the queues after a claim of this process, which is likely to take their jobs."""
        at_once, _ = self._split(queues)
        if at_once:
            self._send_in_task(at_once, after=OWN_FIRST)

    def follow_up(self, queues: set[str], *, is_burst: bool) -> FollowUp:
        """Return what announces queues when a submit has committed."""

        def failed(error: BaseException) -> None:
            if isinstance(error, asyncio.CancelledError):  # the loop ends: the thread sends it
                self.owe(queues)
            else:
                log.debug("workers were not woken, they will find the jobs by polling: %s", error)

        return FollowUp(_notification(self._channel, queues), failed, is_awaited=not is_burst)

    def take(self, queues: Iterable[str]) -> tuple[set[str], bool]:
        """Return the queues to announce now, up to the caller, and whether a burst goes on.

        The others were announced less than 5 ms ago.
        """
        now = self._clock()
        taken: set[str] = set()
        is_burst = True
        with self._lock:
            for queue in queues:
                since = now - self._last.get(queue, -1e9)
                if since >= AT_MOST_EVERY:
                    is_burst &= since < BURST
                    taken.add(queue)
                    self._last[queue] = now
                    self._owed.discard(queue)
            if len(self._last) > self._forget_at:
                self._forget(now)
        return taken, is_burst

    def _send_in_task(self, queues: set[str], *, after: float = 0.0) -> None:
        """Announce queues without making the caller wait."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._send(queues, after=after))
        self._tasks[task] = loop

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            if task.cancelled():  # the loop ends: the thread sends it
                self.owe(queues)

        task.add_done_callback(ended)

    def owe(self, queues: Iterable[str]) -> None:
        """Announce the queues from the thread, within 7 ms: for callers that cannot wait."""
        if self._thread is not None and self._owed.issuperset(queues):
            return  # no lock is needed: the thread announces what it takes after this
        with self._lock:
            self._owed.update(queues)
            self._see_to_it()

    async def flush(self) -> None:
        """Send the notifications that are owed: debounced and not sent yet."""
        if not is_blocking():
            loop = asyncio.get_running_loop()
            own = [task for task, its_loop in list(self._tasks.items()) if its_loop is loop]
            await asyncio.gather(*own, return_exceptions=True)
        with self._changed:
            owed, self._owed = self._owed, set()
        if owed:
            await self._send(owed)

    def wait_until_sent(self) -> None:
        """Wait up to ``FLUSH_WITHIN`` seconds for the thread's notification in flight."""
        with self._changed:
            self._changed.wait_for(lambda: not self._sending, FLUSH_WITHIN)

    def _split(self, queues: set[str]) -> tuple[set[str], bool]:
        """Return the queues to announce now, and whether a burst goes on; the others are owed."""
        with self._lock:
            at_once, is_burst = self.take(queues)
            if at_once != queues:
                self.owe(queues - at_once)
        return at_once, is_burst

    def _forget(self, now: float) -> None:
        """Drop announcements older than the debounce: the number of queue names is unbounded."""
        recent = {name: at for name, at in self._last.items() if now - at < AT_MOST_EVERY}
        self._last = recent
        self._forget_at = max(REMEMBERED, 2 * len(recent))  # not at every submit

    def _see_to_it(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="pulsed-notify", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or at exit, where flush() follows
                log.debug("workers are woken later: %s", error)
                return
            self._thread = thread
        self._changed.notify_all()

    def _serve(self) -> None:
        try:
            while queues := self._next():
                run_blocking(self._send(queues))
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()
        finally:
            self._leave()
            self._thread_ends()

    def _leave(self) -> None:
        """Have the next announcement start a new thread, whatever ended this one."""
        with self._changed:
            if self._thread is threading.current_thread():
                self._thread = None
                self._sending = False
                self._changed.notify_all()

    def _next(self) -> set[str]:
        """Wait until owed queues are due; an empty set after ``LINGER`` seconds ends the thread."""
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._owed, LINGER):
                    self._thread = None
                    return set()
                now = self._clock()
                wait = min(map(self._due, self._owed)) - now
                if wait <= 0:
                    queues = {queue for queue in self._owed if self._due(queue) <= now}
                    self._owed -= queues
                    self._last.update(dict.fromkeys(queues, now))
                    self._sending = True
                    return queues
            time.sleep(min(wait, AT_MOST_EVERY + LATE_BY))

    def _due(self, queue: str) -> float:
        return self._last.get(queue, 0.0) + AT_MOST_EVERY + LATE_BY

    async def _send(self, queues: set[str], *, after: float = 0.0) -> None:
        if after:
            await asyncio.sleep(after)
        try:
            await self._perform(notify(self._channel, queues))
        except StorageError as error:
            log.debug("workers were not woken, they will find the jobs by polling: %s", error)
        except Exception:
            # The jobs are stored: no error here may make a producer believe otherwise.
            log.exception("workers were not woken, they will find the jobs by polling")

"""Heartbeats: the leases a worker holds, and the thread that keeps them alive.

A thread of its own, so that a handler which blocks the event loop does not lose its siblings'
jobs. One statement extends everything that is held, every third of the shortest lease.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum
from uuid import UUID

from pulsed.errors import PulsedError, ServerUnreachable, TransientStorageError
from pulsed.model.job import Assignment, Lease
from pulsed.model.outcome import Beat
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.log_throttle import level_of
from pulsed.store.verbs.ticks import BEATS_PER_LEASE
from pulsed.wording import counted

log = logging.getLogger("pulsed.worker")

SHORTEST_BEAT = 0.05
"""Seconds that a beat gets at least."""

SURE_FOR = 0.85
"""How much of a lease may pass without an answer before a run fences itself: stopping takes a
moment."""

AFTER_FAILURE = 0.25
"""How much of the interval to wait after a beat that failed: the lease is running out."""

LONGEST_PAUSE = 5.0
"""Seconds to wait after a beat that failed, however long the leases are: when a database comes back
after they have run out, a watchdog gives workers only so much time to beat first."""


_EXTENDED = (Beat.OK, Beat.CANCEL)
"""Answers that renew a lease. The row of an unknown one is locked by somebody else just now."""


class Fence(Enum):
    """When a run is stopped because its lease could not be confirmed for too long."""

    NEVER = "never"
    UNHEARD = "when no server answers"
    """One that says that its database is away has answered: then it is away for everybody, nobody
    takes the jobs over, and the watchdog that comes back with it lets workers beat first."""
    UNCONFIRMED = "always"


class Leases:
    """What this worker holds. Safe to use from any thread."""

    def __init__(
        self,
        store: Store,
        on_answers: Callable[[dict[Lease, Beat]], None],
        on_late: Callable[[float, list[str]], None],
        *,
        fence: Fence = Fence.NEVER,
    ) -> None:
        self._store = store
        self._fence = fence
        """Whether to give up leases that could not be confirmed in time, instead of hoping."""
        self._sure_until: dict[UUID, float] = {}
        """By our own clock, and only if we fence ourselves."""
        self._on_answers = on_answers
        self._on_late = on_late
        self._held: dict[UUID, tuple[Lease, float, str]] = {}
        self._topics: set[str] = set()
        """Of all that was held since the last beat: one of these, if the next one is late."""
        self._changed = threading.Condition()
        self._interval = float("inf")
        self._next_beat = float("inf")
        self._stopped = False
        variables = contextvars.copy_context()  # the worker's own retry policies are among them
        beating = functools.partial(variables.run, self._beat_until_stopped)
        self._thread = threading.Thread(target=beating, daemon=True)
        self._thread.name = "pulsed-beat"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating. Only when nothing is held any more, or everything is given up."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def add(self, assignments: Iterable[Assignment], since: float) -> list[Lease]:
        """Keep these leases alive from now on; returns those of ours that they supersede.

        They may be as old as ``since``, when they were asked for.
        """
        superseded = []
        with self._changed:
            held, topics = self._held, self._topics
            shortest = float("inf")
            for assignment in assignments:
                lease, topic = assignment.lease, assignment.topic
                interval = assignment.lease_seconds / BEATS_PER_LEASE
                if (older := held.get(lease.job_id)) is not None:
                    superseded.append(older[0])
                held[lease.job_id] = (lease, interval, topic)
                if self._fence is not Fence.NEVER:
                    self._sure_until[lease.job_id] = since + assignment.lease_seconds * SURE_FOR
                topics.add(topic)
                shortest = min(shortest, interval)
            due = max(since + shortest, time.monotonic())  # that it came late, no beat could help
            if due < self._next_beat:
                self._interval, self._next_beat = shortest, due
                self._changed.notify()
        return superseded

    def drop(self, leases: Iterable[Lease]) -> None:
        """Stop caring, because these runs are over. A newer lease on the same job stays."""
        with self._changed:
            for lease in leases:
                held = self._held.get(lease.job_id)
                if held is not None and held[0] == lease:
                    del self._held[lease.job_id]
                    self._sure_until.pop(lease.job_id, None)

    def holds(self, lease: Lease) -> bool:
        """Whether this very lease is held."""
        with self._changed:
            held = self._held.get(lease.job_id)
            return held is not None and held[0] == lease

    def shortest(self) -> float | None:
        """Return the seconds of the shortest lease held, which no retry may outlast."""
        with self._changed:
            interval = self._shortest_interval()
        return interval * BEATS_PER_LEASE if self._held else None

    def tick(self) -> dict[Lease, Beat]:
        """Beat once for everything that is held, and pass the answers on."""
        leases = self._leases()
        if not leases:
            return {}
        began = time.monotonic()
        answers = run_blocking(self._store.beat(leases, within=self._patience()))
        extended = [lease for lease, answer in answers.items() if answer in _EXTENDED]
        self._confirmed(extended, began)
        self._on_answers(answers)
        return answers

    def _leases(self) -> list[Lease]:
        with self._changed:
            return [lease for lease, _, _ in self._held.values()]

    def _patience(self) -> float | None:
        """Return how long a beat may take: until a lease ends, or a run has to fence itself."""
        with self._changed:
            soonest = min(self._sure_until.values(), default=float("inf")) - time.monotonic()
        shortest = self.shortest()
        return shortest if shortest is None else max(SHORTEST_BEAT, min(shortest, soonest))

    def _confirmed(self, leases: Iterable[Lease], began: float) -> None:
        if self._fence is not Fence.NEVER:
            with self._changed:
                for lease in leases:
                    held = self._held.get(lease.job_id)
                    if held is not None and held[0] == lease:
                        sure_for = held[1] * BEATS_PER_LEASE * SURE_FOR
                        self._sure_until[lease.job_id] = began + sure_for

    def _give_up_the_unconfirmed(self) -> None:
        """Stop runs that others may have by now, as far as we can tell: nobody answers us."""
        now = time.monotonic()
        with self._changed:
            given_up = [
                held[0]
                for job_id, held in self._held.items()
                if self._sure_until.get(job_id, float("inf")) <= now
            ]
        if given_up:
            log.error(
                "%s could not be confirmed in time; their jobs are stopped",
                counted(len(given_up), "lease"),
            )
            self._on_answers(dict.fromkeys(given_up, Beat.LOST))

    def _beat_until_stopped(self) -> None:
        while self._wait_for_next_beat():
            self.attempt()

    def attempt(self) -> None:
        """Beat once, whatever comes of it, and decide when to beat again."""
        began = time.monotonic()
        failed = False
        try:
            failed = Beat.UNKNOWN in self.tick().values()
        except Exception as error:
            failed = True
            surprise = None if isinstance(error, PulsedError) else error
            told = "a heartbeat failed (%s); trying again"
            log.log(level_of(error), told, error, exc_info=surprise)
            if self._fence is Fence.UNHEARD and _is_everybodys(error):
                self._confirmed(self._leases(), began)
        self._give_up_the_unconfirmed()
        ended = time.monotonic()
        if ended - began > self._interval:
            log.warning("a heartbeat took %.1f s: the database is slow", ended - began)
        with self._changed:
            self._interval = self._shortest_interval()
            pause = self._interval
            if failed:
                pause = min(pause * AFTER_FAILURE, LONGEST_PAUSE)
            # What a beat took longer is the database's time: no thread was kept from running.
            self._next_beat = max(began + pause, ended)

    def _wait_for_next_beat(self) -> bool:
        """Sleep until a beat is due; say whether to go on. Tells when it was woken far too late."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                due = self._next_beat
                if now >= due:
                    break
                self._changed.wait(None if due == float("inf") else due - now)
            late = time.monotonic() - self._next_beat
            topics, self._topics = self._topics, {topic for _, _, topic in self._held.values()}
            stopped = self._stopped
        if not stopped and late > self._interval:
            self._on_late(late, sorted(topics))
        return not stopped

    def _shortest_interval(self) -> float:
        return min((interval for _, interval, _ in self._held.values()), default=float("inf"))


def _is_everybodys(error: Exception) -> bool:
    """Whether a server has answered, and only its database is away."""
    away = isinstance(error, TransientStorageError)
    return away and not isinstance(error, ServerUnreachable)

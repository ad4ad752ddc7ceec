"""Heartbeats: the leases a worker holds, and the thread that renews them.

A thread of its own, so that a handler which blocks the event loop does not cost its siblings their
leases. One statement extends every lease held, every third of the shortest lease.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
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
"""Minimum timeout of a beat, in seconds."""

SURE_FOR = 0.85
"""The part of a lease that may pass unconfirmed before a run fences itself: stopping takes time."""

AFTER_FAILURE = 0.25
"""The part of the interval to wait after a failed beat: the lease is running out."""

MOST_GIVEN_UP = 10_000
"""Leases given up that are remembered; the oldest ones have expired long ago."""

LONGEST_PAUSE = 5.0
"""Most seconds to wait after a failed beat, however long the leases are: when a database comes back
after they have expired, a watchdog gives workers only a short grace to beat first."""


_EXTENDED = (Beat.OK, Beat.CANCEL)
"""Answers that renew a lease. ``UNKNOWN`` does not: another session holds the row's lock."""


class Fence(Enum):
    """When a run is stopped because its lease could not be confirmed for too long."""

    NEVER = "never"
    UNHEARD = "when no server answers"
    """A server that reports its database as away has answered. The database is then away for every
    worker, none can take the jobs over, and after it the watchdog's grace lets workers beat first.
    """
    UNCONFIRMED = "always"


class Leases:
    """The leases that this worker holds. Thread-safe."""

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
        """When to give up leases that could not be confirmed in time."""
        self._sure_until: dict[UUID, float] = {}
        """How long each lease is surely held, by the monotonic clock; only with a fence."""
        self._on_answers = on_answers
        self._on_late = on_late
        self._held: dict[UUID, Assignment] = {}
        self._given_up: dict[UUID, Lease] = {}
        """Leases of runs that were begun and have no report; the rows may still be RUNNING."""
        self._topics: set[str] = set()
        """Topics held since the last beat: one of these is to blame if the next one is late."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._shortest = float("inf")
        """The shortest lease that was held since the last beat, in seconds."""
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
        """Stop beating. Call this only when no lease is held, or all are given up."""
        with self._lock:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def add(self, assignments: Sequence[Assignment], since: float) -> list[Lease]:
        """Renew these leases from now on; returns the held leases that they supersede.

        They may be as old as ``since``, when the claim was sent.
        """
        shortest = float("inf")
        superseded = []
        with self._lock:
            held, topics, sure_until = self._held, self._topics, self._sure_until
            is_fenced = self._fence is not Fence.NEVER
            for each in assignments:
                job_id, seconds = each.lease[0], each.lease_seconds
                known = held.setdefault(job_id, each)
                if known is not each:
                    superseded.append(known.lease)
                    held[job_id] = each
                topics.add(each.topic)
                if seconds < shortest:  # noqa: PLR1730 - no call for each job
                    shortest = seconds
                if is_fenced:
                    sure_until[job_id] = since + seconds * SURE_FOR
            self._shortest = min(self._shortest, shortest)
            interval = shortest / BEATS_PER_LEASE
            due = max(since + interval, time.monotonic())  # a late claim is not a late beat
            if due < self._next_beat:
                self._interval, self._next_beat = interval, due
                self._changed.notify()
        return superseded

    def drop(self, leases: Iterable[Lease]) -> None:
        """Stop renewing leases, because their runs are over. A newer lease on the job stays."""
        with self._lock:
            held, sure_until = self._held, self._sure_until
            for lease in leases:
                dropped = held.pop(lease[0], None)
                if dropped is not None and dropped.lease != lease:
                    held[lease.job_id] = dropped
                elif sure_until:
                    sure_until.pop(lease.job_id, None)

    def give_up(self, leases: Iterable[Lease]) -> None:
        """Stop renewing leases whose runs have no report: they expire, as a dead worker's do."""
        leases = list(leases)
        self.drop(leases)
        with self._lock:
            self._given_up.update((lease.job_id, lease) for lease in leases)
            while len(self._given_up) > MOST_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]

    def holds(self, lease: Lease) -> bool:
        """Whether exactly this lease is held, and not a newer one on its job."""
        with self._lock:
            held = self._held.get(lease.job_id)
            return held is not None and held.lease == lease

    def unknown(self, stored: Sequence[Lease]) -> list[Lease]:
        """Return those of the leases stored for this worker under which it has begun no run."""
        with self._lock:
            given_up = self._given_up
            self._given_up = {
                lease.job_id: lease for lease in stored if given_up.get(lease.job_id) == lease
            }
        return [
            lease
            for lease in stored
            if not self.holds(lease) and self._given_up.get(lease.job_id) != lease
        ]

    def shortest(self) -> float | None:
        """Return the length of the shortest lease held, which no retry may outlast; or None.

        It may be one that was held since the last beat: to look at all of them takes time.
        """
        with self._lock:
            return self._shortest if self._held else None

    def tick(self) -> dict[Lease, Beat]:
        """Beat once for every lease held, and pass the answers on."""
        leases = self._leases()
        if not leases:
            return {}
        began = time.monotonic()
        answers = run_blocking(self._store.beat(leases, within=self._beat_timeout()))
        extended = [lease for lease, answer in answers.items() if answer in _EXTENDED]
        self._confirmed(extended, began)
        self._on_answers(answers)
        return answers

    def _leases(self) -> list[Lease]:
        with self._lock:
            return [held.lease for held in self._held.values()]

    def _beat_timeout(self) -> float | None:
        """Return the timeout of a beat: until a lease ends, or a run has to fence itself."""
        with self._lock:
            soonest = min(self._sure_until.values(), default=float("inf")) - time.monotonic()
            shortest = self._shortest_held()
            return max(SHORTEST_BEAT, min(shortest, soonest)) if self._held else None

    def _confirmed(self, leases: Iterable[Lease], began: float) -> None:
        if self._fence is not Fence.NEVER:
            with self._lock:
                for lease in leases:
                    held = self._held.get(lease.job_id)
                    if held is not None and held.lease == lease:
                        sure_for = held.lease_seconds * SURE_FOR
                        self._sure_until[lease.job_id] = began + sure_for

    def _give_up_the_unconfirmed(self) -> None:
        """Stop runs whose leases are unconfirmed: other workers may have their jobs by now."""
        now = time.monotonic()
        with self._lock:
            given_up = [
                held.lease
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
        self._store.thread_ends()

    def attempt(self) -> None:
        """Beat once, log a failure, and set the time of the next beat."""
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
        with self._lock:
            self._shortest = self._shortest_held()
            pause = self._interval = self._shortest / BEATS_PER_LEASE
            if failed:
                pause = min(pause * AFTER_FAILURE, LONGEST_PAUSE)
            # After a slow beat the next is due now and not late: the database was slow, and no
            # thread was kept from running.
            self._next_beat = max(began + pause, ended)

    def _wait_for_next_beat(self) -> bool:
        """Sleep until a beat is due; False: stopped. Reports if it was woken far too late."""
        with self._lock:
            while not self._stopped:
                now = time.monotonic()
                due = self._next_beat
                if now >= due:
                    break
                self._changed.wait(None if due == float("inf") else due - now)
            late = time.monotonic() - self._next_beat
            topics, self._topics = self._topics, {held.topic for held in self._held.values()}
            stopped = self._stopped
        if not stopped and late > self._interval:
            self._on_late(late, sorted(topics))
        return not stopped

    def _shortest_held(self) -> float:
        return min((held.lease_seconds for held in self._held.values()), default=float("inf"))


def _is_everybodys(error: Exception) -> bool:
    """Whether a server has answered, and only its database is away."""
    away = isinstance(error, TransientStorageError)
    return away and not isinstance(error, ServerUnreachable)

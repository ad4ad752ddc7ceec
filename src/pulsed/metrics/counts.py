"""Counts the events of a process: plain numbers by queue and topic, ready to be scraped.

This runs for every batch of runs, so it does nothing but add. prometheus_client's own counters take
a lock and make objects for each addition; here one lock covers a batch of events.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from pulsed.model.buckets import buckets_of
from pulsed.model.events import (
    EnqueueCount,
    JobDeadLettered,
    JobEvent,
    JobExpired,
    JobRetryScheduled,
    JobsClaimed,
    LeasesExpired,
    ListenerChanged,
    Published,
    RunCancelled,
    RunCount,
    RunHandedBack,
    RunLeaseLost,
    RunSnoozed,
    RunStarted,
    RunSucceeded,
    RunSuspended,
    StorageRetried,
)
from pulsed.model.rollup import Durations

MOST_LANES = 200
"""Pairs of a queue and a topic that have labels of their own; ``OTHER`` has the rest."""
MOST_QUEUES = 100
MOST_OPERATIONS = 50
OTHER = "other"

OUTCOMES: dict[type[JobEvent], str] = {
    RunSucceeded: "succeeded",
    JobRetryScheduled: "failed",
    JobDeadLettered: "dead_lettered",
    RunCancelled: "cancelled",
    RunSuspended: "suspended",
    RunSnoozed: "snoozed",
    RunHandedBack: "handed_back",
    RunLeaseLost: "lease_lost",
}
"""How a run may end, and its label."""
NAMES = tuple(OUTCOMES.values())
_POSITIONS = {kind: NAMES.index(name) for kind, name in OUTCOMES.items()}
_DEAD = _POSITIONS[JobDeadLettered]
_DECIDED = frozenset(
    {_POSITIONS[each] for each in (RunSucceeded, JobRetryScheduled, JobDeadLettered, RunCancelled)}
)
"""The outcomes whose durations are counted, as the statistics in the database do."""

COUNTED: frozenset[type[Published]] = frozenset(
    {
        RunCount,
        EnqueueCount,
        JobExpired,
        JobsClaimed,
        LeasesExpired,
        StorageRetried,
        ListenerChanged,
    }
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LaneCounts:
    """The counts of one topic in one queue."""

    __slots__ = ("enqueued", "expired", "outcomes", "run", "wait")

    def __init__(self) -> None:
        self.enqueued = 0
        self.expired = 0
        self.outcomes = [0] * len(NAMES)
        self.wait = Durations()
        self.run = Durations()

    @property
    def dead_lettered(self) -> int:
        """How many of its jobs became dead letters."""
        return self.outcomes[_DEAD]


class Claims:
    """The claims from one queue."""

    __slots__ = ("jobs", "took")

    def __init__(self) -> None:
        self.jobs = 0
        self.took = Durations()


class Bounded(dict[K, V], Generic[K, V]):
    """Values by key, made when they are missing; beyond ``most``, all keys share one value."""

    def __init__(self, most: int, other: K, make: Callable[[], V]) -> None:
        super().__init__()
        self._most = most
        self._other = other
        self._make = make

    def __missing__(self, key: K) -> V:
        if len(self) >= self._most and key != self._other:
            return self[self._other]
        made = self[key] = self._make()
        return made


OTHER_LANE = (OTHER, OTHER)


class ProcessCounts:
    """What has happened in this process since its start.

    Any thread may add. A reader takes no lock: it may see a batch of events half counted, which
    the next scrape sets right.
    """

    def __init__(self, lanes: Iterable[tuple[str, str]] = ()) -> None:
        """Begin with these pairs of a queue and a topic at zero: they get labels first."""
        self._lock = threading.Lock()
        self.lanes: Bounded[tuple[str, str], LaneCounts] = Bounded(
            MOST_LANES, OTHER_LANE, LaneCounts
        )
        self.claims: Bounded[str, Claims] = Bounded(MOST_QUEUES, OTHER, Claims)
        self.retries: Bounded[str, list[int]] = Bounded(MOST_OPERATIONS, OTHER, lambda: [0])
        self.leases_expired = 0
        self.listening: bool | None = None
        """Whether notifications arrive; None: that is not known."""
        for lane in lanes:
            _ = self.lanes[lane]

    def add(self, events: Sequence[Published]) -> None:
        """Count events."""
        with self._lock:
            for event in events:
                self._add(event)

    def _add(self, event: Published) -> None:
        match event:
            case RunCount():
                self._add_runs(event)
            case EnqueueCount():
                self.lanes[event.queue, event.topic].enqueued += event.count
            case JobExpired():
                self.lanes[event.queue, event.topic].expired += 1
            case JobsClaimed():
                claims = self.claims[event.queue]
                claims.jobs += event.jobs
                claims.took.add(event.seconds, buckets_of([event.seconds]))
            case LeasesExpired():
                self.leases_expired += event.count
            case StorageRetried():
                self.retries[event.operation][0] += 1
            case ListenerChanged():
                self.listening = event.connected

    def _add_runs(self, counted: RunCount) -> None:
        lane = self.lanes[counted.queue, counted.topic]
        if counted.kind is RunStarted:
            lane.wait.add(counted.seconds, counted.buckets)
        else:
            position = _POSITIONS[counted.kind]
            lane.outcomes[position] += counted.count
            if position in _DECIDED:
                lane.run.add(counted.seconds, counted.buckets)

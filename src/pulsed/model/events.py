"""What happened to jobs and to the engine, as values for hooks, metrics and traces.

An event says what is written in the database, as the process knows it that wrote it. Only
subscribers cause events to be made; ``store/event_bus.py`` delivers them. They are msgspec structs,
because some are made once per job. What only counts takes ``RunCount`` and ``EnqueueCount``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import msgspec

from pulsed.model.buckets import buckets_of


class JobEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that happened to one job."""

    job_id: UUID
    topic: str
    queue: str
    at: datetime
    """When it happened. In a worker by the database's clock, as last measured; in a producer by
    its own."""


class JobEnqueued(JobEvent, frozen=True, gc=False):
    """A job was stored. In your own transaction: it was submitted, and your commit decides."""


class JobExpired(JobEvent, frozen=True, gc=False):
    """A job has ended because no worker started it in time; it had no run."""

    expired_at: datetime
    """By when it should have been started."""


class RunEvent(JobEvent, frozen=True, gc=False):
    """Something that happened to one run of a job."""

    worker_id: UUID
    attempt: int
    waited: float | None
    """Seconds from when the job was due until a worker claimed it; None: its worker went silent."""


class RunStarted(RunEvent, frozen=True, gc=False):
    """A worker has claimed a job for a free slot, and calls its handler."""


class RunFinished(RunEvent, frozen=True, gc=False):
    """A run has ended, and how it ended is stored."""

    ran: float | None
    """Seconds that its handler ran; None: its worker went silent."""


class RunSucceeded(RunFinished, frozen=True, gc=False):
    """The handler returned."""


class RunFailed(RunFinished, frozen=True, gc=False):
    """A run failed: the job will be retried, or becomes a dead letter."""

    error_type: str
    """The class of the error: ``ValueError``, ``httpx.ReadTimeout``; ``TimeoutError`` if the run
    took too long, ``LeaseExpired`` if its worker went silent."""
    error: str
    """The error, as the job's ``last_error`` has it."""


class JobRetryScheduled(RunFailed, frozen=True, gc=False):
    """A run failed, and the job will be retried."""


class JobDeadLettered(RunFailed, frozen=True, gc=False):
    """A run failed, and the job gets no other attempt."""


class RunCancelled(RunFinished, frozen=True, gc=False):
    """A run has ended in the job's cancellation.

    A job that is cancelled before it runs has no run, and publishes nothing.
    """


class RunSuspended(RunFinished, frozen=True, gc=False):
    """A workflow waits, without a slot; a later run continues it."""

    wait: str
    """What it waits for: ``SLEEP``, ``SIGNAL``, ``JOB`` or ``FAN_OUT``."""


class RunSnoozed(RunFinished, frozen=True, gc=False):
    """The handler asked to run again later; the attempt is given back."""

    delay: float
    """Seconds until then."""


class RunHandedBack(RunFinished, frozen=True, gc=False):
    """The worker stopped, or died with several jobs in flight; the attempt is given back."""


class RunLeaseLost(RunFinished, frozen=True, gc=False):
    """A run lost its lease, so its outcome does not count: another run decides."""


class EngineEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that happened to a process, not to one job."""


class JobsClaimed(EngineEvent, frozen=True, gc=False):
    """A worker asked for jobs; there may have been none."""

    worker_id: UUID
    queue: str
    jobs: int
    seconds: float
    """How long the store took to answer, with all storage retries."""


class LeasesExpired(EngineEvent, frozen=True, gc=False):
    """A watchdog ended the runs of workers that went silent."""

    count: int


class StorageRetried(EngineEvent, frozen=True, gc=False):
    """An operation of the database failed, and is tried again."""

    operation: str
    error_type: str
    error: str


class ListenerChanged(EngineEvent, frozen=True, gc=False):
    """Notifications of new jobs arrive again, or no longer; without them, workers poll."""

    connected: bool


Event: TypeAlias = (
    JobEnqueued
    | JobExpired
    | RunStarted
    | RunSucceeded
    | JobRetryScheduled
    | JobDeadLettered
    | RunCancelled
    | RunSuspended
    | RunSnoozed
    | RunHandedBack
    | RunLeaseLost
    | JobsClaimed
    | LeasesExpired
    | StorageRetried
    | ListenerChanged
)

ENDS: frozenset[type[Event]] = frozenset(
    {
        RunSucceeded,
        JobRetryScheduled,
        JobDeadLettered,
        RunCancelled,
        RunSuspended,
        RunSnoozed,
        RunHandedBack,
        RunLeaseLost,
    }
)
"""The events that end a run: each run has exactly one, once the database has answered."""

KINDS: frozenset[type[Event]] = ENDS | {
    JobEnqueued, JobExpired, RunStarted, JobsClaimed, LeasesExpired, StorageRetried,
    ListenerChanged,
}  # fmt: skip
"""All kinds of events."""


class RunCount(msgspec.Struct, frozen=True, gc=False):
    """How many events of one kind happened to the runs of one topic in one queue.

    Metrics and statistics subscribe to this: an object for each run would cost more than counting
    it. It is not among ``KINDS``, because it repeats what the events say.
    """

    kind: type[RunEvent]
    queue: str
    topic: str
    at: datetime
    worker_id: UUID | None
    """The worker of the runs; None: of several, which went silent."""
    count: int
    seconds: float
    """The sum of the waits of started runs, or of the durations of ended ones…"""
    buckets: Mapping[int, int]
    """…and how many of them are in each bucket of a histogram."""


class EnqueueCount(msgspec.Struct, frozen=True, gc=False):
    """How many jobs of one topic were enqueued in one queue: the count of ``JobEnqueued``."""

    queue: str
    topic: str
    count: int


Published: TypeAlias = Event | RunCount | EnqueueCount
"""What can be subscribed to."""

CountKey: TypeAlias = tuple[type[RunEvent], str, str]
"""A kind, a queue and a topic."""


def run_counts(
    durations: Mapping[CountKey, Sequence[float]], at: datetime, worker_id: UUID | None
) -> list[RunCount]:
    """Return the counts of events that took so long; less than no time is none."""
    return [_run_count(key, at, worker_id, len(each), each) for key, each in durations.items()]


def counts_of(events: Iterable[RunEvent], worker_id: UUID | None = None) -> list[RunCount]:
    """Return the counts of events that happened at the same time."""
    found: dict[CountKey, list[RunEvent]] = {}
    for event in events:
        found.setdefault((type(event), event.queue, event.topic), []).append(event)
    return [
        _run_count(key, each[0].at, worker_id, len(each), [*_durations(each)])
        for key, each in found.items()
    ]


def _durations(events: Iterable[RunEvent]) -> Iterator[float]:
    for event in events:
        seconds = event.waited if isinstance(event, RunStarted) else getattr(event, "ran", None)
        if seconds is not None:
            yield seconds


def _run_count(
    key: CountKey, at: datetime, worker_id: UUID | None, count: int, durations: Sequence[float]
) -> RunCount:
    if durations and min(durations) < 0.0:
        durations = [max(0.0, seconds) for seconds in durations]
    return RunCount(*key, at, worker_id, count, sum(durations), buckets_of(durations))

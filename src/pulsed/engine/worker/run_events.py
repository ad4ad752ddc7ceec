"""Publishes what happens to a worker's runs, in the batches in which it happens.

Ends are published when the database has answered: an event says what is stored. A run whose report
was not accepted publishes only that its lease was lost. Batches are counted for those who only
count; an object for each run is made only for a kind that has a subscriber. Without any, a run
costs one check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, assert_never
from uuid import UUID

from pulsed.engine.database_clock import DatabaseClock
from pulsed.engine.error_text import type_name
from pulsed.engine.worker.run import Run, StopReason
from pulsed.errors import InvalidPayload, WorkflowError
from pulsed.model import events as of
from pulsed.model.events import ENDS, CountKey, Event, Published, RunCount, run_counts
from pulsed.model.job import Assignment, Lease
from pulsed.model.lifecycle import is_dead_letter
from pulsed.model.outcome import (
    Cancelled,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Waiting,
)
from pulsed.model.timetable import EPOCH
from pulsed.store.event_bus import Events
from pulsed.store.results import Accepted

OF_RUNS: frozenset[type[Published]] = ENDS | {of.RunStarted, RunCount}
FAILURES = (of.JobRetryScheduled, of.JobDeadLettered)
SECOND = timedelta(seconds=1)
"""To divide by, which is faster than ``total_seconds()``."""
GATHER = 0.1
"""Seconds for which counts gather before they are published."""


class RunEvents:
    """Makes the events of a worker's runs. For use in the event loop's thread only."""

    def __init__(self, events: Events, clock: DatabaseClock, worker_id: UUID) -> None:
        self._events = events
        self._clock = clock
        self._worker_id = worker_id
        self._counted: dict[CountKey, list[float]] = {}
        """The durations of runs that are not published as counts yet, and…"""
        self._counted_at = EPOCH
        """…when the last of them was counted."""
        self._timer: asyncio.TimerHandle | None = None

    def started(self, runs: Sequence[Run], claimed_at: float) -> None:
        """Publish that runs start; their jobs were claimed at an instant of the monotonic clock."""
        wanted = self._events.wanted
        if wanted.isdisjoint(OF_RUNS):
            return
        at = self._clock.at(claimed_at)
        queue = topic = due = None
        waited = 0.0
        for run in runs:
            run.claimed_at = at
            job = run.assignment
            if job.next_run_at is not due:  # as it is for jobs that were enqueued together
                due = job.next_run_at
                waited = (at - due) / SECOND
            if job.topic != topic or job.queue != queue:
                queue, topic = job.queue, job.topic
                count = self._counted.setdefault((of.RunStarted, queue, topic), []).append
            count(waited)
        self._publish_counts_soon(at)
        if of.RunStarted in wanted:
            self._events.publish([_event(of.RunStarted, run, at) for run in runs])

    def failed(self, run: Run) -> None:
        """Note what a run has failed with, before its report goes to the database."""
        if self._events.wanted:
            run.error_type = _error_type(run)

    def lost(self, run: Run) -> None:
        """Publish that a run has lost its lease before it ended."""
        run.ended = time.monotonic()
        self.settled([Report.of(run.assignment, Released(), run)], Accepted())

    def settled(self, reports: Sequence[Report], accepted: Accepted) -> None:
        """Publish how runs ended, after the database has answered their reports."""
        wanted = self._events.wanted
        if wanted.isdisjoint(OF_RUNS):
            return
        at = self._clock.now()
        published: list[Event] = []
        some_lost = len(accepted) < len(reports)
        last = queue = topic = None
        for lease, outcome, _, run in reports:
            if run is None:  # handed back before it started
                continue
            kind: Any = of.RunSucceeded
            if type(outcome) is not Succeeded or some_lost:
                kind = _kind(run, outcome, lease, accepted)
            if kind in wanted:
                published.append(_event(kind, run, at, outcome))
            job = run.assignment
            if kind is not last or job.topic != topic or job.queue != queue:
                last, queue, topic = kind, job.queue, job.topic
                count = self._counted.setdefault((kind, queue, topic), []).append
            count(run.ended - run.began if run.began else 0.0)
        self._publish_counts_soon(at)
        self._events.publish(published)

    def _publish_counts_soon(self, at: datetime) -> None:
        """Publish counts together with those of the next batches: that costs less than each."""
        self._counted_at = at
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER, self._publish_counts)

    def _publish_counts(self) -> None:
        self._timer = None
        counted, self._counted = self._counted, {}
        if RunCount in self._events.wanted:
            self._events.publish(run_counts(counted, self._counted_at, self._worker_id))

    def close(self) -> None:
        """Publish what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._publish_counts()


def _kind(run: Run, outcome: Outcome, lease: Lease, accepted: Accepted) -> type[Event]:
    """Return the kind of event that says how a run's end is stored."""
    if lease not in accepted:
        return of.RunLeaseLost
    if lease in accepted.cancelled:
        return of.RunCancelled
    match outcome:
        case Succeeded():
            return of.RunSucceeded
        case Failed():
            job = run.assignment
            dead = is_dead_letter(outcome, job.attempt, job.max_attempts)
            return of.JobDeadLettered if dead else of.JobRetryScheduled
        case Cancelled():
            return of.RunCancelled
        case Waiting():
            return of.RunSuspended
        case Snoozed():
            return of.RunSnoozed
        case Released():
            return of.RunHandedBack
        case _:
            assert_never(outcome)


def _event(
    kind: Callable[..., Event], run: Run, at: datetime, outcome: Outcome | None = None
) -> Event:
    """Return the event of a run that has started, or ended with this outcome."""
    job = run.assignment
    job_id, _, worker_id = job.lease
    waited = None if run.claimed_at is None else _waited(run.claimed_at, job)
    made = partial(kind, job_id, job.topic, job.queue, at, worker_id, job.attempt, waited)
    if kind is of.RunStarted:
        return made()
    match outcome:
        case Failed() if kind in FAILURES:
            return made(run.seconds(), run.error_type, outcome.error)
        case Waiting() if kind is of.RunSuspended:
            return made(run.seconds(), outcome.wait.kind.value)
        case Snoozed() if kind is of.RunSnoozed:
            return made(run.seconds(), outcome.delay)
        case _:
            return made(run.seconds())


def _waited(claimed_at: datetime, job: Assignment) -> float:
    return max(0.0, (claimed_at - job.next_run_at) / SECOND)


def _error_type(run: Run) -> str:
    """Return the class of a run's error; some runs fail without one that was raised."""
    if run.error_type:  # from another process
        return run.error_type
    if run.error is not None:
        return type_name(type(run.error))
    if run.stop is StopReason.TIMED_OUT:
        return type_name(TimeoutError)
    flow = run.flow
    return type_name(WorkflowError if flow is not None and flow.interrupted else InvalidPayload)

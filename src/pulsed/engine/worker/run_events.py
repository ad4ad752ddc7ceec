"""Publishes what happens to a worker's runs, in the batches in which it happens.

Ends are published when the database has answered: an event says what is stored. A run whose report
was not accepted publishes only that its lease was lost. Without subscribers, a run costs one check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import assert_never

from pulsed.engine.database_clock import DatabaseClock
from pulsed.engine.error_text import type_name
from pulsed.engine.worker.run import Run, StopReason
from pulsed.errors import InvalidPayload, WorkflowError
from pulsed.model import events as of
from pulsed.model.events import ENDS, Event
from pulsed.model.job import Status
from pulsed.model.lifecycle import status_after
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
from pulsed.store.event_bus import Events
from pulsed.store.results import Accepted


class RunEvents:
    """Makes the events of a worker's runs. For use in the event loop's thread only."""

    def __init__(self, events: Events, clock: DatabaseClock) -> None:
        self._events = events
        self._clock = clock

    def started(self, runs: Sequence[Run], claimed_at: float) -> None:
        """Publish that runs start; their jobs were claimed at an instant of the monotonic clock."""
        if not self._events.wanted:
            return
        at = self._clock.at(claimed_at)
        for run in runs:
            waited = (at - run.assignment.next_run_at).total_seconds()
            run.waited = waited if waited > 0.0 else 0.0  # noqa: FURB136 - half the time of max()
        if of.RunStarted in self._events.wanted:
            self._events.publish([_started(run, at) for run in runs])

    def ended(self, run: Run, outcome: Outcome) -> None:
        """Note how a run has ended, before its report goes to the database."""
        if self._events.wanted:
            run.ran = run.seconds()
            if isinstance(outcome, Failed):
                run.error_type = _error_type(run)

    def lost(self, run: Run) -> None:
        """Publish that a run has lost its lease before it ended."""
        if of.RunLeaseLost in self._events.wanted:
            run.ran = run.seconds()
            self._events.publish([_end(of.RunLeaseLost, run, self._clock.now())])

    def settled(self, reports: Sequence[Report], accepted: Accepted) -> None:
        """Publish how runs ended, after the database has answered their reports."""
        if ENDS.isdisjoint(self._events.wanted):
            return
        at = self._clock.now()
        published: list[Event] = []
        some_lost = len(accepted) < len(reports)
        for lease, outcome, _, run in reports:
            if run is None:  # handed back before it started
                continue
            if type(outcome) is Succeeded and not some_lost:
                published.append(_end(of.RunSucceeded, run, at))
            elif lease not in accepted:
                published.append(_end(of.RunLeaseLost, run, at))
            elif lease in accepted.cancelled:
                published.append(_end(of.RunCancelled, run, at))
            else:
                published.append(_event(outcome, run, at))
        self._events.publish(published)


def _started(run: Run, at: datetime) -> of.RunStarted:
    job = run.assignment
    job_id, _, worker_id = job.lease
    assert run.waited is not None
    return of.RunStarted(job_id, job.topic, job.queue, at, worker_id, job.attempt, run.waited)


def _end(kind: Callable[..., Event], run: Run, at: datetime, *more: object) -> Event:
    job = run.assignment
    job_id, _, worker_id = job.lease
    topic, queue = job.topic, job.queue
    return kind(job_id, topic, queue, at, worker_id, job.attempt, run.waited, run.ran, *more)


def _event(outcome: Outcome, run: Run, at: datetime) -> Event:
    """Return the event of an outcome that is stored as it was reported."""
    match outcome:
        case Succeeded():
            return _end(of.RunSucceeded, run, at)
        case Failed():
            kind = of.JobDeadLettered if _is_dead_letter(outcome, run) else of.JobRetryScheduled
            return _end(kind, run, at, run.error_type, outcome.error)
        case Cancelled():
            return _end(of.RunCancelled, run, at)
        case Waiting():
            return _end(of.RunSuspended, run, at, outcome.wait.kind.value)
        case Snoozed():
            return _end(of.RunSnoozed, run, at, outcome.delay)
        case Released():
            return _end(of.RunHandedBack, run, at)
        case _:
            assert_never(outcome)


def _is_dead_letter(outcome: Failed, run: Run) -> bool:
    job = run.assignment
    status = status_after(
        outcome, attempts=job.attempt, max_attempts=job.max_attempts, cancel_requested=False
    )
    return status is Status.DEAD_LETTERED


def _error_type(run: Run) -> str:
    """Return the class of a run's error; some runs fail without one that was raised."""
    if run.error is not None:
        return type_name(type(run.error))
    if run.stop is StopReason.TIMED_OUT:
        return type_name(TimeoutError)
    flow = run.context._flow  # noqa: SLF001 - the context is the run's own
    return type_name(WorkflowError if flow is not None and flow.interrupted else InvalidPayload)

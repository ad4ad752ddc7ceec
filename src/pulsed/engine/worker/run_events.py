"""Publishes what happens to a worker's runs, in the batches in which it happens.

Ends are published when the database has answered: an event says what is stored. A run whose report
was not accepted publishes only that its lease was lost. Without subscribers, a run costs one check.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, assert_never

from pulsed.engine.database_clock import DatabaseClock
from pulsed.engine.error_text import type_name
from pulsed.engine.worker.run import Run, StopReason
from pulsed.errors import InvalidPayload, WorkflowError
from pulsed.model import events as of
from pulsed.model.events import ENDS, Event
from pulsed.model.job import Assignment, Lease, Status
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


class _Ended(NamedTuple):
    """A run that has ended, and whose report the database has not answered."""

    assignment: Assignment
    claimed_at: float
    ran: float
    error_type: str


class RunEvents:
    """Makes the events of a worker's runs. For use in the event loop's thread only."""

    def __init__(self, events: Events, clock: DatabaseClock) -> None:
        self._events = events
        self._clock = clock
        self._unsettled: dict[Lease, _Ended] = {}

    def claimed(self, assignments: Sequence[Assignment], claimed_at: float) -> None:
        """Publish that runs start."""
        if of.Started not in self._events.wanted:
            return
        at = self._clock.at(claimed_at)
        self._events.publish(
            [
                of.Started(
                    job_id=job.lease.job_id,
                    topic=job.topic,
                    queue=job.queue,
                    at=at,
                    worker_id=job.lease.worker_id,
                    attempt=job.attempt,
                    waited=max(0.0, (at - job.next_run_at).total_seconds()),
                )
                for job in assignments
            ]
        )

    def ended(self, run: Run) -> None:
        """Note that a run's outcome is on its way to the database."""
        if self._events.wanted:
            self._unsettled[run.lease] = _ended(run)

    def lost(self, run: Run) -> None:
        """Publish that a run has lost its lease before it ended."""
        if of.LeaseLost in self._events.wanted:
            self._events.publish([of.LeaseLost(**self._fields(_ended(run), self._clock.now()))])

    def settled(
        self, reports: Sequence[Report], accepted: Collection[Lease], cancelled: Collection[Lease]
    ) -> None:
        """Publish how runs ended, after the database has answered their reports.

        ``cancelled`` are those of the accepted whose jobs were cancelled, whatever was reported.
        """
        if not self._unsettled:
            return
        found = [(report, self._unsettled.pop(report.lease, None)) for report in reports]
        if ENDS.isdisjoint(self._events.wanted):
            return
        at = self._clock.now()
        published: list[Event] = []
        for report, ended in found:
            if ended is None:
                continue
            if report.lease not in accepted:
                published.append(of.LeaseLost(**self._fields(ended, at)))
            elif report.lease in cancelled:
                published.append(of.Cancelled(**self._fields(ended, at)))
            else:
                published.append(self._event(report.outcome, ended, at))
        self._events.publish(published)

    def _event(self, outcome: Outcome, ended: _Ended, at: datetime) -> Event:
        fields, job = self._fields(ended, at), ended.assignment
        match outcome:
            case Succeeded():
                return of.Succeeded(**fields)
            case Failed():
                status = status_after(
                    outcome,
                    attempts=job.attempt,
                    max_attempts=job.max_attempts,
                    cancel_requested=False,
                )
                kind = of.DeadLettered if status is Status.DEAD_LETTERED else of.Failed
                return kind(**fields, error_type=ended.error_type, error=outcome.error)
            case Cancelled():
                return of.Cancelled(**fields)
            case Waiting():
                return of.Suspended(**fields, wait=outcome.wait.kind.value)
            case Snoozed():
                return of.Snoozed(**fields, delay=outcome.delay)
            case Released():
                return of.HandedBack(**fields)
            case _:
                assert_never(outcome)

    def _fields(self, ended: _Ended, at: datetime) -> Mapping[str, Any]:
        job = ended.assignment
        waited = (self._clock.at(ended.claimed_at) - job.next_run_at).total_seconds()
        return {
            "job_id": job.lease.job_id,
            "topic": job.topic,
            "queue": job.queue,
            "at": at,
            "worker_id": job.lease.worker_id,
            "attempt": job.attempt,
            "waited": max(0.0, waited),
            "ran": ended.ran,
        }


def _ended(run: Run) -> _Ended:
    return _Ended(run.assignment, run.claimed_at, run.seconds(), _error_type(run))


def _error_type(run: Run) -> str:
    """Return the class of a run's error; some runs fail without one that was raised."""
    if run.error is not None:
        return type_name(type(run.error))
    if run.stop is StopReason.TIMED_OUT:
        return type_name(TimeoutError)
    flow = run.context._flow  # noqa: SLF001 - the context is the run's own
    return type_name(WorkflowError if flow is not None and flow.interrupted else InvalidPayload)

"""What a drain has run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from pulsed.errors import JobFailed, RetryAfter
from pulsed.model.job import Assignment
from pulsed.model.outcome import Cancelled, Failed, Outcome, Released, Snoozed, Succeeded, Waiting


class Ended(StrEnum):
    """How one run ended. Each equals its text: ``ran.outcome == "succeeded"``."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SNOOZED = "snoozed"
    WAITING = "waiting"
    """A workflow suspended itself: it sleeps, or waits for a signal, a job or its children."""
    CANCELLED = "cancelled"
    RELEASED = "released"
    """The job was handed back."""
    CRASHED = "crashed"
    """The drain's ``crash`` ended the run."""
    LOST = "lost"
    """The run's report did not count; another run decides."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a job in a drain."""

    job_id: UUID
    topic: str
    attempt: int
    outcome: Ended
    error: BaseException | None = None
    """What the handler raised, if it failed."""
    is_failure: bool = False
    """Whether a drain with ``raises`` raises its error, if no later run of the job follows."""

    @classmethod
    def of(
        cls, job: Assignment, outcome: Outcome | Ended | None, error: BaseException | None = None
    ) -> Ran:
        """Return the run of a claimed job that ended like this; None: its lease was lost."""
        ended = outcome if isinstance(outcome, Ended) else _ended(outcome)
        if isinstance(outcome, Failed) and error is None:
            error = JobFailed(f"Job {job.job_id} ({job.topic}): {outcome.error}", job_id=job.job_id)
        is_over = job.attempt >= job.max_attempts
        # A child's failure is its parent's to handle, and a RetryAfter is no accident.
        is_failure = job.parent_id is None and (is_over or not isinstance(error, RetryAfter))
        return cls(
            job.job_id,
            job.topic,
            job.attempt,
            ended,
            error if ended is Ended.FAILED else None,
            ended is Ended.FAILED and is_failure,
        )

    def __str__(self) -> str:
        return f"{self.topic} {self.outcome}"


def _ended(outcome: Outcome | None) -> Ended:
    match outcome:
        case Succeeded():
            return Ended.SUCCEEDED
        case Failed():
            return Ended.FAILED
        case Snoozed():
            return Ended.SNOOZED
        case Waiting():
            return Ended.WAITING
        case Cancelled():
            return Ended.CANCELLED
        case Released():
            return Ended.RELEASED
        case None:
            return Ended.LOST

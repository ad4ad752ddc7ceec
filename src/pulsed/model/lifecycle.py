"""The state machine of a job, as data and pure functions.

``store/sql/end_of_run.py`` says the same in SQL, where it takes effect. The tests drive both with
the same random steps and compare. ``docs/state-machine.md`` has the diagram.
"""

from __future__ import annotations

from typing import TypeAlias

from pulsed.model.job import Status
from pulsed.model.outcome import (
    INTERRUPTED,
    LEASE_EXPIRED,
    Cancelled,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Waiting,
)

CLAIMABLE = (Status.PENDING, Status.RETRYING, Status.WAITING)
"""Waiting for a worker, now or at ``next_run_at``. A retry and a delay are the same thing."""
LIVING = (*CLAIMABLE, Status.RUNNING)
TERMINAL = (Status.SUCCEEDED, Status.DEAD_LETTERED, Status.CANCELLED)
REPLAYABLE = (Status.DEAD_LETTERED, Status.CANCELLED)
DELETABLE = (*CLAIMABLE, *TERMINAL)

Ending: TypeAlias = Outcome | str
"""How a run ended: as its worker reported, or by ``ending_of_silence`` if its lease expired."""

SUSPECT_AFTER = 2
"""Crashes in a row of its process, with several jobs in flight, that make a job a suspect. It may
be what kills the process: it runs beside no other suspect, and its next crash costs an attempt."""


def is_cancelled(status: Status) -> bool:
    """Whether a cancel that left this status has ended the job, or asked it to stop."""
    return status in (Status.CANCELLED, Status.RUNNING)


def outcome_name(ending: Ending) -> str:
    """Return the name that ``last_outcome`` stores for an ending."""
    match ending:
        case Succeeded():
            return "SUCCEEDED"
        case Failed():
            return "FAILED"
        case Snoozed():
            return "SNOOZED"
        case Cancelled():
            return "CANCELLED"
        case Released():
            return "RELEASED"
        case Waiting():
            return "WAITING"
        case str():
            return ending


def ending_of_silence(*, alone: bool, crashes: int) -> str:
    """Return the ending of a run whose lease expired; ``alone``: its worker ran no other job."""
    return LEASE_EXPIRED if alone or crashes >= SUSPECT_AFTER else INTERRUPTED


def crashes_after(ending: Ending, crashes: int) -> int:
    """Return how often in a row a job's process has died with several jobs in flight.

    A report proves that the process survived the run. A release proves nothing, and after a
    terminal state the number no longer matters.
    """
    match ending:
        case "INTERRUPTED":
            return crashes + 1
        case Failed() | Snoozed() | Waiting():
            return 0
        case _:
            return crashes


def status_after(
    ending: Ending, *, attempts: int, max_attempts: int, cancel_requested: bool
) -> Status:
    """Return the next status of a RUNNING job. An expired lease is treated like a failure.

    A request to cancel turns everything but success into CANCELLED, so that it is not lost
    when the run fails, is released or loses its lease.
    """
    match ending:
        case Succeeded():
            return Status.SUCCEEDED
        case Cancelled():
            return Status.CANCELLED
        case _ if cancel_requested:
            return Status.CANCELLED
        case Released() | Snoozed() | "INTERRUPTED":
            return Status.PENDING
        case Waiting():
            return Status.WAITING
        case Failed(final=True):
            return Status.DEAD_LETTERED
        case _ if attempts < max_attempts:
            return Status.RETRYING
        case _:
            return Status.DEAD_LETTERED


def is_dead_letter(outcome: Failed, attempts: int, max_attempts: int) -> bool:
    """Whether a failed run ends its job, for all its worker knows: not of a request to cancel."""
    status = status_after(
        outcome, attempts=attempts, max_attempts=max_attempts, cancel_requested=False
    )
    return status is Status.DEAD_LETTERED


def gives_attempt_back(ending: Ending) -> bool:
    """Whether the run does not count against ``max_attempts``."""
    return isinstance(ending, Released | Snoozed | Waiting) or ending == INTERRUPTED


def status_after_cancel(status: Status) -> Status:
    """Return the status right after a request to cancel; a RUNNING job changes when it ends."""
    return Status.CANCELLED if status in CLAIMABLE else status

"""The state machine of a job, as data and pure functions.

``store/sql/end_of_run.py`` says the same in SQL, where it takes effect. The tests drive both with
the same random steps and compare. ``docs/state-machine.md`` is the picture.
"""

from __future__ import annotations

from typing import TypeAlias

from pulsed.model.job import Status
from pulsed.model.outcome import (
    EXPIRED,
    INTERRUPTED,
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
"""How a run ended: what its worker reported, or ``ending_of_silence`` when it went silent."""

SUSPECT_AFTER = 2
"""Times in a row that a job's process died with several jobs, before it is a suspect: a job that
may kill its process, runs beside no other suspect, and pays for the next time."""


def is_cancelled(status: Status) -> bool:
    """Whether a job with this status after a cancel has ended by it, or been asked to stop."""
    return status in (Status.CANCELLED, Status.RUNNING)


def outcome_name(ending: Ending) -> str:
    """Return the word that ``last_outcome`` keeps for an ending."""
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
    """Return how a run ended whose worker went silent, with no other job or with some."""
    return EXPIRED if alone or crashes >= SUSPECT_AFTER else INTERRUPTED


def crashes_after(ending: Ending, crashes: int) -> int:
    """Return how often in a row a job's process has died with several jobs.

    A report proves that the process lived through the run; a hand-back proves nothing, and with an
    end it no longer matters.
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
    """Return where a RUNNING job goes. A loud and a silent failure take the same path.

    A request to cancel turns everything but success into CANCELLED, so that it is not forgotten
    when the run fails, is handed back or goes silent.
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


def gives_attempt_back(ending: Ending) -> bool:
    """Whether the run does not count against ``max_attempts``."""
    return isinstance(ending, Released | Snoozed | Waiting) or ending == INTERRUPTED


def status_after_cancel(status: Status) -> Status:
    """Return where a request to cancel takes a job at once; a RUNNING one decides at its end."""
    return Status.CANCELLED if status in CLAIMABLE else status

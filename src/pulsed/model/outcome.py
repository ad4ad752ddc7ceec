"""How one run of a job ended, and the answers to reports and heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from pulsed.batches import text_size
from pulsed.model.job import Assignment, Lease
from pulsed.model.step import Checkpoint, Wait


class Succeeded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The handler returned; ``result`` is its value as JSON text."""

    result: str | None = None
    discard_checkpoints: bool = False
    """Delete the job's checkpoints with the success; only workflows have any."""


class Failed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The handler raised. ``delay`` overrules the backoff; ``final`` dead-letters the job."""

    error: str
    traceback: str | None = None
    delay: float | None = None
    final: bool = False


class Snoozed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run again later; the attempt is given back."""

    delay: float


class Cancelled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The run stopped at a request to cancel."""

    reason: str = "cancelled on request"


class Released(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The worker hands the job back unfinished; the attempt is given back."""


class Waiting(msgspec.Struct, frozen=True):
    """The run is suspended; the attempt is given back. The checkpoint records the wait."""

    wait: Wait
    checkpoint: Checkpoint


Outcome: TypeAlias = Succeeded | Failed | Snoozed | Cancelled | Released | Waiting

LEASE_EXPIRED = "LEASE_EXPIRED"
"""The outcome of a run whose lease expired without a report; the store's reap writes it."""

INTERRUPTED = "INTERRUPTED"
"""The same if its worker ran other jobs, too: the attempt is given back."""

EXPIRED = "EXPIRED"
"""The outcome of a job that was not started in time; there was no run."""

EXPIRED_ERROR = "it expired: no worker started it in time"
"""The ``last_error`` of such a job."""

OUTCOMES = (
    "SUCCEEDED", "FAILED", "SNOOZED", "WAITING", "RELEASED", "CANCELLED", "REPLAYED", "REPLACED",
    EXPIRED, LEASE_EXPIRED, INTERRUPTED,
)  # fmt: skip
"""What ``last_outcome`` can be: how the last run ended, or what has happened since."""

LEASE_ERROR = "worker lease expired"
"""The ``last_error`` of a run whose lease expired."""

LEASE_ERROR_TOGETHER = f"{LEASE_ERROR}; it ran other jobs, too, so this attempt does not count"
"""The same in the history of a job that was interrupted."""


class Report(NamedTuple):
    """How one run ended, under the lease it ran with."""

    lease: Lease
    outcome: Outcome
    is_child: bool | None = None
    """Whether the job has a parent; None if unknown, which is correct but slower."""
    run: Any = None
    """The worker's own object for the run, which it gets back with the answer. Not stored."""

    @classmethod
    def of(cls, assignment: Assignment, outcome: Outcome, run: object = None) -> Report:
        """Return the report on a claimed job."""
        values = assignment.lease, outcome, assignment.parent_id is not None, run
        return tuple.__new__(cls, values)  # in half of the time that cls() takes

    @property
    def size(self) -> int:
        """Its approximate size in the database, in bytes."""
        outcome = self.outcome
        if type(outcome) is Succeeded:  # as nearly always
            return text_size(outcome.result)
        match outcome:
            case Failed(error, traceback):
                return text_size(error) + text_size(traceback)
            case Waiting(_, checkpoint):
                return text_size(checkpoint.value)
            case _:
                return 0


class Successes(NamedTuple):
    """Successful runs of one worker, as columns: none of them has a ``Report`` of its own."""

    worker_id: UUID
    job_ids: Sequence[UUID]
    tokens: Sequence[int]
    results: Sequence[str | None]


class Beat(StrEnum):
    """The answer to a heartbeat, for each job."""

    OK = "OK"
    CANCEL = "CANCEL"
    """The lease is extended, and the job was asked to stop."""
    LOST = "LOST"
    UNKNOWN = "UNKNOWN"
    """Another transaction holds the row's lock: keep running, and send another heartbeat."""

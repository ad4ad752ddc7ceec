"""Bulk operations: an act on all jobs that match a filter, and how far it has come."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption
from pulsed.model.job import JobFilter, PayloadField, Status
from pulsed.model.lifecycle import CLAIMABLE, DELETABLE, REPLAYABLE

MOST_RUNNING = 20
"""Operations that may be in progress at the same time."""
MOST_SKIPS = 1_000
"""Skipped jobs that an operation remembers; it counts the others."""
LONGEST_LIST = 1_000
"""The most operations that one read returns."""
LONGEST_FILTER = 20_000
"""Characters of a filter as stored."""
LONGEST_ERROR = 1_000
"""Characters of the error of an operation that failed."""
KEPT_OPERATIONS = 1_000
"""Operations that ended beyond this number, or this age, are removed, the oldest first."""
KEPT_SECONDS = 90 * 86_400.0


class BulkKind(StrEnum):
    """What is done to jobs."""

    RETRY = "RETRY"
    CANCEL = "CANCEL"
    DELETE = "DELETE"
    RUN_NOW = "RUN_NOW"
    RESCHEDULE = "RESCHEDULE"
    REPRIORITISE = "REPRIORITISE"
    MOVE = "MOVE"

    @property
    def verb(self) -> str:
        """What a person calls it: ``retry``, ``run now`` …."""
        return _KINDS[self].verb

    @property
    def done(self) -> str:
        """What a job is afterwards: ``retried``, ``made due`` …."""
        return _KINDS[self].done

    @property
    def allowed(self) -> tuple[Status, ...]:
        """The statuses in which it can be done."""
        return _KINDS[self].allowed

    @property
    def removes_jobs(self) -> bool:
        """Whether the jobs are gone afterwards."""
        return self is BulkKind.DELETE


class _Words(NamedTuple):
    verb: str
    done: str
    allowed: tuple[Status, ...]


_KINDS = {
    BulkKind.RETRY: _Words("retry", "retried", REPLAYABLE),
    BulkKind.CANCEL: _Words("cancel", "cancelled", (*CLAIMABLE, Status.RUNNING)),
    BulkKind.DELETE: _Words("delete", "deleted", DELETABLE),
    BulkKind.RUN_NOW: _Words("run now", "made due", CLAIMABLE),
    BulkKind.RESCHEDULE: _Words("reschedule", "rescheduled", (Status.PENDING, Status.RETRYING)),
    BulkKind.REPRIORITISE: _Words("reprioritise", "reprioritised", CLAIMABLE),
    BulkKind.MOVE: _Words("move", "moved", CLAIMABLE),
}


class BulkAct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An act on jobs, with its arguments."""

    kind: BulkKind
    fresh: bool = False
    """RETRY: workflows restart from the beginning, not from their checkpoints."""
    at: datetime | None = None
    """RESCHEDULE: when the jobs may start."""
    delay: float | None = None
    """RESCHEDULE: the same, in seconds from the start of the act."""
    priority: int | None = None
    """REPRIORITISE: the new one."""
    queue: str | None = None
    """MOVE: the new one."""

    @property
    def changes_jobs(self) -> bool:
        """Whether it changes when, where or how soon jobs start, and not their status."""
        return self.kind in (BulkKind.RESCHEDULE, BulkKind.REPRIORITISE, BulkKind.MOVE)


RETRY = BulkAct(kind=BulkKind.RETRY)
RETRY_FRESH = BulkAct(kind=BulkKind.RETRY, fresh=True)
CANCEL = BulkAct(kind=BulkKind.CANCEL)
DELETE = BulkAct(kind=BulkKind.DELETE)
RUN_NOW = BulkAct(kind=BulkKind.RUN_NOW)


class BulkState(StrEnum):
    """Whether an operation goes on, and if not, why."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    STOPPED = "STOPPED"
    """By an operator; what was done stays done."""
    FAILED = "FAILED"


class BulkRow(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk operation, as stored."""

    id: UUID
    kind: BulkKind
    arguments: str
    filter: str
    actor: str
    role: str
    claimed: str
    state: BulkState
    cursor: UUID
    """The jobs below this id are still to be visited."""
    done: int
    skipped: int
    total: int
    """How many jobs matched before the start…"""
    is_at_least: bool
    """…or more: counting reached its limit."""
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    error: str | None = None

    @property
    def act(self) -> BulkAct:
        """The act with its arguments."""
        return msgspec.convert({**_decoded(self.arguments), "kind": self.kind}, BulkAct)

    @property
    def where(self) -> JobFilter:
        """Which jobs it is about."""
        return filter_of(self.filter)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be done."""
        return self.state is not BulkState.RUNNING

    @property
    def percent(self) -> int:
        """How much of what was expected is done, as far as that is known."""
        if self.state is BulkState.DONE:
            return 100
        return min(99, 100 * (self.done + self.skipped) // max(1, self.total))


class SkipReason(StrEnum):
    """Why an operation left a job as it is."""

    STATUS = "STATUS"
    """Its status does not allow the act, or does not any more."""
    KEY = "KEY"
    """Another job holds its key."""
    FAMILY = "FAMILY"
    """Its parent or one of its children has not ended."""
    LOCKED = "LOCKED"
    """Another session of the database has locked its row."""
    CHANGED = "CHANGED"
    """It changed between the search and the act: it does not match any more, or was removed."""


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """A job that an operation left as it is."""

    job_id: UUID
    status: Status | None = None
    """What it was then; None if it was not read."""
    reason: SkipReason
    holder: UUID | None = None
    """The job that holds its key."""

    @property
    def words(self) -> str:
        """The reason, for a person."""
        match self.reason:
            case SkipReason.KEY:
                return f"job {self.holder} holds its key"
            case SkipReason.FAMILY:
                return "its parent or one of its children has not ended"
            case SkipReason.LOCKED:
                return "another session of the database had locked it"
            case SkipReason.CHANGED:
                return "it changed in the meantime and does not match any more"
            case SkipReason.STATUS:
                return f"it was {self.status}"


def arguments_text(act: BulkAct) -> str:
    """Return the arguments of an act as stored."""
    fields = msgspec.to_builtins(act)
    del fields["kind"]
    return msgspec.json.encode(fields).decode()


def filter_text(where: JobFilter) -> str:
    """Return a filter as stored: the conditions that it has, and no others."""
    every = JobFilter()
    given = {
        name: value
        for name, value in msgspec.structs.asdict(where).items()
        if value != getattr(every, name)
    }
    text = msgspec.json.encode(given).decode()
    if len(text) > LONGEST_FILTER:
        raise InvalidOption(
            f"The filter of a bulk operation may have {LONGEST_FILTER:,} characters, not "
            f"{len(text):,}. Nothing was started."
        )
    return text


def filter_of(text: str) -> JobFilter:
    """Return a stored filter. One with a condition that this code does not know is refused."""
    given = _decoded(text)
    if unknown := given.keys() - set(JobFilter.__struct_fields__):
        raise InvalidOption(
            f"The operation was started by a newer pulsed: its filter has {', '.join(unknown)}."
        )
    # Not converted: a float has not enough digits for every integer.
    fields = tuple(PayloadField(tuple(path), value) for path, value in given.pop("payload", ()))
    return msgspec.structs.replace(msgspec.convert(given, JobFilter), payload=fields)


def _decoded(text: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(text)
    return found

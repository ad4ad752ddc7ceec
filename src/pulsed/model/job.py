"""The values that travel between producer, store and worker: jobs, leases and outcomes.

All are frozen. The ones made once per job on a hot path are msgspec structs, which are several
times cheaper to build than dataclasses.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from pulsed.model.backoff import Backoff
from pulsed.model.limit import LimitRule

DEFAULT_QUEUE = "default"
"""The queue of a job if neither its handler nor its caller names another."""


class Status(StrEnum):
    """The state of a job; ``lifecycle`` has the transitions."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    DEAD_LETTERED = "DEAD_LETTERED"
    CANCELLED = "CANCELLED"


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to submit. A claim fills policy fields that are ``None`` from the worker's handler.

    It refers to plain values only, so the garbage collector need not traverse thousands of them.
    """

    id: UUID
    topic: str
    payload: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    delay: float = 0.0
    at: datetime | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    lease: float | None = None
    headers: dict[str, str] | None = None
    tags: tuple[str, ...] = ()
    schedule_id: UUID | None = None
    occurrence: datetime | None = None
    parent_id: UUID | None = None
    parent_step: str | None = None
    """Which of its parent's fan-outs it belongs to."""
    outlives: bool | None = None
    """Whether it continues when its parent fails. If its parent is cancelled, so is it."""
    key: str | None = None
    """At most one job of the topic holds it."""
    key_for: str | None = None
    """How long: ``start``, ``end``, or seconds as text; see ``keys.py``. None means ``end``."""
    on_duplicate: str | None = None
    """What happens if another job holds the key; None means ``return``."""
    expires: float | None = None
    """Seconds from when it may start, after which it is not started any more…"""
    expires_at: datetime | None = None
    """…or the instant."""
    limit_key: str | None = None
    """The key of its limit. None if there is none, or if a worker is to compute it."""


def with_limit_key(job: NewJob, rule: LimitRule | None) -> NewJob:
    """Return a job with the key of its limit."""
    if rule is None:
        return job
    return msgspec.structs.replace(job, limit_key=rule.key_of(job.payload))


class TopicPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a topic, from the worker's handler; a claim fills a job's unset fields."""

    topic: str
    max_attempts: int = 3
    backoff: Backoff = Backoff.quadratic()
    timeout: float | None = None
    lease: float = 30.0
    limit_name: str = ""
    """The limit of its jobs; empty: none. It is not a column: it decides how they are claimed."""
    limit_per: str = ""
    limit_default: str = ""
    """How a job's key is computed; see ``LimitRule``."""

    @property
    def limit(self) -> LimitRule | None:
        """The rule for the keys of its jobs."""
        if not self.limit_name:
            return None
        return LimitRule(self.limit_name, self.limit_per, self.limit_default)


class Lease(NamedTuple):
    """The right to report on a job: valid while the row carries the same token and worker."""

    job_id: UUID
    token: int
    worker_id: UUID


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A claimed job, with all that a worker needs in order to run it."""

    lease: Lease
    topic: str
    queue: str
    priority: int
    payload: str
    attempt: int
    max_attempts: int
    lease_seconds: float
    timeout: float | None
    headers: dict[str, str]
    next_run_at: datetime
    submitted_at: datetime
    schedule_id: UUID | None = None
    occurrence: datetime | None = None
    parent_id: UUID | None = None

    @property
    def job_id(self) -> UUID:
        """The id of the job."""
        return self.lease.job_id

    @property
    def lease_token(self) -> int:
        """The fencing token of this claim."""
        return self.lease.token


FOREVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The ``next_run_at`` of a job that waits for a wake-up without a deadline."""


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the database has it. Times are UTC, payload and result are JSON text."""

    id: UUID
    queue: str
    topic: str
    status: Status
    priority: int
    payload: str
    result: str | None = None
    headers: dict[str, str]
    tags: tuple[str, ...]
    attempts: int = 0
    max_attempts: int | None = None
    timeout: float | None = None
    lease_seconds: float | None = None
    next_run_at: datetime
    lease_token: int = 0
    locked_by: UUID | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False
    last_worker: UUID | None = None
    last_outcome: str | None = None
    last_error: str | None = None
    submitted_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    updated_at: datetime
    """When it last changed, other than by a heartbeat."""
    progress: str | None = None
    schedule_id: UUID | None = None
    """The schedule that made it, if one did."""
    occurrence: datetime | None = None
    """The instant at which that schedule was due; None for a manual run."""
    parent_id: UUID | None = None
    """The job whose fan-out made it."""
    parent_step: str | None = None
    wait_kind: str | None = None
    """What it waits for. Means something only while it is WAITING."""
    wait_key: str | None = None
    crashes: int = 0
    """How often in a row its worker died while it ran this job and others."""
    key: str | None = None
    key_for: str | None = None
    key_held: bool = False
    """Whether no other job of its topic can have its key now."""
    key_until: datetime | None = None
    """When it stops holding its key, if it holds it for a period."""
    limit_key: str | None = None
    """The key of its limit: the name, or the name and a value."""
    expires_at: datetime | None = None
    """The instant from which on it is not started any more; means nothing once it has started."""

    @property
    def has_expired(self) -> bool:
        """Whether it has ended because no worker started it in time."""
        return self.status is Status.CANCELLED and self.last_outcome == "EXPIRED"

    @property
    def is_cancelling(self) -> bool:
        """Whether it was asked to stop and still runs."""
        return self.cancel_requested and self.status is Status.RUNNING

    @property
    def due_at(self) -> datetime | None:
        """When it becomes, or became, due; None if only a wake-up makes it due."""
        return None if self.next_run_at >= FOREVER else self.next_run_at

    @property
    def moment(self) -> datetime:
        """Its position in its schedule's history: its occurrence, or else its submission."""
        return self.submitted_at if self.occurrence is None else self.occurrence


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job that failed, or whose worker died; kept for the post-mortem."""

    job_id: UUID
    lease_token: int
    attempt: int
    worker_id: UUID
    started_at: datetime | None
    ended_at: datetime
    error: str
    traceback: str | None


class JobPlace(NamedTuple):
    """Where a job belongs: all that decides whether a server's caller may access it."""

    topic: str
    queue: str
    parent_id: UUID | None


class WorkerRequest(StrEnum):
    """What an operator asks of a worker."""

    DRAIN = "drain"
    """Claim nothing more, finish what runs, and end."""
    STOP = "stop"
    """Hand back what runs, and end."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process as it describes itself to others."""

    id: UUID
    host: str
    pid: int
    queues: tuple[str, ...]
    topics: tuple[str, ...]
    slots: int
    running: int = 0
    stuck: int = 0
    state: str = "running"
    version: str = ""
    started_at: datetime | None = None
    last_beat: datetime | None = None
    request: str | None = None
    """What an operator has asked of it: a ``WorkerRequest``."""


JsonScalar: TypeAlias = str | float | bool | None


class PayloadField(NamedTuple):
    """A condition on one field of the payload: its value equals this string, number or other."""

    path: tuple[str, ...]
    """The names of the fields that lead to it, from the outside in."""
    value: JsonScalar


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a listing, a count or a bulk act is about; empty means all of them."""

    status: tuple[Status, ...] = ()
    topic: str | None = None
    topic_prefix: str | None = None
    queue: str | None = None
    tag: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    parent: UUID | None = None
    parent_step: str | None = None
    """Of the parent's children, those of this fan-out."""
    payload: tuple[PayloadField, ...] = ()
    worker: UUID | None = None
    """The jobs that this worker is running."""
    schedule: UUID | None = None
    id_prefix: str | None = None
    """The first hexadecimal digits of the id; all 32 for one job."""
    id_suffix: str | None = None
    """The last hexadecimal digits of the id."""
    due: bool | None = None
    """Of the jobs that have not started: those that may start now, or those that may not yet."""
    workflow: bool | None = None
    """Those that have recorded a step or a wait, or those that have not."""
    key: str | None = None
    holds_key: bool | None = None
    """Those that hold their key, or those that do not."""
    limit_key: str | None = None
    """The key of their limit."""
    outcome: str | None = None
    """The ``last_outcome``; see ``outcome.OUTCOMES``."""

    @property
    def conditions(self) -> int:
        """How many conditions it has. A server that applied fewer is older than its caller."""
        every = JobFilter()
        return sum(getattr(self, name) != getattr(every, name) for name in self.__struct_fields__)

    @property
    def is_empty(self) -> bool:
        """Whether it matches every job there is."""
        return self == JobFilter()

"""Values to messages and back: jobs, leases, workers.

Only shapes are translated here; ``checks`` says what a server accepts. The functions for NewJob
and Assignment run once for every job, so they are written plainly rather than shortly.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp

from pulsed.model.backoff import Backoff
from pulsed.model.job import (
    FOREVER,
    Assignment,
    Failure,
    JobFilter,
    JobRow,
    Lease,
    NewJob,
    Status,
    TopicPolicy,
    WorkerInfo,
)
from pulsed.model.outcome import Beat
from pulsed.model.step import StepKind
from pulsed.model.timetable import EPOCH, to_micros
from pulsed.rpc.generated import pulse_pb2 as pb

MILLION = 1_000_000
LONGEST_UUID = 45
"""With urn:uuid: before it."""

STATUS_NUMBERS: dict[Status, Any] = {
    status: pb.JobStatus.Value(f"JOB_STATUS_{status.value}") for status in Status
}
STATUSES = {number: status for status, number in STATUS_NUMBERS.items()}
BEAT_NUMBERS: dict[Beat, Any] = {
    beat: pb.HeartbeatResponse.Answer.Value(f"ANSWER_{beat.value}") for beat in Beat
}
BEATS = {number: beat for beat, number in BEAT_NUMBERS.items()}
KIND_NUMBERS: dict[StepKind, Any] = {
    kind: pb.StepKind.Value(f"STEP_KIND_{kind.value}") for kind in StepKind
}
KINDS = {number: kind for kind, number in KIND_NUMBERS.items()}


# -- instants and ids -----------------------------------------------------------------------------


def stamp(instant: datetime) -> Timestamp:
    """Return an instant as a message."""
    seconds, micros = divmod(to_micros(instant), MILLION)
    return Timestamp(seconds=seconds, nanos=micros * 1000)


def maybe_stamp(instant: datetime | None) -> Timestamp | None:
    """Return an instant as a message, if there is one."""
    return None if instant is None else stamp(instant)


def instant(message: Any) -> datetime:
    """Return the instant of a message, in UTC."""
    return EPOCH + timedelta(microseconds=message.seconds * MILLION + message.nanos // 1000)


def maybe_instant(message: Any, field: str) -> datetime | None:
    """Return the instant in a field, if it is set."""
    return instant(getattr(message, field)) if message.HasField(field) else None


def maybe(message: Any, field: str) -> Any:
    """Return an optional field, if it is set."""
    return getattr(message, field) if message.HasField(field) else None


def maybe_uuid(text: str) -> UUID | None:
    """Return the id in a field that may be empty."""
    return UUID(text) if text else None


def maybe_text(value: UUID | None) -> str:
    """Return an id as text; empty if there is none."""
    return "" if value is None else str(value)


@lru_cache(maxsize=256)
def worker_text(worker_id: UUID) -> str:
    """Return a worker's id as text: the same one in every message of a worker."""
    return str(worker_id)


@lru_cache(maxsize=4_096)
def worker_uuid(text: str) -> UUID:
    """Return a worker's id."""
    if len(text) > LONGEST_UUID:  # braces without end would make an id, and be remembered
        raise ValueError(f"{text[:LONGEST_UUID]!r}... is not a UUID")
    return UUID(text)


# -- jobs -----------------------------------------------------------------------------------------


def backoff_message(backoff: Backoff) -> pb.Backoff:
    """Return a backoff as a message."""
    return pb.Backoff(
        base=backoff.base,
        power=backoff.power,
        factor=backoff.factor,
        cap=backoff.cap,
        jitter=backoff.jitter,
    )


def backoff_of(message: Any) -> Backoff:
    """Return the backoff of a message; refuses one out of range."""
    return Backoff(message.base, message.power, message.factor, message.cap, message.jitter)


def new_job_message(job: NewJob) -> pb.NewJob:
    """Return a job to be stored as a message."""
    message = pb.NewJob(
        id=str(job.id),
        topic=job.topic,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        delay_seconds=job.delay,
    )
    if job.at is not None:
        message.at.CopyFrom(stamp(job.at))
    if job.max_attempts is not None:
        message.max_attempts = job.max_attempts
    if job.backoff is not None:
        message.backoff.CopyFrom(backoff_message(job.backoff))
    if job.timeout is not None:
        message.timeout_seconds = job.timeout
    if job.lease is not None:
        message.lease_seconds = job.lease
    if job.headers:
        message.headers.update(job.headers)
    if job.tags:
        message.tags.extend(job.tags)
    if job.schedule_id is not None:
        message.schedule_id = str(job.schedule_id)
    if job.occurrence is not None:
        message.occurrence.CopyFrom(stamp(job.occurrence))
    if job.parent_id is not None:
        message.parent_id = str(job.parent_id)
        message.outlives = bool(job.outlives)
        if job.parent_step is not None:
            message.parent_step = job.parent_step
    return message


def new_job_of(message: Any) -> NewJob:
    """Return the job of a message."""
    return NewJob(
        id=UUID(message.id),
        topic=message.topic,
        payload=message.payload,
        queue=message.queue or "default",
        priority=message.priority,
        delay=message.delay_seconds,
        at=maybe_instant(message, "at"),
        max_attempts=maybe(message, "max_attempts"),
        backoff=backoff_of(message.backoff) if message.HasField("backoff") else None,
        timeout=maybe(message, "timeout_seconds"),
        lease=maybe(message, "lease_seconds"),
        headers=dict(message.headers) if message.headers else None,
        tags=tuple(message.tags),
        schedule_id=maybe_uuid(message.schedule_id),
        occurrence=maybe_instant(message, "occurrence"),
        parent_id=maybe_uuid(message.parent_id),
        parent_step=maybe(message, "parent_step"),
        outlives=message.outlives or None,
    )


def job_message(row: JobRow) -> pb.Job:
    """Return a stored job as a message."""
    return pb.Job(
        id=str(row.id),
        queue=row.queue,
        topic=row.topic,
        status=STATUS_NUMBERS[row.status],
        priority=row.priority,
        payload=row.payload,
        result=row.result,
        headers=row.headers,
        tags=row.tags,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        timeout_seconds=row.timeout,
        lease_seconds=row.lease_seconds,
        next_run_at=maybe_stamp(row.due_at),
        lease_token=row.lease_token,
        locked_by=maybe_text(row.locked_by),
        lease_until=maybe_stamp(row.lease_until),
        cancel_requested=row.cancel_requested,
        last_worker=maybe_text(row.last_worker),
        last_outcome=row.last_outcome,
        last_error=row.last_error,
        submitted_at=stamp(row.submitted_at),
        started_at=maybe_stamp(row.started_at),
        completed_at=maybe_stamp(row.completed_at),
        updated_at=stamp(row.updated_at),
        progress=row.progress,
        schedule_id=maybe_text(row.schedule_id),
        occurrence=maybe_stamp(row.occurrence),
        parent_id=maybe_text(row.parent_id),
        parent_step=row.parent_step,
        wait_kind=None if row.wait_kind is None else KIND_NUMBERS[StepKind(row.wait_kind)],
        wait_key=row.wait_key,
        crashes=row.crashes,
    )


def job_of(message: Any) -> JobRow:
    """Return the stored job of a message."""
    return JobRow(
        id=UUID(message.id),
        queue=message.queue,
        topic=message.topic,
        status=STATUSES[message.status],
        priority=message.priority,
        payload=message.payload,
        result=maybe(message, "result"),
        headers=dict(message.headers),
        tags=tuple(message.tags),
        attempts=message.attempts,
        max_attempts=maybe(message, "max_attempts"),
        timeout=maybe(message, "timeout_seconds"),
        lease_seconds=maybe(message, "lease_seconds"),
        next_run_at=maybe_instant(message, "next_run_at") or FOREVER,
        lease_token=message.lease_token,
        locked_by=maybe_uuid(message.locked_by),
        lease_until=maybe_instant(message, "lease_until"),
        cancel_requested=message.cancel_requested,
        last_worker=maybe_uuid(message.last_worker),
        last_outcome=maybe(message, "last_outcome"),
        last_error=maybe(message, "last_error"),
        submitted_at=instant(message.submitted_at),
        started_at=maybe_instant(message, "started_at"),
        completed_at=maybe_instant(message, "completed_at"),
        # A server of an earlier version does not say.
        updated_at=maybe_instant(message, "updated_at") or instant(message.submitted_at),
        progress=maybe(message, "progress"),
        schedule_id=maybe_uuid(message.schedule_id),
        occurrence=maybe_instant(message, "occurrence"),
        parent_id=maybe_uuid(message.parent_id),
        parent_step=maybe(message, "parent_step"),
        wait_kind=KINDS[message.wait_kind].value if message.wait_kind else None,
        wait_key=maybe(message, "wait_key"),
        crashes=message.crashes,
    )


def filter_message(where: JobFilter) -> pb.JobFilter:
    """Return a filter as a message."""
    return pb.JobFilter(
        statuses=[STATUS_NUMBERS[status] for status in where.status],
        topic=where.topic,
        queue=where.queue,
        tag=where.tag,
        error=where.error,
        since=maybe_stamp(where.since),
        until=maybe_stamp(where.until),
        parent_id=maybe_text(where.parent),
        parent_step=where.parent_step,
    )


def filter_of(message: Any) -> JobFilter:
    """Return the filter of a message."""
    return JobFilter(
        status=tuple(STATUSES[number] for number in message.statuses),
        topic=maybe(message, "topic"),
        queue=maybe(message, "queue"),
        tag=maybe(message, "tag"),
        error=maybe(message, "error"),
        since=maybe_instant(message, "since"),
        until=maybe_instant(message, "until"),
        parent=maybe_uuid(message.parent_id),
        parent_step=maybe(message, "parent_step"),
    )


def failure_message(failure: Failure) -> pb.Failure:
    """Return a failed attempt as a message."""
    return pb.Failure(
        job_id=str(failure.job_id),
        lease_token=failure.lease_token,
        attempt=failure.attempt,
        worker_id=str(failure.worker_id),
        started_at=maybe_stamp(failure.started_at),
        ended_at=stamp(failure.ended_at),
        error=failure.error,
        traceback=failure.traceback,
    )


def failure_of(message: Any) -> Failure:
    """Return the failed attempt of a message."""
    return Failure(
        job_id=UUID(message.job_id),
        lease_token=message.lease_token,
        attempt=message.attempt,
        worker_id=UUID(message.worker_id),
        started_at=maybe_instant(message, "started_at"),
        ended_at=instant(message.ended_at),
        error=message.error,
        traceback=maybe(message, "traceback"),
    )


# -- work -----------------------------------------------------------------------------------------


def topic_message(policy: TopicPolicy) -> pb.Topic:
    """Return what a handler says about its topic as a message."""
    return pb.Topic(
        name=policy.topic,
        max_attempts=policy.max_attempts,
        backoff=backoff_message(policy.backoff),
        timeout_seconds=policy.timeout,
        lease_seconds=policy.lease,
    )


def topic_of(message: Any) -> TopicPolicy:
    """Return the policy of a message; what was left out is the default."""
    default = TopicPolicy(topic=message.name)
    return TopicPolicy(
        topic=message.name,
        max_attempts=message.max_attempts or default.max_attempts,
        backoff=backoff_of(message.backoff) if message.HasField("backoff") else default.backoff,
        timeout=maybe(message, "timeout_seconds"),
        lease=message.lease_seconds or default.lease,
    )


def assignment_message(assignment: Assignment) -> pb.Assignment:
    """Return a claimed job as a message."""
    message = pb.Assignment(
        job_id=str(assignment.job_id),
        topic=assignment.topic,
        queue=assignment.queue,
        priority=assignment.priority,
        payload=assignment.payload,
        attempt=assignment.attempt,
        max_attempts=assignment.max_attempts,
        lease_token=assignment.lease_token,
        lease_seconds=assignment.lease_seconds,
        timeout_seconds=assignment.timeout,
        next_run_at=stamp(assignment.next_run_at),
        submitted_at=stamp(assignment.submitted_at),
    )
    if assignment.headers:
        message.headers.update(assignment.headers)
    if assignment.schedule_id is not None:
        message.schedule_id = str(assignment.schedule_id)
        if assignment.occurrence is not None:
            message.occurrence.CopyFrom(stamp(assignment.occurrence))
    return message


def assignment_of(message: Any, worker_id: UUID) -> Assignment:
    """Return the claimed job of a message."""
    return Assignment(
        Lease(UUID(message.job_id), message.lease_token, worker_id),
        message.topic,
        message.queue,
        message.priority,
        message.payload,
        message.attempt,
        message.max_attempts,
        message.lease_seconds,
        maybe(message, "timeout_seconds"),
        dict(message.headers),
        instant(message.next_run_at),
        instant(message.submitted_at),
        maybe_uuid(message.schedule_id),
        maybe_instant(message, "occurrence"),
    )


def lease_message(lease: Lease) -> pb.Lease:
    """Return a lease as a message."""
    return pb.Lease(
        job_id=str(lease.job_id),
        lease_token=lease.token,
        worker_id=worker_text(lease.worker_id),
    )


def lease_of(message: Any) -> Lease:
    """Return the lease of a message."""
    return Lease(UUID(message.job_id), message.lease_token, worker_uuid(message.worker_id))


def worker_message(worker: WorkerInfo) -> pb.Worker:
    """Return a worker's presence as a message."""
    return pb.Worker(
        id=str(worker.id),
        host=worker.host,
        pid=worker.pid,
        queues=worker.queues,
        topics=worker.topics,
        slots=worker.slots,
        running=worker.running,
        stuck=worker.stuck,
        state=worker.state,
        version=worker.version,
        started_at=maybe_stamp(worker.started_at),
        last_beat=maybe_stamp(worker.last_beat),
    )


def worker_of(message: Any) -> WorkerInfo:
    """Return the presence of a message."""
    return WorkerInfo(
        id=UUID(message.id),
        host=message.host,
        pid=message.pid,
        queues=tuple(message.queues),
        topics=tuple(message.topics),
        slots=message.slots,
        running=message.running,
        stuck=message.stuck,
        state=message.state or "running",
        version=message.version,
        started_at=maybe_instant(message, "started_at"),
        last_beat=maybe_instant(message, "last_beat"),
    )

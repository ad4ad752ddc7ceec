"""Values to messages and back: jobs, leases, workers.

Only shapes are translated here; ``checks`` says what a server accepts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption
from pulsed.handler.search_terms import (
    LONGEST,
    MOST_FIELDS,
    checked_digits,
    checked_outcome,
    checked_payload_field,
)
from pulsed.model.fields import CLAIM, NEW, POLICY, ROW, wire_names
from pulsed.model.job import (
    FOREVER,
    Assignment,
    Failure,
    JobFilter,
    JobRow,
    Lease,
    NewJob,
    PayloadField,
    Status,
    TopicPolicy,
    WorkerInfo,
)
from pulsed.model.outcome import Beat
from pulsed.model.step import StepKind
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.conversion import Conversion
from pulsed.rpc.messages.values import maybe, maybe_instant, maybe_stamp, maybe_text, maybe_uuid

LONGEST_UUID = 45
"""Characters, with the prefix ``urn:uuid:`` and hyphens."""

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


@lru_cache(maxsize=256)
def worker_text(worker_id: UUID) -> str:
    """Return a worker's id as text; cached, because every message of a worker has it."""
    return str(worker_id)


@lru_cache(maxsize=4_096)
def worker_uuid(text: str) -> UUID:
    """Return a worker's id."""
    if len(text) > LONGEST_UUID:  # UUID() ignores braces: any number would be cached
        raise ValueError(f"{text[:LONGEST_UUID]!r}... is not a UUID")
    return UUID(text)


# -- jobs -----------------------------------------------------------------------------------------


_STATUS = {"status": (STATUS_NUMBERS, STATUSES)}

_new_job = Conversion(NewJob, pb.NewJob, wire_names(NEW))
new_job_message = _new_job.message
"""Return a job to be stored as a message."""
new_job_of = _new_job.value
"""Return the job of a message."""

_job = Conversion(
    JobRow,
    pb.Job,
    wire_names(ROW),
    enums=_STATUS,
    sent={
        "next_run_at": "maybe_stamp(value.due_at)",
        "wait_kind": "None if value.wait_kind is None else kind_numbers[value.wait_kind]",
    },
    read={
        "next_run_at": "maybe_instant(message, 'next_run_at') or FOREVER",
        # A server of an earlier version leaves it out.
        "updated_at": "maybe_instant(message, 'updated_at') or instant(message.submitted_at)",
        "wait_kind": "kinds[message.wait_kind].value if message.wait_kind else None",
    },
    scope={
        "FOREVER": FOREVER,
        "kind_numbers": KIND_NUMBERS,
        "kinds": KINDS,
        "maybe_instant": maybe_instant,
        "maybe_stamp": maybe_stamp,
    },
)
job_message = _job.message
"""Return a stored job as a message."""
job_of = _job.value
"""Return the stored job of a message."""

_failure = Conversion(Failure, pb.Failure)
failure_message = _failure.message
"""Return a failed attempt as a message."""
failure_of = _failure.value
"""Return the failed attempt of a message."""


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
        topic_prefix=where.topic_prefix,
        payload=[
            pb.JobFilter.PayloadField(
                path=".".join(field.path), value=msgspec.json.encode(field.value).decode()
            )
            for field in where.payload
        ],
        worker_id=maybe_text(where.worker),
        schedule_id=maybe_text(where.schedule),
        id_prefix=where.id_prefix,
        id_suffix=where.id_suffix,
        due=cast("bool", where.due),  # None leaves it out
        workflow=cast("bool", where.workflow),
        key=where.key,
        holds_key=cast("bool", where.holds_key),
        outcome=where.outcome,
        limit_key=where.limit_key,
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
        topic_prefix=maybe(message, "topic_prefix"),
        payload=_payload_fields(message.payload),
        worker=maybe_uuid(message.worker_id),
        schedule=maybe_uuid(message.schedule_id),
        id_prefix=_digits(message, "id_prefix"),
        id_suffix=_digits(message, "id_suffix"),
        due=maybe(message, "due"),
        workflow=maybe(message, "workflow"),
        key=maybe(message, "key"),
        holds_key=maybe(message, "holds_key"),
        outcome=_outcome(message),
        limit_key=maybe(message, "limit_key"),
    )


def _payload_fields(fields: Any) -> tuple[PayloadField, ...]:
    if len(fields) > MOST_FIELDS:
        raise InvalidOption(f"A filter has at most {MOST_FIELDS} fields of the payload.")
    return tuple(checked_payload_field(field.path, _value(field.value)) for field in fields)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text[: 7 * LONGEST])  # every character may be an escape
    except msgspec.DecodeError as error:
        raise InvalidOption(f"A value in the payload is JSON, not {text!r:.100}.") from error


def _outcome(message: Any) -> str | None:
    given = maybe(message, "outcome")
    return None if given is None else checked_outcome(given)


def _digits(message: Any, name: str) -> str | None:
    given = maybe(message, name)
    return None if given is None else checked_digits(given)


# -- work -----------------------------------------------------------------------------------------

_topic = Conversion(TopicPolicy, pb.Topic, {"topic": "name", **wire_names(POLICY)})
topic_message = _topic.message
"""Return a handler's policy for its topic as a message."""
topic_of = _topic.value
"""Return the policy of a message; what was left out is the default."""

_assignment = Conversion(
    Assignment,
    pb.Assignment,
    wire_names(CLAIM),
    sent={"job_id": "str(value.lease.job_id)", "lease_token": "value.lease.token"},
    read={"lease": "Lease(UUID(message.job_id), message.lease_token, worker_id)"},
    given=("worker_id",),
    scope={"Lease": Lease},
)
assignment_message = _assignment.message
"""Return a claimed job as a message."""
assignment_of = _assignment.value
"""Return the job of a message, claimed by a worker."""

_worker = Conversion(WorkerInfo, pb.Worker)
worker_message = _worker.message
"""Return a worker's presence as a message."""
worker_of = _worker.value
"""Return the presence of a message."""


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

"""Schedules to messages and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption
from pulsed.model.job import JobRow, NewJob
from pulsed.model.schedule import (
    CatchUp,
    Overlap,
    Plan,
    ScheduleFilter,
    ScheduleKey,
    ScheduleRow,
    ScheduleSpec,
    ScheduleState,
    Version,
)
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.jobs import (
    STATUS_NUMBERS,
    backoff_message,
    backoff_of,
    instant,
    maybe,
    maybe_instant,
    maybe_stamp,
    new_job_message,
    new_job_of,
    stamp,
)
from pulsed.store.base import Fire

CATCH_UP_NUMBERS: dict[CatchUp, Any] = {
    each: pb.CatchUp.Value(f"CATCH_UP_{each.name}") for each in CatchUp
}
CATCH_UPS = {number: each for each, number in CATCH_UP_NUMBERS.items()} | {0: CatchUp.ONE}
OVERLAP_NUMBERS: dict[Overlap, Any] = {
    each: pb.Overlap.Value(f"OVERLAP_{each.name}") for each in Overlap
}
OVERLAPS = {number: each for each, number in OVERLAP_NUMBERS.items()} | {0: Overlap.ALLOW}
STATE_NUMBERS: dict[ScheduleState, Any] = {
    each: pb.ScheduleState.Value(f"SCHEDULE_STATE_{each.name}") for each in ScheduleState
}
STATES = {number: each for each, number in STATE_NUMBERS.items()}


def fired_message(row: JobRow) -> pb.ListScheduleFiresResponse.Fire:
    """Return what a schedule's history tells of a job."""
    return pb.ListScheduleFiresResponse.Fire(
        job_id=str(row.id),
        occurrence=maybe_stamp(row.occurrence),
        fired_at=stamp(row.submitted_at),
        status=STATUS_NUMBERS[row.status],
    )


def version_message(version: Version) -> pb.ScheduleVersion:
    """Return which state of a schedule was seen."""
    return pb.ScheduleVersion(id=str(version.id), revision=version.revision)


def version_of(message: Any) -> Version:
    """Return which state of a schedule was seen."""
    return Version(UUID(message.id), message.revision)


def list_message(
    where: ScheduleFilter, limit: int, after: ScheduleKey | None
) -> pb.ListSchedulesRequest:
    """Return a request for a page of schedules."""
    return pb.ListSchedulesRequest(
        app=where.app,
        limit=limit,
        after_app=None if after is None else after.app,
        after_name=None if after is None else after.name,
        state=None if where.state is None else STATE_NUMBERS[where.state],
        due_before=maybe_stamp(where.due_before),
    )


def filter_of(message: Any) -> ScheduleFilter:
    """Return which schedules are asked for."""
    state = STATES[message.state] if message.state else None
    return ScheduleFilter(maybe(message, "app"), state, maybe_instant(message, "due_before"))


def declared_messages(
    specs: Mapping[str, ScheduleSpec],
) -> Iterator[pb.SyncSchedulesRequest.Declared]:
    """Return declarations as messages."""
    for name, spec in specs.items():
        yield pb.SyncSchedulesRequest.Declared(name=name, spec=spec_message(spec))


def spec_message(spec: ScheduleSpec) -> pb.ScheduleSpec:
    """Return what a schedule says as a message."""
    return pb.ScheduleSpec(
        topic=spec.topic,
        payload=spec.payload,
        cron=spec.cron,
        zone=spec.zone,
        every_micros=spec.every,
        at=maybe_stamp(spec.at),
        catch_up=CATCH_UP_NUMBERS[spec.catch_up],
        limit=spec.limit,
        overlap=OVERLAP_NUMBERS[spec.overlap],
        jitter_seconds=spec.jitter,
        start=maybe_stamp(spec.start),
        end=maybe_stamp(spec.end),
        queue=spec.queue,
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        backoff=None if spec.backoff is None else backoff_message(spec.backoff),
        timeout_seconds=spec.timeout,
        lease_seconds=spec.lease,
        headers=spec.headers or {},
        tags=spec.tags,
    )


def spec_of(message: Any) -> ScheduleSpec:
    """Return what the schedule of a message says."""
    return ScheduleSpec(
        topic=message.topic,
        payload=message.payload,
        cron=maybe(message, "cron"),
        zone=message.zone or "UTC",
        every=maybe(message, "every_micros"),
        at=maybe_instant(message, "at"),
        catch_up=CATCH_UPS[message.catch_up],
        limit=maybe(message, "limit"),
        overlap=OVERLAPS[message.overlap],
        jitter=message.jitter_seconds,
        start=maybe_instant(message, "start"),
        end=maybe_instant(message, "end"),
        queue=message.queue or "default",
        priority=message.priority,
        max_attempts=maybe(message, "max_attempts"),
        backoff=backoff_of(message.backoff) if message.HasField("backoff") else None,
        timeout=maybe(message, "timeout_seconds"),
        lease=maybe(message, "lease_seconds"),
        headers=dict(message.headers) or None,
        tags=tuple(message.tags),
    )


def schedule_message(row: ScheduleRow) -> pb.Schedule:
    """Return a stored schedule as a message."""
    return pb.Schedule(
        id=str(row.id),
        app=row.app,
        name=row.name,
        spec=_readable_spec(row),
        spec_json=row.spec_text,
        state=STATE_NUMBERS[row.state],
        error=row.error,
        anchor=stamp(row.anchor),
        next_run_at=maybe_stamp(row.next_run_at),
        last_occurrence=maybe_stamp(row.last_occurrence),
        last_fired_at=maybe_stamp(row.last_fired_at),
        missed=row.missed,
        revision=row.revision,
        created_at=stamp(row.created_at),
        updated_at=stamp(row.updated_at),
        declared=row.declared,
    )


def _readable_spec(row: ScheduleRow) -> pb.ScheduleSpec | None:
    try:
        return spec_message(row.spec)
    except (InvalidOption, ValueError, OverflowError, msgspec.MsgspecError):
        return None  # somebody else wrote it; its text says what


def schedule_of(message: Any) -> ScheduleRow:
    """Return the stored schedule of a message."""
    return ScheduleRow(
        id=UUID(message.id),
        app=message.app,
        name=message.name,
        spec_text=message.spec_json,
        state=STATES[message.state],
        error=maybe(message, "error"),
        anchor=instant(message.anchor),
        next_run_at=maybe_instant(message, "next_run_at"),
        last_occurrence=maybe_instant(message, "last_occurrence"),
        last_fired_at=maybe_instant(message, "last_fired_at"),
        missed=message.missed,
        revision=message.revision,
        created_at=instant(message.created_at),
        updated_at=instant(message.updated_at),
        declared=message.declared,
    )


def fire_message(fire: Fire) -> pb.FireSchedulesRequest.Fire:
    """Return what is to happen with a due schedule as a message."""
    return pb.FireSchedulesRequest.Fire(
        schedule=schedule_message(fire.row),
        occurrences=[stamp(occurrence) for occurrence in fire.plan.fire],
        missed=fire.plan.missed,
        next=maybe_stamp(fire.plan.next),
        jobs=[new_job_message(job) for job in fire.jobs],
        overlap=OVERLAP_NUMBERS[fire.overlap],
    )


def fire_of(message: Any, job_of: Callable[[Any], NewJob] = new_job_of) -> Fire:
    """Return what the message says is to happen with a due schedule."""
    plan = Plan(
        [instant(occurrence) for occurrence in message.occurrences],
        message.missed,
        maybe_instant(message, "next"),
    )
    jobs = [job_of(job) for job in message.jobs]
    return Fire(schedule_of(message.schedule), plan, jobs, OVERLAPS[message.overlap])

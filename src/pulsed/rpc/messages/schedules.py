"""Schedules to messages and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption
from pulsed.model.fields import TEMPLATE, wire_names
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
from pulsed.rpc.messages.conversion import Conversion
from pulsed.rpc.messages.jobs import STATUS_NUMBERS, new_job_message, new_job_of
from pulsed.rpc.messages.values import instant, maybe, maybe_instant, maybe_stamp, stamp
from pulsed.store.schedules import Fire

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
    """Return a job as an entry of its schedule's history."""
    return pb.ListScheduleFiresResponse.Fire(
        job_id=str(row.id),
        occurrence=maybe_stamp(row.occurrence),
        fired_at=stamp(row.submitted_at),
        status=STATUS_NUMBERS[row.status],
    )


def version_message(version: Version) -> pb.ScheduleVersion:
    """Return the version of a schedule that was read, as a message."""
    return pb.ScheduleVersion(id=str(version.id), revision=version.revision)


def version_of(message: Any) -> Version:
    """Return the schedule version of a message."""
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
    """Return the filter of a request for schedules."""
    state = STATES[message.state] if message.state else None
    return ScheduleFilter(maybe(message, "app"), state, maybe_instant(message, "due_before"))


def declared_messages(
    specs: Mapping[str, ScheduleSpec],
) -> Iterator[pb.SyncSchedulesRequest.Declared]:
    """Return declarations as messages."""
    for name, spec in specs.items():
        yield pb.SyncSchedulesRequest.Declared(name=name, spec=spec_message(spec))


_spec = Conversion(
    ScheduleSpec,
    pb.ScheduleSpec,
    {"every": "every_micros", "jitter": "jitter_seconds", **wire_names(TEMPLATE)},
    enums={"catch_up": (CATCH_UP_NUMBERS, CATCH_UPS), "overlap": (OVERLAP_NUMBERS, OVERLAPS)},
)
spec_message = _spec.message
"""Return the spec of a schedule as a message."""
spec_of = _spec.value
"""Return the spec of a message."""


def _readable_spec(row: ScheduleRow) -> pb.ScheduleSpec | None:
    try:
        return spec_message(row.spec)
    except (InvalidOption, ValueError, OverflowError, msgspec.MsgspecError):
        return None  # another program wrote it; the message still carries its text


_schedule = Conversion(
    ScheduleRow,
    pb.Schedule,
    {"spec_text": "spec_json"},
    enums={"state": (STATE_NUMBERS, STATES)},
    sent={"spec": "readable_spec(value)"},
    scope={"readable_spec": _readable_spec},
)
schedule_message = _schedule.message
"""Return a stored schedule as a message."""
schedule_of = _schedule.value
"""Return the stored schedule of a message."""


def fire_message(fire: Fire) -> pb.FireSchedulesRequest.Fire:
    """Return the fire of a due schedule as a message."""
    return pb.FireSchedulesRequest.Fire(
        schedule=schedule_message(fire.row),
        occurrences=[stamp(occurrence) for occurrence in fire.plan.fire],
        missed=fire.plan.missed,
        next=maybe_stamp(fire.plan.next),
        jobs=[new_job_message(job) for job in fire.jobs],
        overlap=OVERLAP_NUMBERS[fire.overlap],
    )


def fire_of(message: Any, job_of: Callable[[Any], NewJob] = new_job_of) -> Fire:
    """Return the fire of a due schedule in a message."""
    plan = Plan(
        [instant(occurrence) for occurrence in message.occurrences],
        message.missed,
        maybe_instant(message, "next"),
    )
    jobs = [job_of(job) for job in message.jobs]
    return Fire(schedule_of(message.schedule), plan, jobs, OVERLAPS[message.overlap])

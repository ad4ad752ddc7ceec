"""The verbs that fire schedules, and those on what became of a fire."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from pulsed.model.job import JobRow, NewJob, Status
from pulsed.model.schedule import Overlap, Plan, ScheduleRow
from pulsed.store.schedules import Due, Fire, FireMark
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, VerbKind, verb
from pulsed.store.verbs.submit import store_fired

NO_ID = UUID(int=0)
"""Smaller than every id."""


@verb(VerbKind.READ, name="due_schedules")
def due(engine: Engine, limit: int, skip: int) -> Script[Due]:
    """Read the due schedules, unless only the first ``skip`` are due, and when the next one is."""
    d = engine.dialect
    [(clock, upcoming)] = yield Statement(engine.schedules.next_due, {"skip": skip})
    now, next_run_at = d.time(clock), None if upcoming is None else d.time(upcoming)
    if next_run_at is None or next_run_at > now:  # as mostly, for a worker that polls
        return Due([], next_run_at, now)
    found = decode.schedule.all(d, (yield Statement(engine.schedules.due, {"most": limit})))
    return Due([row for row in found if _is_due(row, now)], next_run_at, now)


def _is_due(row: ScheduleRow, now: datetime) -> bool:
    """Whether a schedule was due when the clock was read; others come with the next read."""
    return row.next_run_at is not None and row.next_run_at <= now


@verb(VerbKind.TRANSACTION)
def fire(engine: Engine, fires: Sequence[Fire]) -> Script[list[NewJob]]:
    """Move the cursors that no other process has moved, and insert their jobs; returns the jobs."""
    careful = [(f.row.id,) for f in fires if f.overlap is Overlap.SKIP and f.jobs]
    busy: set[UUID] = set()
    if careful:
        found = yield Statement(engine.schedules.unfinished, {}, careful)
        busy = {engine.dialect.uuid(schedule_id) for (schedule_id,) in found}
    decided = [_without_overlap(f, busy) for f in fires]
    moved = yield Statement(engine.schedules.advance, {}, [_cursor_values(f) for f in decided])
    advanced = {engine.dialect.uuid(schedule_id) for (schedule_id,) in moved}
    jobs = [job for f in decided if f.row.id in advanced for job in f.jobs]
    return (yield from store_fired(engine, jobs)) if jobs else []


def _without_overlap(fire: Fire, busy: set[UUID]) -> Fire:
    """Leave out jobs that would run beside an unfinished job of the same schedule."""
    if fire.overlap is not Overlap.SKIP or not fire.jobs:
        return fire
    kept = [] if fire.row.id in busy else fire.jobs[-1:]
    passed = fire.plan.missed + len(fire.jobs) - len(kept)
    return Fire(fire.row, Plan(fire.plan.fire, passed, fire.plan.next), kept, fire.overlap)


def _cursor_values(fire: Fire) -> tuple[object, ...]:
    plan = fire.plan
    latest = plan.fire[-1] if plan.fire else fire.row.next_run_at
    return (
        fire.row.id,
        fire.row.next_run_at,
        fire.row.revision,
        plan.next,
        latest,
        plan.missed,
        bool(fire.jobs),
    )


@verb(VerbKind.SINGLE, name="set_schedule_error")
def set_error(engine: Engine, row: ScheduleRow, reason: str) -> Script[None]:
    """Stop a schedule that cannot be fired, and store the reason."""
    read = {"id": row.id, "revision": row.revision, "cursor": row.next_run_at}
    yield Statement(engine.schedules.set_error, {**read, "error": reason})


@verb(VerbKind.READ, name="fires")
def last_fires(
    engine: Engine, ids: Sequence[UUID], limit: int
) -> Script[dict[UUID, list[FireMark]]]:
    """Read the last fires of schedules, the latest first."""
    found = yield Statement(engine.schedules.last_fires, {"most": limit}, one_column(ids))
    marks = {
        engine.dialect.uuid(schedule_id): [_mark(engine, each) for each in (texts or "").split()]
        for schedule_id, texts in found
    }
    return {each: sorted(marks.get(each, ()), key=_latest_last, reverse=True) for each in ids}


_latest_last = operator.attrgetter("moment", "id")


def _mark(engine: Engine, text: str) -> FireMark:
    digits, status, at = text.split(",")
    number = float(at)
    moment = engine.dialect.instant(int(number) if number.is_integer() else number)
    return FireMark(UUID(digits), Status(status), moment)


@verb(VerbKind.READ)
def fires(
    engine: Engine,
    schedule_id: UUID,
    limit: int,
    before: datetime | None,
    before_id: UUID | None,
) -> Script[list[JobRow]]:
    """Read the jobs that a schedule made, the latest first."""
    last = {"before": before, "before_id": before_id or NO_ID}
    params = {"schedule": schedule_id, "most": limit, **last}
    found = yield Statement(engine.schedules.fires, params)
    return decode.job.all(engine.dialect, found)

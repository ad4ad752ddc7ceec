"""Rows of the database, read into values."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from pulsed.model.job import Assignment, Failure, JobRow, Lease, Status, WorkerInfo
from pulsed.model.schedule import ScheduleRow, ScheduleState
from pulsed.model.step import Checkpoint, StepKind, StepState
from pulsed.model.workflow import Ended
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Row


def assignment(d: Dialect, row: Row, queue: str, worker_id: UUID) -> Assignment:
    """Read ASSIGNMENT_COLUMNS of a job claimed from a queue."""
    (
        job_id, token, topic, priority, payload, attempt, max_attempts, lease_ms, timeout_ms,
        headers, due, submitted, schedule_id, occurrence,
    ) = row  # fmt: skip
    next_run_at = d.instant(due)
    return Assignment(
        Lease(d.uuid(job_id), token, worker_id),
        topic,
        queue,
        priority,
        payload,
        attempt,
        max_attempts,
        lease_ms / 1000,
        None if timeout_ms is None else timeout_ms / 1000,
        _headers(headers) if headers else {},
        next_run_at,
        next_run_at if submitted is None else d.instant(submitted),
        None if schedule_id is None else d.uuid(schedule_id),
        None if occurrence is None else d.time(occurrence),
    )


def job(d: Dialect, row: Row) -> JobRow:
    """Read JOB_COLUMNS."""
    return JobRow(
        id=d.uuid(row[0]),
        queue=row[1],
        topic=row[2],
        status=Status(row[3]),
        priority=row[4],
        payload=row[5],
        result=row[6],
        headers=_headers(row[7]),
        tags=_texts(row[8]),
        attempts=row[9],
        max_attempts=row[10],
        timeout=_seconds(row[11]),
        lease_seconds=_seconds(row[12]),
        next_run_at=d.time(row[13]),
        lease_token=row[14],
        locked_by=_uuid(d, row[15]),
        lease_until=_time(d, row[16]),
        cancel_requested=bool(row[17]),
        last_worker=_uuid(d, row[18]),
        last_outcome=row[19],
        last_error=row[20],
        submitted_at=d.time(row[21]),
        started_at=_time(d, row[22]),
        completed_at=_time(d, row[23]),
        progress=row[24],
        schedule_id=_uuid(d, row[25]),
        occurrence=_time(d, row[26]),
        parent_id=_uuid(d, row[27]),
        parent_step=row[28],
        updated_at=d.time(row[32]),
        crashes=row[33],
        **_wait(d, row),
    )


def _wait(d: Dialect, row: Row) -> dict[str, str | None]:
    """Read what a job waits for; what it waited for before is of no interest."""
    if row[3] != Status.WAITING:
        return {}
    return {
        "wait_kind": row[29],
        "wait_key": row[30] if row[31] is None else str(d.uuid(row[31])),
    }


def checkpoint(d: Dialect, row: Row) -> Checkpoint:
    """Read CHECKPOINT_COLUMNS."""
    return Checkpoint(
        name=row[0],
        nth=row[1],
        seq=row[2],
        kind=StepKind(row[3]),
        state=StepState(row[4]),
        input_hash=row[5],
        value=row[6],
        error=row[7],
        tries=row[8],
        until=_time(d, row[9]),
        started_at=d.time(row[10]),
        ended_at=_time(d, row[11]),
    )


def ended(d: Dialect, row: Row) -> Ended:
    """Read OUTCOME_COLUMNS."""
    return Ended(d.uuid(row[0]), row[1], _STATUS[row[2]], row[3], row[4])


_STATUS = {status.value: status for status in Status}
"""A look-up takes a tenth of the enum's own, and a fan-out asks for thousands."""


def failure(d: Dialect, row: Row) -> Failure:
    """Read FAILURE_COLUMNS."""
    job_id, token, attempt, worker_id, started_at, ended_at, error, traceback = row
    return Failure(
        job_id=d.uuid(job_id),
        lease_token=token,
        attempt=attempt,
        worker_id=d.uuid(worker_id),
        started_at=_time(d, started_at),
        ended_at=d.time(ended_at),
        error=error,
        traceback=traceback,
    )


def worker(d: Dialect, row: Row) -> WorkerInfo:
    """Read WORKER_COLUMNS."""
    return WorkerInfo(
        id=d.uuid(row[0]),
        host=row[1],
        pid=row[2],
        queues=_texts(row[3]),
        topics=_texts(row[4]),
        slots=row[5],
        running=row[6],
        stuck=row[7],
        state=row[8],
        version=row[9],
        started_at=d.time(row[10]),
        last_beat=d.time(row[11]),
    )


def schedule(d: Dialect, row: Row) -> ScheduleRow:
    """Read SCHEDULE_COLUMNS."""
    return ScheduleRow(
        id=d.uuid(row[0]),
        app=row[1],
        name=row[2],
        spec_text=row[3],
        state=ScheduleState(row[4]),
        error=row[5],
        anchor=d.time(row[6]),
        next_run_at=_time(d, row[7]),
        last_occurrence=_time(d, row[8]),
        last_fired_at=_time(d, row[9]),
        missed=row[10],
        revision=row[11],
        created_at=d.time(row[12]),
        updated_at=d.time(row[13]),
        declared=bool(row[14]),
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _uuid(d: Dialect, value: Any) -> UUID | None:
    return None if value is None else d.uuid(value)


def _time(d: Dialect, value: Any) -> datetime | None:
    return None if value is None else d.time(value)


def _headers(text: str | None) -> dict[str, str]:
    """Read headers, also those of a producer that did not keep to strings.

    A row that cannot be read would fail the claim of every other row it is claimed with.
    """
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.ValidationError:
        found = msgspec.json.decode(text)
        pairs = found.items() if isinstance(found, dict) else ()
        return {name: str(value) for name, value in pairs}


def _texts(text: str | None) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()

"""Rows of the database, read into values."""

from __future__ import annotations

from pulsed.model.attributes import attributes
from pulsed.model.audit import AuditEntry
from pulsed.model.bulk import BulkRow, Skip
from pulsed.model.control import Control, decoded
from pulsed.model.fields import CLAIM, ROW, Kind, fields_of
from pulsed.model.job import Assignment, Failure, JobRow, Lease, Status, WorkerInfo
from pulsed.model.schedule import ScheduleRow
from pulsed.model.step import Checkpoint
from pulsed.model.stream import StreamItem
from pulsed.model.workflow import JobOutcome
from pulsed.store.sql.audit_log import AUDIT_COLUMNS
from pulsed.store.sql.bulk import BULK_COLUMNS, SKIP_COLUMNS
from pulsed.store.sql.checkpoints import CHECKPOINT_COLUMNS
from pulsed.store.sql.controls import CONTROL_COLUMNS
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import FAILURE_COLUMNS, WORKER_COLUMNS
from pulsed.store.sql.reader import Reader, reader
from pulsed.store.sql.schedules import SCHEDULE_COLUMNS
from pulsed.store.sql.statement import Row
from pulsed.store.sql.streams import ITEM_COLUMNS
from pulsed.store.sql.waiting import OUTCOME_COLUMNS

audit_entry = reader(AuditEntry, AUDIT_COLUMNS)
bulk = reader(BulkRow, BULK_COLUMNS)
skip = reader(Skip, SKIP_COLUMNS)
checkpoint = reader(Checkpoint, CHECKPOINT_COLUMNS)
job_outcome = reader(JobOutcome, OUTCOME_COLUMNS)
failure = reader(Failure, FAILURE_COLUMNS)
stream_item = reader(StreamItem, ITEM_COLUMNS)
schedule = reader(ScheduleRow, SCHEDULE_COLUMNS)
worker = reader(WorkerInfo, WORKER_COLUMNS)

job = Reader(
    JobRow,
    {**{field.name: field.kind for field in fields_of(ROW)}, "wait_job": Kind.UUID},
    made={  # a wait that is over is not shown
        "wait_kind": "wait_kind if status is WAITING else None",
        "wait_key": """None if status is not WAITING
            else wait_key if wait_job is None else str(wait_job)""",
    },
    WAITING=Status.WAITING,
)

# A job claimed from a queue. ``submitted_at`` is NULL if it is the same as ``next_run_at``.
assignment = Reader(
    Assignment,
    {field.attribute(CLAIM): field.kind for field in fields_of(CLAIM)}
    | {"next_run_at": Kind.EPOCH, "submitted_at": Kind.EPOCH},
    made={
        "lease": "new_tuple(Lease, (id, lease_token, worker_id))",
        "submitted_at": "next_run_at if submitted_at is None else submitted_at",
    },
    given=("queue", "worker_id"),
    native=frozenset({Kind.UUID}),
    Lease=Lease,
    new_tuple=tuple.__new__,  # in half of the time that Lease() takes
)

# What governs a queue, a topic or a limit. Its numbers are JSON, which only this reads.
control = Reader(
    Control,
    {
        column.split()[-1]: attributes(Control)[column.split()[-1]].kind or Kind.TEXT
        for column in CONTROL_COLUMNS.split(",")
    },
    made={name: f"decoded({name})" for name in ("declared", "override")},
    decoded=decoded,
)


def lease(d: Dialect, row: Row) -> Lease:
    """Read the lease in a row that begins with a job's id, its token and its worker."""
    job_id, token, worker_id, *_ = row
    return Lease(d.uuid(job_id), token, d.uuid(worker_id))

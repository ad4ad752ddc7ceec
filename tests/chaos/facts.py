"""Everything that is known after a storm: the tables, the ledger, what producers were told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from tests.chaos.ledger import Entry
from tests.chaos.observer import Observer
from tests.chaos.producer import Asked
from tests.chaos.tables import Query, as_json, as_micros, as_uuid

GIVEN_BACK = "this attempt does not count"
"""How the error of a run ends that its process took along."""


class Row(NamedTuple):
    """A job as it is stored."""

    id: UUID
    topic: str
    status: str
    attempts: int
    max_attempts: int | None
    token: int
    payload: Any
    result: Any
    leased: bool
    error: str | None
    parent: UUID | None
    schedule: UUID | None
    occurrence: int | None
    key_held: bool


class Failure(NamedTuple):
    """A run that failed or was lost."""

    job: UUID
    token: int
    error: str


class Schedule(NamedTuple):
    """A schedule as it is stored."""

    id: UUID
    name: str
    anchor: int
    cursor: int
    missed: int
    error: str | None


@dataclass
class Tables:
    """What plain SQL has read."""

    jobs: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    effects: list[tuple[int, str]] = field(default_factory=list)


class Run(NamedTuple):
    """One run, as its handler wrote it down."""

    job: UUID
    token: int
    n: int
    pid: int
    begin: float
    end: float


@dataclass
class Facts:
    """What a checker is given."""

    tables: Tables
    entries: list[Entry]
    asked: list[Asked]
    observer: Observer
    probes: list[Asked] = field(default_factory=list)
    poll: float = 1.0
    every: float = 1.0
    tx: bool = True
    frozen: list[tuple[int, float, float]] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    struck: int = 1
    """Faults that happened."""

    @cached_property
    def rows(self) -> dict[UUID, Row]:
        return {row.id: row for row in self.tables.jobs}

    @cached_property
    def children(self) -> dict[UUID, list[Row]]:
        found = defaultdict[UUID, list[Row]](list)
        for row in self.tables.jobs:
            if row.parent is not None:
                found[row.parent].append(row)
        return found

    @cached_property
    def failures(self) -> dict[UUID, list[Failure]]:
        found = defaultdict[UUID, list[Failure]](list)
        for failure in self.tables.failures:
            found[failure.job].append(failure)
        return found

    def of(self, *events: str) -> Iterable[Entry]:
        """Return entries of these events, in order."""
        return (entry for entry in self.entries if entry.event in events)


def read_tables(query: Query) -> Tables:
    """Read everything, by plain SQL."""
    jobs = query(
        "SELECT id, topic, status, attempts, max_attempts, lease_token, payload, result, "
        "locked_by IS NOT NULL OR lease_until IS NOT NULL, last_error, parent_id, schedule_id, "
        "occurrence, key_held FROM pulse_jobs"
    )
    failures = query("SELECT job_id, lease_token, error FROM pulse_failures")
    schedules = query("SELECT id, name, anchor, next_run_at, missed, error FROM pulse_schedules")
    return Tables(
        [_row(*row) for row in jobs],
        [Failure(as_uuid(job), token, error) for job, token, error in failures],
        [
            Schedule(as_uuid(each), name, as_micros(anchor), as_micros(cursor), missed, error)
            for each, name, anchor, cursor, missed, error in schedules
        ],
        [(n, step) for n, step in query("SELECT n, step FROM chaos_effects")],
    )


def _row(*values: Any) -> Row:
    row = Row(*values)
    return row._replace(
        id=as_uuid(row.id),
        payload=as_json(row.payload),
        result=as_json(row.result),
        leased=bool(row.leased),
        parent=row.parent and as_uuid(row.parent),
        schedule=row.schedule and as_uuid(row.schedule),
        occurrence=row.occurrence and as_micros(row.occurrence),
        key_held=bool(row.key_held),
    )

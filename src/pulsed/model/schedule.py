"""The definition of a schedule, and the decision what it does when it is due. No I/O.

A schedule has a cursor, the earliest occurrence that has not been fired. ``plan`` decides what
happens when the cursor is due: which occurrences become jobs, how many are skipped, and where the
cursor goes.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha1
from itertools import islice
from typing import NamedTuple
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption, checked_seconds
from pulsed.model.backoff import Backoff
from pulsed.model.cron_count import count_between
from pulsed.model.ids import computed_id
from pulsed.model.timetable import (
    MICROSECOND,
    Cron,
    Every,
    Once,
    Timetable,
    latest_until,
    next_after,
    to_micros,
    upcoming,
)

NAMESPACE = UUID("7d8c1d5e-6a0f-5b6e-9a44-3c1f0b7e52d1")
"""The namespace of every occurrence's job id; it can never change."""
ON_TIME = timedelta(seconds=60)
"""With catch-up ``skip``, an occurrence that is later than this counts as missed."""
MINUTE = timedelta(minutes=1)
"""No two occurrences of a cron are closer than this."""


class CatchUp(StrEnum):
    """What happens to occurrences that passed while no worker fired schedules."""

    ONE = "one"
    """The latest of them becomes a job, the others are skipped."""
    SKIP = "skip"
    """All of them are skipped."""
    ALL = "all"
    """Each becomes a job, the latest ``limit`` of them if there is a limit."""


class Overlap(StrEnum):
    """What happens when the job of the last occurrence has not ended."""

    ALLOW = "allow"
    SKIP = "skip"


class ScheduleState(StrEnum):
    """Whether a schedule produces jobs."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    DONE = "DONE"
    """It has no further occurrence."""
    ERROR = "ERROR"
    """It could not be fired; its ``error`` says why, and an edit or a resume starts it again."""


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule's definition: when, and which job. Stored as JSON; equal specs, equal texts."""

    topic: str
    payload: str
    cron: str | None = None
    zone: str = "UTC"
    every: int | None = None
    """Microseconds."""
    at: datetime | None = None
    catch_up: CatchUp = CatchUp.ONE
    limit: int | None = None
    overlap: Overlap = Overlap.ALLOW
    jitter: float = 0.0
    start: datetime | None = None
    end: datetime | None = None
    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    lease: float | None = None
    headers: dict[str, str] | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    key_for: str | None = None
    on_duplicate: str | None = None
    expires: float | None = None

    @property
    def times(self) -> tuple[object, ...]:
        """Everything that decides when it is due."""
        return (self.cron, self.zone, self.every, self.at, self.start, self.end)

    @property
    def timetable(self) -> Timetable:
        """When it is due."""
        if self.cron is not None:
            return Cron(self.cron, self.zone)
        if self.every is not None:
            return Every(timedelta(microseconds=self.every))
        assert self.at is not None
        return Once(self.at)


class Version(NamedTuple):
    """The state of a schedule that a caller has read; every change but a fire makes a new one."""

    id: UUID
    revision: int


class ScheduleKey(NamedTuple):
    """The app and the name of a schedule; lists are sorted by them."""

    app: str
    name: str


class ScheduleFilter(NamedTuple):
    """Which schedules to list."""

    app: str | None = None
    state: ScheduleState | None = None
    due_before: datetime | None = None
    """Only those whose next occurrence is earlier than this."""


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the database has it."""

    id: UUID
    app: str
    name: str
    spec_text: str
    state: ScheduleState
    error: str | None
    anchor: datetime
    next_run_at: datetime | None
    """The cursor: the earliest occurrence that has not been fired."""
    last_occurrence: datetime | None
    last_fired_at: datetime | None
    missed: int
    revision: int
    created_at: datetime
    updated_at: datetime
    declared: bool
    """Written by a program's declarations, not by hand."""

    @property
    def key(self) -> ScheduleKey:
        """Its app and its name."""
        return ScheduleKey(self.app, self.name)

    @property
    def version(self) -> Version:
        """The version that a change based on this row has to find unchanged."""
        return Version(self.id, self.revision)

    @property
    def spec(self) -> ScheduleSpec:
        """Its definition; raises ``InvalidOption`` if the stored text cannot be decoded."""
        try:
            return msgspec.json.decode(self.spec_text, type=ScheduleSpec)
        except msgspec.MsgspecError as error:
            raise InvalidOption(
                f"Schedule {self.name!r} cannot be read: {error}. Put it again, or delete it."
            ) from error


class Plan(NamedTuple):
    """What to do with a schedule whose cursor is due."""

    fire: list[datetime]
    """Occurrences that become jobs, in order."""
    missed: int
    """Number of occurrences skipped."""
    next: datetime | None
    """Where the cursor goes; None if there is no further occurrence."""


def checked_jitter(seconds: float | timedelta) -> float:
    """Return the seconds over which the jobs of one instant are spread."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return checked_seconds("jitter", seconds, most=86_400)


def first_occurrence(
    timetable: Timetable,
    *,
    now: datetime,
    anchor: datetime,
    start: datetime | None = None,
    end: datetime | None = None,
) -> datetime | None:
    """Return the first cursor of a new schedule.

    An interval without a start begins one interval after its creation, a cron at its next instant;
    an instant in the past is due at once.
    """
    if isinstance(timetable, Once):
        return timetable.at
    if start is not None:
        after = max(start - MICROSECOND, now if start <= now else start - MICROSECOND)
    else:
        after = now
    occurrence = next_after(timetable, after, anchor=anchor)
    return None if occurrence is None or (end is not None and occurrence > end) else occurrence


def plan(
    timetable: Timetable,
    cursor: datetime,
    now: datetime,
    *,
    anchor: datetime,
    end: datetime | None = None,
    catch_up: CatchUp = CatchUp.ONE,
    limit: int | None = None,
    most: int = 1_000,
) -> Plan:
    """Decide what a due schedule does at ``now``.

    With catch-up ``all`` at most ``most`` occurrences are fired at a time; the cursor then stays
    due, and the rest follows.
    """
    horizon = now if end is None else min(now, end)
    if catch_up is CatchUp.ALL:
        return _plan_all(timetable, cursor, horizon, anchor, end, limit, most)
    latest, passed = cursor, 0
    following = next_after(timetable, cursor, anchor=anchor)
    if following is not None and following <= horizon:
        latest = latest_until(timetable, horizon, anchor=anchor) or cursor
        passed = _count(timetable, cursor, latest)
        following = next_after(timetable, latest, anchor=anchor)
    following = _within(following, end)
    if catch_up is CatchUp.SKIP and now - latest > ON_TIME:
        return Plan([], passed + 1, following)
    return Plan([latest], passed, following)


def _plan_all(
    timetable: Timetable,
    cursor: datetime,
    horizon: datetime,
    anchor: datetime,
    end: datetime | None,
    limit: int | None,
    most: int,
) -> Plan:
    first = cursor
    if limit is not None:
        first = _first_of_latest(timetable, cursor, horizon, anchor, limit)
    missed = _count(timetable, cursor, first)
    later = upcoming(timetable, first, anchor=anchor, end=horizon)
    fire = [first, *islice(later, most - 1)]
    following = next_after(timetable, fire[-1], anchor=anchor)
    return Plan(fire, missed, _within(following, end))


def _first_of_latest(
    timetable: Timetable, cursor: datetime, horizon: datetime, anchor: datetime, limit: int
) -> datetime:
    """Return the first of the latest ``limit`` occurrences from the cursor to the horizon."""
    match timetable:
        case Once():
            return cursor
        case Every(interval):
            latest = latest_until(timetable, horizon, anchor=anchor) or cursor
            return max(cursor, latest - (limit - 1) * interval)
    end, stretch = horizon + MICROSECOND, timedelta(hours=1)
    while end - stretch > cursor and count_between(timetable, end - stretch, end) < limit:
        stretch *= 4
    early, late = max(cursor, end - stretch), end
    if count_between(timetable, early, end) <= limit:
        return next_after(timetable, early - MICROSECOND, anchor=anchor) or cursor
    while late - early > MINUTE:  # too many from early on, not too many from late on
        middle = early + (late - early) / 2
        if count_between(timetable, middle, end) > limit:
            early = middle
        else:
            late = middle
    return next_after(timetable, late - MICROSECOND, anchor=anchor) or cursor


def _count(timetable: Timetable, cursor: datetime, latest: datetime) -> int:
    """Return the number of occurrences from the cursor to the latest, exclusive."""
    match timetable:
        case Once():
            return 0
        case Every(interval):
            return (latest - cursor) // interval
        case Cron():
            return count_between(timetable, cursor, latest)


def _within(occurrence: datetime | None, end: datetime | None) -> datetime | None:
    return None if occurrence is not None and end is not None and occurrence > end else occurrence


def occurrence_id(schedule_id: UUID, occurrence: datetime) -> UUID:
    """Return the id of the job of one occurrence: the same in every process that fires it."""
    micros = to_micros(occurrence)
    name = NAMESPACE.bytes + f"{schedule_id}|{micros}".encode()
    return computed_id(max(0, micros // 1000), sha1(name, usedforsecurity=False).digest())

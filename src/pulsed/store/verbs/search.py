"""Lists and counts of jobs, each at a bounded cost.

A list goes by id, newest first. Running jobs, dead letters and the children of a job come from an
index; every other filter scans a bounded number of jobs, and the answer says where the scan ended.
Counts stop at the same bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.lifecycle import CLAIMABLE
from pulsed.model.page import MOST_GROUPS, SEARCHED, Counts, GroupedCounts, Page, bound_of
from pulsed.store.sql import rows as decode
from pulsed.store.sql.search import FilteredJobs
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reads import clock
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb

SKEW = timedelta(hours=1)
"""How far a producer's clock, whose time an id begins with, may be ahead of the database's."""

END = datetime.max.replace(tzinfo=UTC)
"""The last possible instant."""

FUTURE = timedelta(days=1)
"""An id that begins with a later time than this was not made from a clock."""


@verb(VerbKind.READ, name="list")
def list_jobs(
    engine: Engine, where: JobFilter, limit: int, before: UUID | None
) -> Script[Page[JobRow]]:
    """Read a page of jobs, newest id first."""
    search = engine.searching.filtered(where)
    start, floor = yield from _bounds(engine, search, where, before)
    found = yield search.page(start, floor, limit)
    jobs = decode.job.all(engine.dialect, found)
    if len(jobs) == limit:
        return Page(jobs, next=jobs[-1].id)
    return Page(jobs, next=floor, is_cut=floor is not None)


def matching_ids(
    engine: Engine, where: JobFilter, limit: int, before: UUID, scanned: int
) -> Script[tuple[list[UUID], UUID | None]]:
    """Read the ids of a page of jobs, newest first, and where the next page begins, if at all."""
    search = engine.searching.filtered(where)
    floor = yield from _floor(engine, search, before, scanned)
    found = yield search.ids(before, floor, limit)
    ids = [engine.dialect.uuid(job_id) for (job_id,) in found]
    return ids, ids[-1] if len(ids) == limit else floor


def first_id_before(engine: Engine, where: JobFilter, before: UUID) -> Script[UUID]:
    """Return where a scan for a filter may begin, at or below an id."""
    if where.until is None or engine.searching.filtered(where).has_own_index:
        return before
    return (yield from _skip(engine, where.until, before)) or before


def counts(engine: Engine, where: JobFilter) -> Verb[Counts]:
    """Count jobs by status."""
    if where == JobFilter(status=where.status):
        return _counts_by_status(engine, where.status or tuple(Status))
    search = engine.searching.filtered(where)

    def script() -> Script[Counts]:
        start, floor = yield from _bounds(engine, search, where, None, counting=True)
        found = yield search.count(start, floor)
        uncertain = (where.status or tuple(Status)) if floor is not None else ()
        return _tally(found, tuple(Status), uncertain)

    return Verb("counts", VerbKind.READ, script)


@verb(VerbKind.READ, name="counts")
def counts_by(engine: Engine, where: JobFilter, by: Sequence[str]) -> Script[GroupedCounts]:
    """Count jobs by some of their fields."""
    search = engine.searching.filtered(where)
    start, floor = yield from _bounds(engine, search, where, None, counting=True)
    found = yield search.count_by(by, start, floor)
    return GroupedCounts(
        [(tuple(values), number) for *values, number in found[:MOST_GROUPS]],
        by=by,
        is_cut=floor is not None,
        is_short=len(found) > MOST_GROUPS,
    )


@verb(VerbKind.READ, name="counts")
def _counts_by_status(engine: Engine, wanted: Sequence[Status]) -> Script[Counts]:
    """Count jobs by their status alone, from the index of each status."""
    searching = engine.searching
    counted = Counts((status, 0) for status in Status)
    uncertain: list[Status] = []
    if some := tuple(status for status in CLAIMABLE if status in wanted):
        found = yield Statement(searching.count_claimable, {"most": SEARCHED})
        counted = _tally(found, some)
        uncertain += some if sum(number for *_, number in found) == SEARCHED else ()
    for status in wanted:
        if status not in CLAIMABLE:
            sql = searching.count_in_status(status)
            [(counted[status],)] = yield Statement(sql, {"most": SEARCHED})
            uncertain += [status] if counted[status] == SEARCHED else []
    return Counts(counted.items(), uncertain, due=counted.due)


def _tally(found: Rows, wanted: Sequence[Status], at_least: Sequence[Status] = ()) -> Counts:
    """Return the numbers of rows of status, whether those are due, and how many there are."""
    counted = dict.fromkeys(map(str, Status), 0)
    due = 0
    for status, is_due, number in found:
        if status in wanted:
            counted[status] += number
            due += number if is_due and status == Status.PENDING else 0
    return Counts(((status, counted[status.value]) for status in Status), at_least, due=due)


def _bounds(
    engine: Engine,
    search: FilteredJobs,
    where: JobFilter,
    before: UUID | None,
    *,
    counting: bool = False,
) -> Script[tuple[UUID | None, UUID | None]]:
    """Return where the scan begins, and where it stops if there are more jobs after that.

    A page ends when it is full, so one whose jobs all match needs no bound; a count does.
    """
    if search.has_own_index:
        return before, None
    start = before
    if where.until is not None:
        start = yield from _skip(engine, where.until, before)
    if search.is_exact and not counting:
        return start, None
    return start, (yield from _floor(engine, search, start, bound_of(where, SEARCHED)))


def _floor(
    engine: Engine, search: FilteredJobs, start: UUID | None, scanned: int
) -> Script[UUID | None]:
    """Return where a scan of so many jobs ends; None: there are no more."""
    if search.has_own_index:
        return None
    found = yield search.id_after(start, scanned - 1)
    return engine.dialect.uuid(found[0][0]) if found else None


def _skip(engine: Engine, until: datetime, before: UUID | None) -> Script[UUID | None]:
    """Return where to begin for jobs that were submitted before an instant.

    Generated ids begin with their time. If there are ids of another kind, it skips nothing.
    """
    future = _first_id((yield from clock(engine)) + FUTURE)
    if (yield Statement(engine.searching.find_id_from, {"first": future})):
        return before
    last = _first_id(min(until, END - SKEW) + SKEW)
    return last if before is None else min(before, last)


def _first_id(instant: datetime) -> UUID:
    """Return the first id that begins with this time."""
    return UUID(int=max(0, round(instant.timestamp() * 1000)) << 80)

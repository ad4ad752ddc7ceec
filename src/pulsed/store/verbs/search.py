"""Lists and counts of jobs, each at a bounded cost.

A list goes by id, newest first. Running jobs, dead letters and the children of a job come from an
index; every other filter scans the next ``SEARCHED`` jobs, and the answer says where the scan
ended. Counts stop at the same bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from string import ascii_lowercase
from typing import Any
from uuid import UUID

from pulsed.model.job import JobFilter, JobRow, JsonScalar, PayloadField, Status
from pulsed.model.lifecycle import CLAIMABLE
from pulsed.model.page import SEARCHED, Counts, Page
from pulsed.store.sql import rows as decode
from pulsed.store.sql.columns import JOB_COLUMNS
from pulsed.store.sql.dialect import Dialect, ValueKind
from pulsed.store.sql.jobs import words
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, Verb, VerbKind

SKEW = timedelta(hours=1)
"""How far a producer's clock, whose time an id begins with, may be ahead of the database's."""

END = datetime.max.replace(tzinfo=UTC)
"""The last possible instant."""

FUTURE = timedelta(days=1)
"""An id that begins with a later time than this was not made from a clock."""

_DEAD = (Status.DEAD_LETTERED,)
_RUNNING = (Status.RUNNING,)


def list_jobs(
    engine: Engine, where: JobFilter, limit: int, before: UUID | None
) -> Verb[Page[JobRow]]:
    """Read a page of jobs, newest id first."""
    search = _Search(engine, where)

    def script() -> Script[Page[JobRow]]:
        start, floor = yield from search.bounds(before)
        found = yield search.page(start, floor, limit)
        jobs = decode.job.all(engine.dialect, found)
        if len(jobs) == limit:
            return Page(jobs, next=jobs[-1].id)
        return Page(jobs, next=floor, is_cut=floor is not None)

    return Verb("list", VerbKind.READ, script)


def counts(engine: Engine, where: JobFilter) -> Verb[Counts]:
    """Count jobs by status."""
    if where == JobFilter(status=where.status):
        return _counts_by_status(engine, where.status or tuple(Status))
    search = _Search(engine, where)

    def script() -> Script[Counts]:
        start, floor = yield from search.bounds(None)
        found = yield search.count(start, floor)
        uncertain = (where.status or tuple(Status)) if floor is not None else ()
        return _tally(found, tuple(Status), uncertain)

    return Verb("counts", VerbKind.READ, script)


def _counts_by_status(engine: Engine, wanted: Sequence[Status]) -> Verb[Counts]:
    """Count jobs by their status alone, from the index of each status."""
    d = engine.dialect

    def script() -> Script[Counts]:
        counted = Counts((status, 0) for status in Status)
        uncertain: list[Status] = []
        if some := tuple(status for status in CLAIMABLE if status in wanted):
            sql = d.sql(
                f"""SELECT status, is_due, count(*) FROM (
                        SELECT status, next_run_at <= {d.now} AS is_due FROM {d.jobs}
                        WHERE {_one_of(CLAIMABLE)} LIMIT :most::int) AS found
                    GROUP BY status, is_due"""
            )
            found = yield Statement(sql, {"most": SEARCHED})
            counted = _tally(found, some)
            uncertain += some if sum(number for *_, number in found) == SEARCHED else ()
        for status in wanted:
            if status not in CLAIMABLE:
                sql = d.sql(
                    f"""SELECT count(*) FROM (SELECT 1 FROM {d.jobs}
                        WHERE {_indexed(status)} LIMIT :most::int) AS found"""
                )
                [(counted[status],)] = yield Statement(sql, {"most": SEARCHED})
                uncertain += [status] if counted[status] == SEARCHED else []
        return Counts(counted.items(), uncertain, due=counted.due)

    return Verb("counts", VerbKind.READ, script)


def _tally(found: Rows, wanted: Sequence[Status], at_least: Sequence[Status] = ()) -> Counts:
    """Return the numbers of rows of status, whether those are due, and how many there are."""
    counted = dict.fromkeys(map(str, Status), 0)
    due = 0
    for status, is_due, number in found:
        if status in wanted:
            counted[status] += number
            due += number if is_due and status == Status.PENDING else 0
    return Counts(((status, counted[status.value]) for status in Status), at_least, due=due)


class _Search:
    """One filter: the index that answers it, and its conditions."""

    def __init__(self, engine: Engine, where: JobFilter) -> None:
        self._d = engine.dialect
        self._where = where
        self._conditions, self._params = _conditions(engine, where)
        is_running = where.worker is not None or where.status == _RUNNING
        self._has_own_index = where.parent is not None or is_running
        """An index has little more than the matching jobs, but not in the order of ids."""
        if is_running:
            self._conditions.append("lease_until IS NOT NULL")
        self._lowest, self._highest = _ids_with(where.id_prefix)
        self._in_turn = f"status = '{Status.DEAD_LETTERED}'" if where.status == _DEAD else None
        """The condition of an index that has just these jobs, in the order of ids."""

    @property
    def _is_exact(self) -> bool:
        """Whether every job that a scan by id visits matches."""
        return self._where in (JobFilter(), JobFilter(status=_DEAD))

    def bounds(self, before: UUID | None) -> Script[tuple[UUID | None, UUID | None]]:
        """Return where the scan begins, and where it stops if there are more jobs after that."""
        if self._has_own_index:
            return before, None
        start = before
        if self._where.until is not None:
            start = yield from self._skip(self._where.until, before)
        if self._is_exact:
            return start, None
        conditions, params = self._range(start, None)
        if self._in_turn is not None:
            conditions.append(self._in_turn)
        found = yield Statement(
            self._d.sql(
                f"""SELECT id FROM {self._d.jobs} WHERE {_all(conditions)}
                ORDER BY id DESC LIMIT 1 OFFSET :skipped::int"""
            ),
            params | {"skipped": SEARCHED - 1},
        )
        return start, self._d.uuid(found[0][0]) if found else None

    def _skip(self, until: datetime, before: UUID | None) -> Script[UUID | None]:
        """Return where to begin for jobs that were submitted before an instant.

        Generated ids begin with their time. If there are ids of another kind, it skips nothing.
        """
        sql = self._d.sql(
            f"SELECT 1 FROM {self._d.jobs} WHERE id >= :future::uuid ORDER BY id LIMIT 1"
        )
        [(now,)] = yield Statement(self._d.sql(f"SELECT {self._d.now}"), {})
        future = _first_id(self._d.time(now) + FUTURE)
        if (yield Statement(sql, {"future": future})):
            return before
        last = _first_id(min(until, END - SKEW) + SKEW)
        return last if before is None else min(before, last)

    def _range(self, start: UUID | None, floor: UUID | None) -> tuple[list[str], dict[str, Any]]:
        conditions, params = [], {}
        if start is not None:
            conditions.append("id < :before::uuid")
            params["before"] = start
        if self._highest is not None:
            conditions.append("id <= :highest::uuid")
            params["highest"] = self._highest
        if floor is None:
            floor = self._lowest
        if floor is not None:
            conditions.append("id >= :floor::uuid")
            params["floor"] = floor
        return conditions, params

    @property
    def _table(self) -> str:
        by_id = "" if self._has_own_index or self._in_turn else self._d.by_id
        return f"{self._d.jobs} AS j {by_id}"

    def page(self, start: UUID | None, floor: UUID | None, limit: int) -> Statement:
        """Return the query of matching jobs: it finds their ids first, for a row may be large."""
        conditions, params = self._range(start, floor)
        matching = f"FROM {self._table} WHERE {_all(conditions + self._conditions)}"
        ids = f"SELECT id {matching}"
        if self._has_own_index:  # with an ORDER BY here the planner would scan the ids of all jobs
            ids = f"WITH matching AS MATERIALIZED ({ids}) SELECT id FROM matching"
        among = self._d.id_among("id", f"{ids} ORDER BY id DESC LIMIT :most::int")
        sql = self._d.sql(
            f"""SELECT {JOB_COLUMNS} FROM {self._d.jobs} AS j {self._d.by_id}
            WHERE {among} ORDER BY id DESC"""
        )
        return Statement(sql, self._params | params | {"most": limit})

    def count(self, start: UUID | None, floor: UUID | None) -> Statement:
        """Return the query that counts matching jobs by status."""
        conditions, params = self._range(start, floor)
        sql = self._d.sql(
            f"""SELECT status, next_run_at <= {self._d.now} AS is_due, count(*)
            FROM {self._table}
            WHERE {_all(conditions + self._conditions)} GROUP BY status, is_due"""
        )
        return Statement(sql, self._params | params)


def _first_id(instant: datetime) -> UUID:
    """Return the first id that begins with this time."""
    return UUID(int=max(0, round(instant.timestamp() * 1000)) << 80)


def _conditions(engine: Engine, where: JobFilter) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    params: dict[str, Any] = {}

    def add(condition: str, name: str, value: object) -> None:
        if value is not None:
            conditions.append(condition)
            params[name] = value

    if where.status:
        conditions.append(_one_of(where.status))
    add("topic = :topic::text", "topic", where.topic)
    begins = "substr(topic, 1, length(:begin::text)) = :begin::text"
    add(begins, "begin", where.topic_prefix)
    add("queue = :queue::text", "queue", where.queue)
    add("parent_id = :parent::uuid", "parent", where.parent)
    add("parent_step = :step::text", "step", where.parent_step)
    add("status = 'RUNNING' AND locked_by = :worker::uuid", "worker", where.worker)
    add("schedule_id = :schedule::uuid", "schedule", where.schedule)
    if where.due is not None:
        than = "<=" if where.due else ">"
        conditions.append(f"{_one_of(CLAIMABLE)} AND next_run_at {than} {engine.dialect.now}")
    ends = None if where.id_suffix is None else f"%{where.id_suffix.upper()}"
    add(f"{engine.dialect.id_digits} LIKE :ends::text", "ends", ends)
    for letter, field in zip(ascii_lowercase, where.payload, strict=False):
        condition, values = _payload_condition(engine.dialect, letter, field)
        conditions.append(condition)
        params |= values
    add("submitted_at >= :since::timestamptz", "since", where.since)
    add("submitted_at < :until::timestamptz", "until", where.until)
    tagged = f"EXISTS (SELECT 1 FROM {engine.dialect.elements('tags')} WHERE e.value = :tag::text)"
    add(f"tags IS NOT NULL AND {tagged}", "tag", where.tag)
    pattern = None if where.error is None else f"%{_like_literal(where.error)}%"
    # The database lowers both sides, because it may know fewer letters than Python does.
    like = "last_error IS NOT NULL AND lower(last_error) LIKE (SELECT lower(:pattern::text))"
    add(f"{like} ESCAPE '~'", "pattern", pattern)
    return conditions, params


def _payload_condition(d: Dialect, letter: str, field: PayloadField) -> tuple[str, dict[str, Any]]:
    path, value = f"path_{letter}", f"value_{letter}"
    kind = _kind_of(field.value)
    params: dict[str, Any] = {path: d.json_path(field.path)}
    if kind in (ValueKind.TEXT, ValueKind.NUMBER):
        params[value] = str(field.value)
    return d.has_value(f":{path}", f":{value}", kind), params


def _kind_of(value: JsonScalar) -> ValueKind:
    match value:
        case None:
            return ValueKind.NULL
        case bool():
            return ValueKind.TRUE if value else ValueKind.FALSE
        case str():
            return ValueKind.TEXT
        case _:
            return ValueKind.NUMBER


def _ids_with(prefix: str | None) -> tuple[UUID | None, UUID | None]:
    """Return the first and the last id that begin with these digits."""
    if not prefix:
        return None, None
    return UUID(prefix.ljust(32, "0")), UUID(prefix.ljust(32, "f"))


def _indexed(status: Status) -> str:
    """Return the condition of jobs in a status, worded as that of the index that has just those."""
    if status is Status.RUNNING:
        return f"{_one_of((status,))} AND lease_until IS NOT NULL"
    return f"{_one_of((status,))} AND completed_at IS NOT NULL"


def _one_of(statuses: Sequence[Status]) -> str:
    """Return whether a job has one of these. SQLite uses the index of one status only for ``=``."""
    if len(statuses) == 1:
        return f"status = '{statuses[0]}'"
    return f"status IN {words(tuple(statuses))}"


def _all(conditions: list[str]) -> str:
    return " AND ".join(conditions) or "true"


def _like_literal(text: str) -> str:
    return text.replace("~", "~~").replace("%", "~%").replace("_", "~_")

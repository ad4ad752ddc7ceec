"""Lists and counts of jobs: which index answers a filter, and the texts that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pulsed.model.job import JobFilter, Status
from pulsed.model.lifecycle import CLAIMABLE
from pulsed.store.sql.columns import JOB_COLUMNS
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import words
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.statement import Sql, Statement

_DEAD = (Status.DEAD_LETTERED,)
_RUNNING = (Status.RUNNING,)


class SearchStatements(StatementGroup):
    """Jobs by a filter, and counts by status."""

    @prepared()
    def count_claimable(self, d: Dialect) -> str:
        """Count the jobs that wait, by status, up to a bound."""
        return f"""SELECT status, count(*) FROM (SELECT status FROM {d.jobs}
            WHERE {_one_of(CLAIMABLE)} LIMIT :most::int) AS found GROUP BY status"""

    def count_in_status(self, status: Status) -> Sql:
        """Count the jobs in a status that has an index of its own, up to a bound."""
        return self.dialect.sql(
            f"""SELECT count(*) FROM (SELECT 1 FROM {self.dialect.jobs}
            WHERE {_indexed(status)} LIMIT :most::int) AS found"""
        )

    @prepared()
    def find_id_from(self, d: Dialect) -> str:
        """Whether there is an id from this one on."""
        return f"SELECT 1 FROM {d.jobs} WHERE id >= :first::uuid ORDER BY id LIMIT 1"

    def filtered(self, where: JobFilter) -> FilteredJobs:
        """Return the queries of one filter."""
        return FilteredJobs(self.dialect, where)


class FilteredJobs:
    """The queries of one filter. They read ids from ``floor`` up to, but not including, ``start``.

    None leaves that end open.
    """

    def __init__(self, dialect: Dialect, where: JobFilter) -> None:
        self._d = dialect
        self._conditions, self._params = _conditions(dialect, where)
        self.has_own_index = where.parent is not None or where.status == _RUNNING
        """An index has little more than the matching jobs, but not in the order of ids."""
        if where.status == _RUNNING:
            self._conditions.append("lease_until IS NOT NULL")
        self._in_turn = f"status = '{Status.DEAD_LETTERED}'" if where.status == _DEAD else None
        """The condition of an index that has just these jobs, in the order of ids."""
        self.is_exact = where in (JobFilter(), JobFilter(status=_DEAD))
        """Every job that a scan by id visits matches."""

    def id_after(self, start: UUID | None, skipped: int) -> Statement:
        """Return the query of the id that a scan reaches after so many jobs."""
        conditions, params = _range(start, None)
        if self._in_turn is not None:
            conditions.append(self._in_turn)
        sql = self._d.sql(
            f"""SELECT id FROM {self._d.jobs} WHERE {_all(conditions)}
            ORDER BY id DESC LIMIT 1 OFFSET :skipped::int"""
        )
        return Statement(sql, params | {"skipped": skipped})

    def page(self, start: UUID | None, floor: UUID | None, limit: int) -> Statement:
        """Return the query of matching jobs: it finds their ids first, for a row may be large."""
        conditions, params = _range(start, floor)
        by_id = "" if self.has_own_index or self._in_turn else self._d.by_id
        matching = f"FROM {self._d.jobs} AS j {by_id} WHERE {_all(conditions + self._conditions)}"
        ids = f"SELECT id {matching}"
        if self.has_own_index:  # with an ORDER BY here the planner would scan the ids of all jobs
            ids = f"WITH matching AS MATERIALIZED ({ids}) SELECT id FROM matching"
        among = self._d.id_among("id", f"{ids} ORDER BY id DESC LIMIT :most::int")
        sql = self._d.sql(
            f"""SELECT {JOB_COLUMNS} FROM {self._d.jobs} AS j {self._d.by_id}
            WHERE {among} ORDER BY id DESC"""
        )
        return Statement(sql, self._params | params | {"most": limit})

    def count(self, start: UUID | None, floor: UUID | None) -> Statement:
        """Return the query that counts matching jobs by status."""
        conditions, params = _range(start, floor)
        sql = self._d.sql(
            f"""SELECT status, count(*) FROM {self._d.jobs} AS j
            WHERE {_all(conditions + self._conditions)} GROUP BY status"""
        )
        return Statement(sql, self._params | params)


def _range(start: UUID | None, floor: UUID | None) -> tuple[list[str], dict[str, Any]]:
    conditions, params = [], {}
    if start is not None:
        conditions.append("id < :before::uuid")
        params["before"] = start
    if floor is not None:
        conditions.append("id >= :floor::uuid")
        params["floor"] = floor
    return conditions, params


def _conditions(d: Dialect, where: JobFilter) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    params: dict[str, Any] = {}

    def add(condition: str, name: str, value: object) -> None:
        if value is not None:
            conditions.append(condition)
            params[name] = value

    if where.status:
        conditions.append(_one_of(where.status))
    add("topic = :topic::text", "topic", where.topic)
    add("queue = :queue::text", "queue", where.queue)
    add("parent_id = :parent::uuid", "parent", where.parent)
    add("parent_step = :step::text", "step", where.parent_step)
    add("submitted_at >= :since::timestamptz", "since", where.since)
    add("submitted_at < :until::timestamptz", "until", where.until)
    tagged = f"EXISTS (SELECT 1 FROM {d.elements('tags')} WHERE e.value = :tag::text)"
    add(f"tags IS NOT NULL AND {tagged}", "tag", where.tag)
    pattern = None if where.error is None else f"%{_like_literal(where.error)}%"
    # The database lowers both sides, because it may know fewer letters than Python does.
    like = "last_error IS NOT NULL AND lower(last_error) LIKE (SELECT lower(:pattern::text))"
    add(f"{like} ESCAPE '~'", "pattern", pattern)
    return conditions, params


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

"""Lists and counts of jobs: which index answers a filter, and the texts that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import Any
from uuid import UUID

from pulsed.model.job import JobFilter, JsonScalar, PayloadField, Status
from pulsed.model.lifecycle import CLAIMABLE
from pulsed.model.outcome import EXPIRED
from pulsed.model.page import LONGEST_ERROR_NAME, MOST_GROUPS
from pulsed.store.sql.columns import JOB_COLUMNS
from pulsed.store.sql.dialect import Dialect, ValueKind
from pulsed.store.sql.jobs import HAS_LIMIT, JOB, UNLIMITED, words
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.statement import Sql, Statement, one_column

_DEAD = (Status.DEAD_LETTERED,)
_RUNNING = (Status.RUNNING,)
_EXPIRED = f"last_outcome = '{EXPIRED}'"

_COMPARED = {
    "topic": "topic = :topic::text",
    "topic_prefix": "substr(topic, 1, length(:topic_prefix::text)) = :topic_prefix::text",
    "queue": "queue = :queue::text",
    "parent": "parent_id = :parent::uuid",
    "parent_step": "parent_step = :parent_step::text",
    "worker": "status = 'RUNNING' AND locked_by = :worker::uuid",
    "schedule": "schedule_id = :schedule::uuid",
    "key": "key = :key::text",
    "limit_key": "limit_key = :limit_key::text",
    "since": "submitted_at >= :since::timestamptz",
    "until": "submitted_at < :until::timestamptz",
}
"""The conditions of a filter's fields whose values are parameters as they are."""


class SearchStatements(StatementGroup):
    """Jobs by a filter, and counts by status."""

    @prepared()
    def count_claimable(self, d: Dialect) -> str:
        """Count the jobs that wait, by status and whether they are due, up to a bound."""
        both = " UNION ALL ".join(
            f"""SELECT * FROM (SELECT status, next_run_at <= {d.now} AS is_due FROM {d.jobs}
                WHERE {_one_of(CLAIMABLE)} AND {which} LIMIT :most::int) AS {name}"""
            for name, which in (("one", UNLIMITED), ("other", HAS_LIMIT))
        )
        return f"""SELECT status, is_due, count(*)
            FROM (SELECT * FROM ({both}) AS both_of LIMIT :most::int) AS found
            GROUP BY status, is_due"""

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

    @prepared()
    def newest_id(self, d: Dialect) -> str:
        """Read the highest id."""
        return f"SELECT id FROM {d.jobs} ORDER BY id DESC LIMIT 1"

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
        is_running = where.worker is not None or where.status == _RUNNING
        self.has_own_index = where.parent is not None or where.key is not None or is_running
        """An index has little more than the matching jobs, but not in the order of ids."""
        if is_running:
            self._conditions.append("lease_until IS NOT NULL")
        self._by_tag = where.tag is not None and not self.has_own_index
        """The index of tags has just the jobs with this one, in the order of ids."""
        self._id = "t.job_id" if self._by_tag else "id"
        self._lowest, self._highest = _ids_with(where.id_prefix)
        self._in_turn = None if self._by_tag else _condition_of_index(where)
        """The condition of an index that has just these jobs, in the order of ids."""
        self.is_exact = where in (
            JobFilter(),
            JobFilter(status=_DEAD),
            JobFilter(outcome=EXPIRED),
            JobFilter(tag=where.tag),
        )
        """Every job that a scan by id visits matches."""

    def id_after(self, start: UUID | None, skipped: int) -> Statement:
        """Return the query of the id that a scan reaches after so many jobs."""
        conditions, params = self._range(start, None)
        if self._in_turn is not None:
            conditions.append(self._in_turn)
        table = self._d.jobs
        if self._by_tag:
            table = f"{self._d.tags} AS t"
            conditions.append("t.tag = :tag::text")
            params["tag"] = self._params["tag"]
        sql = self._d.sql(
            f"""SELECT {self._id} FROM {table} WHERE {_all(conditions)}
            ORDER BY {self._id} DESC LIMIT 1 OFFSET :skipped::int"""
        )
        return Statement(sql, params | {"skipped": skipped})

    def page(self, start: UUID | None, floor: UUID | None, limit: int) -> Statement:
        """Return the query of matching jobs: it finds their ids first, for a row may be large."""
        ids, params = self._ids(start, floor)
        sql = self._d.sql(
            f"""SELECT {JOB_COLUMNS} FROM {self._d.jobs} AS j {self._d.by_id}
            WHERE {self._d.id_among("id", ids)} ORDER BY id DESC"""
        )
        return Statement(sql, params | {"most": limit})

    def ids(self, start: UUID | None, floor: UUID | None, limit: int) -> Statement:
        """Return the query of the ids of matching jobs."""
        ids, params = self._ids(start, floor)
        return Statement(self._d.sql(ids), params | {"most": limit})

    def still_match(self, ids: Sequence[UUID]) -> Statement:
        """Return the query of those jobs, of some, that match now."""
        among = self._d.id_among("id", f"SELECT r.job_id FROM {self._d.rows_of(JOB)}")
        sql = self._d.sql(
            f"""SELECT id FROM {self._d.jobs} AS j {self._d.by_id}
            WHERE {_all([among, *self._conditions])}""",
            JOB,
        )
        return Statement(sql, self._params, one_column(ids))

    def _ids(self, start: UUID | None, floor: UUID | None) -> tuple[str, dict[str, Any]]:
        conditions, params = self._range(start, floor)
        ids = f"SELECT {self._id} FROM {self._table} WHERE {_all(conditions + self._matching)}"
        if self.has_own_index:  # with an ORDER BY here the planner would scan the ids of all jobs
            ids = f"WITH matching AS MATERIALIZED ({ids}) SELECT id FROM matching"
        return f"{ids} ORDER BY {self._id} DESC LIMIT :most::int", self._params | params

    def count(self, start: UUID | None, floor: UUID | None) -> Statement:
        """Return the query that counts matching jobs by status and whether they are due."""
        conditions, params = self._range(start, floor)
        sql = self._d.sql(
            f"""SELECT status, next_run_at <= {self._d.now} AS is_due, count(*)
            FROM {self._table}
            WHERE {_all(conditions + self._matching)} GROUP BY status, is_due"""
        )
        return Statement(sql, self._params | params)

    def count_by(self, by: Sequence[str], start: UUID | None, floor: UUID | None) -> Statement:
        """Return the query that counts matching jobs by some of their fields."""
        conditions, params = self._range(start, floor)
        fields = ", ".join(self._group(name) for name in by)
        places = ", ".join(map(str, range(1, len(by) + 1)))
        sql = self._d.sql(
            f"""SELECT {fields}, count(*) AS number FROM {self._table}
            WHERE {_all(conditions + self._matching)}
            GROUP BY {places} ORDER BY number DESC, {places} LIMIT :most::int"""
        )
        return Statement(sql, self._params | params | {"most": MOST_GROUPS + 1})

    def _group(self, name: str) -> str:
        if name != "error":
            return {"topic": "topic", "queue": "queue", "status": "status"}[name]
        colon = self._d.position("':'", "last_error || ':'")
        end = f"{self._d.least}({colon} - 1, {LONGEST_ERROR_NAME})"
        return f"substr(last_error, 1, {end})"

    @property
    def _matching(self) -> list[str]:
        """The conditions, worded for the relation that is scanned."""
        if not self._by_tag:
            return self._conditions
        others = [each for each in self._conditions if each != _tagged(self._d)]
        return ["t.tag = :tag::text", *others]

    @property
    def _table(self) -> str:
        if self._by_tag:
            found = self._d.same_id("j.id", "t.job_id")
            return f"{self._d.tags} AS t JOIN {self._d.jobs} AS j {self._d.by_id} ON {found}"
        by_id = "" if self.has_own_index or self._in_turn else self._d.by_id
        return f"{self._d.jobs} AS j {by_id}"

    def _range(self, start: UUID | None, floor: UUID | None) -> tuple[list[str], dict[str, Any]]:
        conditions, params = [], {}
        if start is not None:
            conditions.append(f"{self._id} < :before::uuid")
            params["before"] = start
        if self._highest is not None:
            conditions.append(f"{self._id} <= :highest::uuid")
            params["highest"] = self._highest
        if floor is None:
            floor = self._lowest
        if floor is not None:
            conditions.append(f"{self._id} >= :floor::uuid")
            params["floor"] = floor
        return conditions, params


def _conditions(d: Dialect, where: JobFilter) -> tuple[list[str], dict[str, Any]]:
    given = {name: getattr(where, name) for name in _COMPARED}
    params = {name: value for name, value in given.items() if value is not None}
    conditions = [*_fixed_conditions(d, where), *(_COMPARED[name] for name in params)]

    def add(condition: str, name: str, value: object) -> None:
        if value is not None:
            conditions.append(condition)
            params[name] = value

    if where.outcome != EXPIRED:
        add("last_outcome = :outcome::text", "outcome", where.outcome)
    ends = None if where.id_suffix is None else f"%{where.id_suffix.upper()}"
    add(f"{d.id_digits} LIKE :ends::text", "ends", ends)
    for letter, field in zip(ascii_lowercase, where.payload, strict=False):
        condition, values = _payload_condition(d, letter, field)
        conditions.append(condition)
        params |= values
    add(_tagged(d), "tag", where.tag)
    pattern = None if where.error is None else f"%{_like_literal(where.error)}%"
    # The database lowers both sides, because it may know fewer letters than Python does.
    like = "last_error IS NOT NULL AND lower(last_error) LIKE (SELECT lower(:pattern::text))"
    add(f"{like} ESCAPE '~'", "pattern", pattern)
    return conditions, params


def _fixed_conditions(d: Dialect, where: JobFilter) -> Iterator[str]:
    """Yield the conditions without parameters."""
    if where.status:
        yield _one_of(where.status)
    if where.outcome == EXPIRED:  # worded as the condition of their index
        yield _EXPIRED
    if where.holds_key is not None:
        yield f"key_held IS {'NOT ' if where.holds_key else ''}NULL"
    if where.due is not None:
        than = "<=" if where.due else ">"
        yield f"{_one_of(CLAIMABLE)} AND next_run_at {than} {d.now}"
    if where.workflow is not None:
        steps = f"EXISTS (SELECT 1 FROM {d.checkpoints} AS s WHERE s.job_id = j.id)"
        yield steps if where.workflow else f"NOT {steps}"


def _tagged(d: Dialect) -> str:
    # Not EXISTS, from which a planner makes a join that begins with all jobs of the tag.
    return f"(SELECT 1 FROM {d.tags} AS g WHERE g.job_id = j.id AND g.tag = :tag::text) = 1"


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


def _condition_of_index(where: JobFilter) -> str | None:
    """Return the condition of an index that has little more than the matching jobs, by id."""
    if where.outcome == EXPIRED:
        return _EXPIRED
    return f"status = '{Status.DEAD_LETTERED}'" if where.status == _DEAD else None


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

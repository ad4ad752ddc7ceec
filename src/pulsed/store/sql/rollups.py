"""Statistics: rows that recorders write, their sums over longer spans, and the errors."""

from __future__ import annotations

from pulsed.model.buckets import BUCKETS
from pulsed.model.rollup import COUNTS
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.prepared import StatementGroup, prepared

HISTOGRAMS = ("wait", "run")
FIGURES = (
    *COUNTS,
    *(
        column
        for name in HISTOGRAMS
        for column in (f"{name}_seconds", *(f"{name}_{bucket}" for bucket in range(BUCKETS)))
    ),
)
"""The columns that are summed."""

KEY = ("span", "at", "queue", "topic")
ERROR_KEY = (*KEY, "error")

ROLLUP = ", ".join(
    (
        "span smallint, at timestamptz, queue text, topic text",
        *(f"{name} {'float8' if name.endswith('_seconds') else 'int'}" for name in FIGURES),
    )
)
"""The batch of ``record_rollups`` and ``add_rollups``."""
ERROR = (
    "span smallint, at timestamptz, queue text, topic text, error text, count int, "
    "dead_lettered int, last_at timestamptz, message text"
)

ERROR_FIGURES = ("count", "dead_lettered", "last_at", "message")


class RollupStatements(StatementGroup):
    """Statistics: recorded, folded, removed and read."""

    @prepared(ROLLUP)
    def record_rollups(self, d: Dialect) -> str:
        """Write a recorder's totals of its minutes.

        They are totals and not increments, so that a repeated flush changes nothing. A total only
        rises: one that is lower is a flush that arrived late. Minutes that may be folded already
        are ignored.
        """
        values = ", ".join(f"{name} = excluded.{name}" for name in FIGURES)
        return f"""{self._insert(d, d.rollups, KEY, FIGURES, ROLLUP)} WHERE {_in_time(d)}
            {_on_conflict(KEY)} DO UPDATE SET {values}
            WHERE {is_higher(COUNTS)}"""

    @prepared(ERROR)
    def record_errors(self, d: Dialect) -> str:
        """Write a recorder's totals of errors, in the same way."""
        values = ", ".join(f"{name} = excluded.{name}" for name in ERROR_FIGURES)
        return f"""{self._insert(d, d.error_rollups, ERROR_KEY, ERROR_FIGURES, ERROR)}
            WHERE {_in_time(d)} {_on_conflict(ERROR_KEY)} DO UPDATE SET {values}
            WHERE {is_higher(("count",))}"""

    @prepared(ROLLUP)
    def add_rollups(self, d: Dialect) -> str:
        """Add to the rows of longer spans."""
        values = ", ".join(f"{name} = s.{name} + excluded.{name}" for name in FIGURES)
        return f"""{self._insert(d, d.rollups, KEY, FIGURES, ROLLUP)} WHERE {d.true}
            {_on_conflict(KEY)} DO UPDATE SET {values}"""

    @prepared(ERROR)
    def add_errors(self, d: Dialect) -> str:
        """Add to the errors of longer spans; the later message stays."""
        later = "CASE WHEN excluded.last_at >= s.last_at THEN excluded.message ELSE s.message END"
        return f"""{self._insert(d, d.error_rollups, ERROR_KEY, ERROR_FIGURES, ERROR)}
            WHERE {d.true} {_on_conflict(ERROR_KEY)} DO UPDATE SET count = s.count + excluded.count,
                dead_lettered = s.dead_lettered + excluded.dead_lettered, message = {later},
                last_at = {d.greatest}(s.last_at, excluded.last_at)"""

    @prepared()
    def take_rollups(self, d: Dialect) -> str:
        """Remove and return the oldest rows of a span, to fold them or because they are too old."""
        return f"{_oldest(d, d.rollups)} RETURNING at, queue, topic, {', '.join(FIGURES)}"

    @prepared()
    def take_errors(self, d: Dialect) -> str:
        """Remove and return the oldest errors of a span."""
        returned = ", ".join(ERROR_FIGURES)
        return f"{_oldest(d, d.error_rollups)} RETURNING at, queue, topic, error, {returned}"

    @prepared(counted=True)
    def drop_rollups(self, d: Dialect) -> str:
        """Remove the oldest rows of a span."""
        return _oldest(d, d.rollups)

    @prepared(counted=True)
    def drop_errors(self, d: Dialect) -> str:
        """Remove the oldest errors of a span."""
        return _oldest(d, d.error_rollups)

    @prepared()
    def read_series(self, d: Dialect) -> str:
        """Sum by steps, the newest first.

        Rows of the same time are summed first, in the order of the key: SQLite would otherwise
        sort all rows, with all their columns.
        """
        sums = ", ".join(f"sum({name}) AS {name}" for name in FIGURES)
        return f"""SELECT {_step(d)} AS step, NULL, NULL, {", ".join(map(_sum_of_sums, FIGURES))}
            FROM (SELECT at, {sums} FROM {d.rollups} WHERE {_chosen()} GROUP BY span, at) AS found
            GROUP BY step ORDER BY step DESC LIMIT :most::int"""

    @prepared()
    def read_series_by(self, d: Dialect) -> str:
        """Sum by steps and by queue or topic, the newest first."""
        return f"""{_sums(d)} ORDER BY step DESC LIMIT :most::int"""

    @prepared()
    def read_totals(self, d: Dialect) -> str:
        """Sum by queue and topic, the busiest first."""
        return f"""{_sums(d)} ORDER BY sum(started) + sum(submitted) DESC LIMIT :most::int"""

    @prepared()
    def read_errors(self, d: Dialect) -> str:
        """Sum by kind of error, the most frequent first, each with its last message."""
        kind = "queue, topic, error"
        return f"""SELECT min(at), {kind}, sum(count), sum(dead_lettered), max(last_at),
                max(message) FILTER (WHERE nth = 1)
            FROM (SELECT at, {kind}, count, dead_lettered, last_at, message,
                    row_number() OVER (PARTITION BY {kind} ORDER BY last_at DESC) AS nth
                FROM {d.error_rollups} WHERE {_chosen()}) AS found
            GROUP BY {kind} ORDER BY sum(count) DESC, {kind} LIMIT :most::int"""

    @staticmethod
    def _insert(
        d: Dialect, table: str, key: tuple[str, ...], figures: tuple[str, ...], batch: str
    ) -> str:
        columns = (*key, *figures)
        return f"""INSERT INTO {table} AS s ({", ".join(columns)}, recorder)
            SELECT {", ".join(f"r.{name}" for name in columns)}, :recorder::uuid
            FROM {d.rows_of(batch)}"""


def _on_conflict(key: tuple[str, ...]) -> str:
    return f"ON CONFLICT ({', '.join(key)}, recorder)"


def is_higher(names: tuple[str, ...]) -> str:
    """Return whether the total that is being written is higher than the stored one."""
    written, stored = (
        " + ".join(f"{relation}.{name}" for name in names) for relation in ("excluded", "s")
    )
    return f"{written} > {stored}"


def _in_time(d: Dialect) -> str:
    return f"r.at > {d.now} - {d.seconds(':latest::float8')}"


def _oldest(d: Dialect, table: str) -> str:
    """Return the DELETE of the oldest rows of a span; those locked by another fold are skipped."""
    rows = f"""SELECT {d.row_id} FROM {table}
        WHERE span = :span::smallint AND at < {d.now} - {d.seconds(":age::float8")}
        ORDER BY at, queue, topic LIMIT :most::int {d.skip_locked}"""
    return f"DELETE FROM {table} WHERE {d.id_among(d.row_id, rows)}"


def _chosen() -> str:
    """Return whether a row is in the time, queue and topic that are read."""
    return """span IN (0, :span::smallint) AND at >= :since::timestamptz
        AND at < :until::timestamptz AND (:queue::text IS NULL OR queue = :queue::text)
        AND (:topic::text IS NULL OR topic = :topic::text)"""


def _sum_of_sums(name: str) -> str:
    """Return the sum of sums; of integers, PostgreSQL would make a decimal number of it."""
    return f"sum({name})" if name.endswith("_seconds") else f"CAST(sum({name}) AS bigint)"


def _step(d: Dialect) -> str:
    return d.steps(":since::timestamptz", "at", ":step::int")


def _sums(d: Dialect) -> str:
    sums = ", ".join(f"sum({name})" for name in FIGURES)
    return f"""SELECT step, one_queue, one_topic, {sums}
        FROM (SELECT {_step(d)} AS step, {", ".join(FIGURES)},
                CASE WHEN :by_queue::boolean THEN queue END AS one_queue,
                CASE WHEN :by_topic::boolean THEN topic END AS one_topic
            FROM {d.rollups} WHERE {_chosen()}) AS found
        GROUP BY step, one_queue, one_topic"""

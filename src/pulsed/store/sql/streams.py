"""The streams of jobs."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB, of_jobs
from pulsed.store.sql.prepared import StatementGroup, prepared

ITEM_COLUMNS = "position, run, value::text, emitted_at"

EMITTED = """job_id uuid, token bigint, worker uuid, position bigint, run int, value text,
    size int"""


class StreamStatements(StatementGroup):
    """Items of streams: appended, read, and trimmed."""

    @prepared(EMITTED, counted=True)
    def emit(self, d: Dialect) -> str:
        """Append items, fenced by the leases of their runs. One that is there does not change."""
        return f"""INSERT INTO {d.stream} (job_id, position, run, value, size, emitted_at)
            SELECT r.job_id, r.position, r.run, r.value::json, r.size, {d.now}
            FROM {d.rows_of(EMITTED, lock="held")} WHERE true
            ON CONFLICT (job_id, position) DO NOTHING"""

    @prepared()
    def status_of(self, d: Dialect) -> str:
        """Read the status of a stream's job."""
        return f"SELECT status FROM {d.jobs} WHERE id = :job::uuid"

    @prepared()
    def read_items(self, d: Dialect) -> str:
        """Read the items after a position."""
        return f"""SELECT {ITEM_COLUMNS} FROM {d.stream}
            WHERE job_id = :job::uuid AND position > :after::bigint
            ORDER BY position LIMIT :most::int"""

    @prepared()
    def read_newest(self, d: Dialect) -> str:
        """Read the newest items, newest first."""
        return f"""SELECT {ITEM_COLUMNS} FROM {d.stream} WHERE job_id = :job::uuid
            ORDER BY position DESC LIMIT :most::int"""

    @prepared()
    def trim_stream(self, d: Dialect) -> str:
        """Remove the oldest items of a job beyond a number and a size.

        The sizes are in a column of their own, so that no value is read for it.
        """
        counted = f"""SELECT position, row_number() OVER newest AS number,
                    sum(size) OVER newest AS bytes
                FROM {d.stream} WHERE job_id = :job::uuid
                WINDOW newest AS (ORDER BY position DESC)"""
        return f"""DELETE FROM {d.stream} WHERE job_id = :job::uuid
              AND position <= (SELECT max(position) FROM ({counted}) AS counted
                WHERE number > :kept::int OR bytes > :bytes::bigint)"""

    @prepared(JOB)
    def forget_stream(self, d: Dialect) -> str:
        """Remove the streams of deleted jobs."""
        return f"DELETE FROM {d.stream} WHERE {of_jobs(d)}"

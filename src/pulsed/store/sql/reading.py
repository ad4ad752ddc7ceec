"""Jobs by id, and the clock."""

from __future__ import annotations

from pulsed.store.sql.columns import JOB_COLUMNS
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import FAILURE_COLUMNS, JOB
from pulsed.store.sql.prepared import StatementGroup, prepared


class ReadStatements(StatementGroup):
    """Jobs by id, and their failures; lists are in ``sql/search.py``."""

    @prepared(JOB)
    def get(self, d: Dialect) -> str:
        """Read jobs."""
        return f"""SELECT {JOB_COLUMNS} FROM {self.jobs}, {d.rows_of(JOB)}
            WHERE {self.this_job}"""

    @prepared(JOB)
    def places(self, d: Dialect) -> str:
        """Read the columns for access checks, without the payload, which may have megabytes."""
        return f"""SELECT j.id, j.topic, j.queue, j.parent_id
            FROM {self.jobs}, {d.rows_of(JOB)} WHERE {self.this_job}"""

    @prepared()
    def read_failures(self, d: Dialect) -> str:
        """Read a page of a job's failed attempts, oldest first."""
        return f"""SELECT {FAILURE_COLUMNS} FROM {d.failures} WHERE job_id = :job::uuid
              AND lease_token > :after::bigint
            ORDER BY lease_token LIMIT :most::int"""

    @prepared()
    def read_last_failures(self, d: Dialect) -> str:
        """Read a page of a job's failed attempts, newest first."""
        return f"""SELECT {FAILURE_COLUMNS} FROM {d.failures} WHERE job_id = :job::uuid
              AND lease_token > :after::bigint AND lease_token < :before::bigint
            ORDER BY lease_token DESC LIMIT :most::int"""

    @prepared()
    def read_clock(self, d: Dialect) -> str:
        """Read the instant that leases are granted from."""
        return f"SELECT {d.clock}"

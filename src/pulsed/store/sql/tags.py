"""The tags of jobs, where jobs are found by them."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB, of_jobs
from pulsed.store.sql.prepared import StatementGroup, prepared

TAG = "job_id uuid, its_tag text"


class TagStatements(StatementGroup):
    """Tags: written with a job that has some, removed with it."""

    @prepared(TAG)
    def insert_tags(self, d: Dialect) -> str:
        """Write the tags of new jobs, or of one that is submitted again."""
        return f"""INSERT INTO {d.tags} (job_id, tag) SELECT r.job_id, r.its_tag
            FROM {d.rows_of(TAG)} WHERE true ON CONFLICT DO NOTHING"""

    @prepared(JOB)
    def forget_tags(self, d: Dialect) -> str:
        """Remove the tags of deleted jobs, or before others are written."""
        return f"DELETE FROM {d.tags} WHERE {of_jobs(d)}"

"""Jobs that were not started in time: which these are, and their end."""

from __future__ import annotations

from pulsed.model.outcome import EXPIRED, EXPIRED_ERROR
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import ENDED_COLUMNS, JOB, NOT_CLAIMABLE
from pulsed.store.sql.keys import released_at_end
from pulsed.store.sql.prepared import StatementGroup, prepared


class ExpiryStatements(StatementGroup):
    """The end of jobs that have expired. That a claim leaves them is in ``claiming.due``."""

    @prepared()
    def pick_expired(self, d: Dialect) -> str:
        """Read jobs that have expired, by the index of jobs that may; locked rows are left."""
        return f"""SELECT id FROM {d.jobs}
            WHERE expires_at <= {d.now} AND started_at IS NULL AND completed_at IS NULL
            ORDER BY expires_at LIMIT :most::int {d.skip_locked}"""

    @prepared(JOB)
    def expire(self, d: Dialect) -> str:
        """End jobs that have expired; one that has started meanwhile goes on.

        The conditions are worded so that no planner scans an index for them, once for each job.
        """
        return f"""UPDATE {self.jobs} SET status = 'CANCELLED', completed_at = {d.now},
                last_outcome = '{EXPIRED}', last_error = '{EXPIRED_ERROR}',
                key_held = {released_at_end("1 = 1")}, updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND j.status NOT IN {NOT_CLAIMABLE} AND j.started_at IS NULL
              AND coalesce(j.expires_at, {d.forever}) <= {d.now}
            RETURNING {ENDED_COLUMNS}, topic, queue, expires_at"""

"""The checkpoints of workflows."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB, of_jobs
from pulsed.store.sql.prepared import StatementGroup, prepared

CHECKPOINT_COLUMNS = """name, nth, seq, kind, state, input_hash, value::text, error, tries, until,
    started_at, ended_at"""

IN_ORDER = "seq, kind, name, nth"

CHECKPOINT = """job_id uuid, token bigint, worker uuid, name text, nth int, seq int, kind text,
    state text, input_hash text, value text, error text, tries int, took float8"""

_ONE_CHECKPOINT = "job_id = :job::uuid AND name = :name::text AND nth = :nth::int"


class CheckpointStatements(StatementGroup):
    """The results of a job's steps: written, read, and deleted for a replay."""

    @prepared()
    def read_checkpoints(self, d: Dialect) -> str:
        """Read all checkpoints of a job."""
        return f"""SELECT {CHECKPOINT_COLUMNS} FROM {d.checkpoints} WHERE job_id = :job::uuid
            ORDER BY {IN_ORDER}"""

    @prepared()
    def read_some_checkpoints(self, d: Dialect) -> str:
        """Read a page of a job's checkpoints.

        The inner query picks the page without the values, which may be large: only the page's own
        are read. A subquery reads them and not a join, which a planner that expects short histories
        would look up by the job alone.
        """
        value = f"""(SELECT s.value FROM {d.checkpoints} AS s
                WHERE s.job_id = page.job_id AND s.name = page.name AND s.nth = page.nth)"""
        return f"""SELECT {CHECKPOINT_COLUMNS.replace("value", value)}
            FROM (SELECT job_id, name, nth, seq, kind, state, input_hash, error, tries, until,
                started_at, ended_at FROM {d.checkpoints} WHERE job_id = :job::uuid
                ORDER BY {IN_ORDER} LIMIT :most::int OFFSET :skip::int) AS page
            ORDER BY {IN_ORDER}"""

    @prepared()
    def read_checkpoint(self, d: Dialect) -> str:
        """Read one checkpoint, and whether its deadline has passed."""
        return f"""SELECT {CHECKPOINT_COLUMNS}, coalesce(until <= {d.now}, {d.false})
            FROM {d.checkpoints}
            WHERE {_ONE_CHECKPOINT}"""

    @prepared()
    def read_generation(self, d: Dialect) -> str:
        """Read how often a job was replayed from its beginning."""
        return f"SELECT coalesce(generation, 0) FROM {d.jobs} WHERE id = :job::uuid"

    @prepared(CHECKPOINT, counted=True)
    def record(self, d: Dialect) -> str:
        """Write the results of steps, fenced by their leases. Decided checkpoints do not change."""
        return f"""INSERT INTO {d.checkpoints} AS s (job_id, name, nth, seq, kind, state,
                input_hash, value, error, tries, started_at, ended_at, lease_token)
            SELECT r.job_id, r.name, r.nth, r.seq, r.kind, r.state, r.input_hash, r.value::json,
                r.error, r.tries, {d.now} - {d.seconds("r.took")}, {d.now}, r.token
            FROM {d.rows_of(CHECKPOINT, lock="held")} WHERE true
            ON CONFLICT (job_id, name, nth) DO UPDATE SET state = excluded.state,
                value = excluded.value, error = excluded.error, tries = excluded.tries,
                ended_at = excluded.ended_at, lease_token = excluded.lease_token
            WHERE s.state = 'OPEN'"""

    @prepared()
    def recorded(self, d: Dialect) -> str:
        """Read the lease token of a decided checkpoint, to find an unacknowledged write."""
        return f"""SELECT lease_token FROM {d.checkpoints}
            WHERE {_ONE_CHECKPOINT}
              AND state <> 'OPEN'"""

    @prepared(JOB)
    def forget_steps(self, d: Dialect) -> str:
        """Remove the checkpoints of jobs."""
        return f"DELETE FROM {d.checkpoints} WHERE {of_jobs(d)}"

    @prepared(JOB)
    def forget_failed_steps(self, d: Dialect) -> str:
        """Remove the failed steps of jobs, for a replay."""
        return f"""DELETE FROM {d.checkpoints} AS s
            WHERE {_failed(d)} AND s.kind <> 'FAN_OUT'"""

    @prepared(JOB)
    def end_sleeps(self, d: Dialect) -> str:
        """Let the open sleeps of jobs end now: a run that comes early would sleep on."""
        return f"""UPDATE {d.checkpoints} AS s SET until = {d.now}
            WHERE {of_jobs(d)} AND s.kind = 'SLEEP' AND s.state = 'OPEN' AND s.until > {d.now}"""

    @prepared(JOB)
    def reopen_fan_outs(self, d: Dialect) -> str:
        """Undo the decision on failed fan-outs, for a replay."""
        return f"""UPDATE {d.checkpoints} AS s SET state = 'OPEN', value = NULL, error = NULL,
                until = NULL, ended_at = NULL
            WHERE {_failed(d)} AND s.kind = 'FAN_OUT'"""


def _failed(d: Dialect) -> str:
    """Return whether a checkpoint ``s`` failed, and its job with it.

    A failure that the handler caught and continued from is part of its path: with another result
    now, the steps after it would not match the stored ones.
    """
    return f"""{of_jobs(d)} AND s.state IN ('FAILED', 'TIMED_OUT')
              AND NOT EXISTS (SELECT 1 FROM {d.checkpoints} AS later
                WHERE {d.same_id("later.job_id", "s.job_id")} AND later.kind <> 'VERSION'
                  AND later.seq > s.seq AND later.started_at >= s.ended_at)"""

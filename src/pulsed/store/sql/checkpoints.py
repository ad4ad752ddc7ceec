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
    """What a job's steps came to: written, read, and forgotten when it is replayed."""

    @prepared()
    def read_checkpoints(self, d: Dialect) -> str:
        """Read a job's history."""
        return f"""SELECT {CHECKPOINT_COLUMNS} FROM {d.checkpoints} WHERE job_id = :job::uuid
            ORDER BY {IN_ORDER}"""

    @prepared()
    def read_some_checkpoints(self, d: Dialect) -> str:
        """Read a page of it.

        The page is chosen by what is small: of the values, which may be large, only its own are
        read. Not by a join: a planner that believes in short histories looks up by the job alone.
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
        """Read one checkpoint, and whether its time is over."""
        return f"""SELECT {CHECKPOINT_COLUMNS}, coalesce(until <= {d.now}, {d.false})
            FROM {d.checkpoints}
            WHERE {_ONE_CHECKPOINT}"""

    @prepared()
    def read_generation(self, d: Dialect) -> str:
        """Read how often a job was replayed from its beginning."""
        return f"SELECT coalesce(generation, 0) FROM {d.jobs} WHERE id = :job::uuid"

    @prepared(CHECKPOINT, counted=True)
    def record(self, d: Dialect) -> str:
        """Write what steps came to, under the leases of their runs. What is decided stays so."""
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
        """Read what a try of the same write has left, if its answer was lost on the way."""
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
    def reopen_fan_outs(self, d: Dialect) -> str:
        """Undo the decision on failed fan-outs, for a replay."""
        return f"""UPDATE {d.checkpoints} AS s SET state = 'OPEN', value = NULL, error = NULL,
                until = NULL, ended_at = NULL
            WHERE {_failed(d)} AND s.kind = 'FAN_OUT'"""


def _failed(d: Dialect) -> str:
    """Return whether a checkpoint ``s`` failed, and its job with it.

    A failure that the code has caught, and gone on from, is a part of its way: if it came out
    otherwise now, the steps after it would not be those that are stored.
    """
    return f"""{of_jobs(d)} AND s.state IN ('FAILED', 'TIMED_OUT')
              AND NOT EXISTS (SELECT 1 FROM {d.checkpoints} AS later
                WHERE {d.same_id("later.job_id", "s.job_id")} AND later.kind <> 'VERSION'
                  AND later.seq > s.seq AND later.started_at >= s.ended_at)"""

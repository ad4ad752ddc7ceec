"""What operators do to jobs."""

from __future__ import annotations

from pulsed.model.lifecycle import DELETABLE, REPLAYABLE
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import (
    ENDED_COLUMNS,
    IS_CLAIMABLE,
    JOB,
    has_living_children,
    has_living_parent,
    words,
)
from pulsed.store.sql.keys import TAKES_KEY, released_at_end
from pulsed.store.sql.prepared import StatementGroup, prepared

WAITS_FOR_TIME = """(j.status IN ('PENDING', 'RETRYING')
                OR (j.status = 'WAITING' AND j.wait_kind = 'SLEEP'))"""
"""The others wait for something that may still come, and until then their time is a deadline."""


class OperatorStatements(StatementGroup):
    """Cancel, retry, run now, delete, and the status of jobs afterwards."""

    @prepared(JOB)
    def cancel(self, d: Dialect) -> str:
        """End jobs that are not running; ask running ones to stop, and let their runs decide."""
        return f"""UPDATE {self.jobs} SET
                status = CASE WHEN status = 'RUNNING' THEN 'RUNNING' ELSE 'CANCELLED' END,
                completed_at = CASE WHEN status = 'RUNNING' THEN NULL ELSE {d.now} END,
                key_held = {released_at_end("status <> 'RUNNING'")},
                cancel_requested = {d.true}, updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND (j.status = 'RUNNING' OR j.{IS_CLAIMABLE})
            RETURNING {ENDED_COLUMNS}"""

    @prepared(JOB)
    def replay(self, d: Dialect) -> str:
        """Send unsuccessful jobs back to PENDING. By the act's id a retry recognises its work.

        They no longer expire: an operator wants them to run.
        """
        return f"""UPDATE {self.jobs} SET
                status = 'PENDING', attempts = 0, next_run_at = {d.now}, completed_at = NULL,
                cancel_requested = {d.false}, progress = NULL, cascades = NULL,
                expires_at = NULL,
                generation = nullif(coalesce(generation, 0) + :fresh::int, 0),
                last_worker = :act::uuid, last_outcome = 'REPLAYED', updated_at = {d.now},
                key_held = CASE WHEN {TAKES_KEY} THEN {d.true} ELSE key_held END
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND j.status IN {words(REPLAYABLE)}
            RETURNING id, queue"""

    @prepared(JOB)
    def expedite(self, d: Dialect) -> str:
        """Make jobs due that wait for nothing but their time."""
        return f"""UPDATE {self.jobs} SET next_run_at = {d.now}, updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND {WAITS_FOR_TIME} AND j.next_run_at > {d.now}
            RETURNING id, queue"""

    @prepared(JOB)
    def change_jobs(self, d: Dialect) -> str:
        """Change when, where or how soon jobs start that have not.

        A job that is due moves to the end of those that are: claims do not scan what is before the
        point that they have reached. A WAITING job keeps its time, which is a deadline.
        """
        due = f"{d.greatest}({d.now}, coalesce(:at::timestamptz, j.next_run_at))"
        return f"""UPDATE {self.jobs} SET queue = coalesce(:queue::text, j.queue),
                priority = coalesce(:priority::int, j.priority),
                next_run_at = {due}, updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND (j.status IN ('PENDING', 'RETRYING')
                OR (j.status = 'WAITING' AND :at::timestamptz IS NULL))
            RETURNING id, queue"""

    @prepared(JOB)
    def dueness(self, d: Dialect) -> str:
        """Read the status of jobs, and whether they may start now."""
        return f"""SELECT j.id, j.status, j.{IS_CLAIMABLE} AND j.next_run_at <= {d.now}
            FROM {self.jobs}, {d.rows_of(JOB)} WHERE {self.this_job}"""

    @prepared(JOB)
    def edit_payload(self, d: Dialect) -> str:
        """Replace the payload of jobs that ended without success, before they are replayed.

        A worker computes the key of the limit again, which may follow from the payload.
        """
        return f"""UPDATE {self.jobs} SET
                payload = :payload::json, limit_key = NULL, updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND j.status IN {words(REPLAYABLE)}"""

    @prepared(JOB)
    def delete(self, d: Dialect) -> str:
        """Remove jobs: no child before its parent has ended, no parent before its children have."""
        return f"""DELETE FROM {d.jobs} AS j WHERE status IN {words(DELETABLE)}
              AND NOT {has_living_parent(d)} AND NOT {has_living_children(d)} AND
                {d.id_among("id", f"SELECT r.job_id FROM {d.rows_of(JOB, lock='wait')}")}
            RETURNING id, watched"""

    @prepared(JOB)
    def standing(self, d: Dialect) -> str:
        """Read the status of jobs after an act, and the id of the act that replayed them."""
        return f"""SELECT j.id, j.status, j.last_outcome, j.last_worker
            FROM {self.jobs}, {d.rows_of(JOB)} WHERE {self.this_job}"""

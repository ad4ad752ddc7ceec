"""The statements that end runs, all fenced by the current lease."""

from __future__ import annotations

from pulsed.model.lifecycle import SUSPECT_AFTER
from pulsed.store.sql.dialect import FENCE, HAS_WAITED, Dialect
from pulsed.store.sql.end_of_run import REPORTED, SUCCEEDED, end_of_run
from pulsed.store.sql.jobs import (
    ASKED_LEASE,
    ENDED_COLUMNS,
    FAILURE,
    FAILURE_COLUMNS,
    IS_CLAIMABLE,
    REPORT,
    SOON,
    SUCCESS,
    UNSUSPECTED,
)
from pulsed.store.sql.prepared import StatementGroup, prepared

ON_FAST_PATH = f"{FENCE} AND j.watched IS NULL AND NOT j.{HAS_WAITED} AND {UNSUSPECTED}"
"""The condition of the fast paths. They leave out a job that is watched; one that has waited, which
is locked after all others; and a suspect, whose end lets the next one run."""


class SettleStatements(StatementGroup):
    """The ends of runs; ``verbs/settle.py`` says which statement ends which.

    Nearly all runs succeed. Those have two fast paths: one for jobs without a parent, and one for
    children, which finds the parents to wake and is the engine's own. ``settle`` ends what these
    leave out.
    """

    @prepared(SUCCESS, counted=True)
    def settle_succeeded(self, d: Dialect) -> str:
        """End runs of one worker that succeeded, of jobs that have no parent."""
        return f"{self.success(d)} AND j.parent_id IS NULL"

    def success(self, d: Dialect) -> str:
        """Return the UPDATE that ends runs of one worker that succeeded."""
        return f"""UPDATE {self.jobs} SET {self.end_of_success(d)}
        FROM (SELECT r.*, :worker::uuid AS worker FROM {d.rows_of(SUCCESS, lock="order")}) AS r
        WHERE {self.this_job} AND {ON_FAST_PATH}"""

    def end_of_success(self, d: Dialect) -> str:
        """Return the state of a job after a run that succeeded."""
        return end_of_run(d, SUCCEEDED)

    @prepared(REPORT)
    def settle(self, d: Dialect) -> str:
        """End runs in any way."""
        return f"""UPDATE {self.jobs} SET {end_of_run(d, REPORTED)}
            FROM {d.rows_of(REPORT, lock="wait")} WHERE {self.held}
            RETURNING {ENDED_COLUMNS}, lease_token, attempts, started_at, last_worker,
                {due_again_in(d)}"""

    @prepared(REPORT)
    def settled_before(self, d: Dialect) -> str:
        """Read which of these reports an earlier try stored without being acknowledged."""
        return f"""SELECT {ASKED_LEASE}, j.status
            FROM {self.jobs}, {d.rows_of(REPORT)}
            WHERE {self.this_job} AND j.status <> 'RUNNING' AND j.lease_token = r.token
              AND j.last_worker = r.worker AND j.last_outcome = r.kind"""

    @prepared(FAILURE)
    def record_failures(self, d: Dialect) -> str:
        """Insert one row for each failed attempt; a success costs none."""
        return f"""INSERT INTO {d.failures} ({FAILURE_COLUMNS})
            SELECT r.job_id, r.token, r.n, r.worker, r.started, {d.now}, r.failure, r.trace
            FROM {d.rows_of(FAILURE)} WHERE true
            ON CONFLICT (job_id, lease_token) DO NOTHING"""


def due_again_in(d: Dialect) -> str:
    """Return the queue of a job whose run has ended, if it or the next suspect can run soon."""
    soon = f"{IS_CLAIMABLE} AND next_run_at <= {d.now} + {d.seconds(f'{SOON}')}"
    return f"CASE WHEN {soon} OR crashes >= {SUSPECT_AFTER} THEN queue END"

"""The watchdog's statements; ``verbs/ticks.py`` decides which expired leases to reap."""

from __future__ import annotations

from pulsed.model.outcome import INTERRUPTED, LEASE_ERROR, LEASE_EXPIRED
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.end_of_run import REPORTED, end_of_run
from pulsed.store.sql.jobs import ENDED_COLUMNS, UNSUSPECTED
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.settling import due_again_in

EXPIRY = "length_ms bigint, before timestamptz"

WORKER = "worker uuid"

TICK = "tick_id uuid"


class RecoveryStatements(StatementGroup):
    """Runs of silent workers, and the ticks of watchdogs. An engine adds the reap."""

    @prepared()
    def expired(self, d: Dialect) -> str:
        """Read the lengths of expired leases, and the latest expiry of each length."""
        return f"""SELECT lease_ms, max(lease_until) FROM {d.jobs}
            WHERE status = 'RUNNING' AND lease_until < {d.now} GROUP BY lease_ms"""

    def reaping(self, d: Dialect, which: str = "") -> str:
        """Return the UPDATE that ends runs whose leases ended before an instant for their length.

        It stands in for the failure report of a dead worker. The second check of the lease is
        written so that no planner uses the lease index for it, once for each job.
        """
        return f"""UPDATE {self.jobs} SET {end_of_run(d, REPORTED)}
            FROM ({_silent_runs(d, which)}) AS r
            WHERE {self.this_job} AND j.status = 'RUNNING'
              AND coalesce(j.lease_until, {d.now}) < r.before
            RETURNING {ENDED_COLUMNS}, lease_token, attempts, started_at, last_worker, topic,
                queue, last_outcome, {due_again_in(d)}"""

    @prepared(WORKER)
    def note_shared(self, d: Dialect) -> str:
        """Mark the other running jobs of workers that had a run reaped.

        A locked row is skipped: it is being settled or extended, so its worker is alive.
        """
        others = f"""SELECT id FROM {d.jobs}
            WHERE lease_until IS NOT NULL AND status = 'RUNNING'
              AND coalesce(shared_lease, 0) <> lease_token
              AND (locked_by IN (SELECT r.worker FROM {d.rows_of(WORKER)})) IS TRUE
            {d.skip_locked}"""
        return f"""UPDATE {d.jobs} SET shared_lease = lease_token
            WHERE {d.id_among("id", others)} AND status = 'RUNNING'"""

    @prepared()
    def read_ticks(self, d: Dialect) -> str:
        """Read the ticks of all watchdogs, and the times of the transaction and of this read."""
        return f"""SELECT {d.now}, {d.clock}, t.id, t.previous, t.at
            FROM (SELECT 1) AS once LEFT JOIN {d.ticks} AS t ON {d.true}"""

    @prepared()
    def add_tick(self, d: Dialect) -> str:
        """Insert a tick."""
        return f"""INSERT INTO {d.ticks} (id, previous, at)
            VALUES (:id::uuid, :previous::timestamptz, :at::timestamptz)"""

    @prepared(TICK)
    def remove_ticks(self, d: Dialect) -> str:
        """Remove stale ticks, except locked ones: another watchdog may be frozen removing them."""
        stale = f"SELECT r.tick_id FROM {d.rows_of(TICK, lock='skip', table=d.ticks)}"
        return f"DELETE FROM {d.ticks} WHERE {d.id_among('id', stale)}"

    @prepared()
    def shorten_leases(self, d: Dialect) -> str:
        """Cap leases at one whole lease from now, after the clock was set back.

        A locked row is skipped: it is being settled or extended.
        """
        whole_lease = f"{d.now} + {d.milliseconds('lease_ms')}"
        too_long = f"""SELECT id FROM {d.jobs}
            WHERE status = 'RUNNING' AND lease_until > {whole_lease} {d.skip_locked}"""
        return f"""UPDATE {d.jobs} SET lease_until = {whole_lease}
            WHERE {d.id_among("id", too_long)} AND status = 'RUNNING'"""


def has_expired(d: Dialect) -> str:
    """Return whether the lease of the job ``e`` ended before the instant for its length."""
    return f"""e.status = 'RUNNING' AND e.lease_until < {d.now}
                      AND e.lease_ms = r.length_ms AND e.lease_until < r.before"""


def _silent_runs(d: Dialect, which: str) -> str:
    """Return the runs to reap, as rows of reports.

    Runs of a worker that held several leases were interrupted and have not failed; see
    ``lifecycle.ending_of_silence``.
    """
    interrupted = f"""{UNSUSPECTED} AND (shared_lease = lease_token
            OR (locked_by IN (SELECT s.locked_by FROM shared AS s)) IS TRUE)"""
    return f"""WITH expired AS MATERIALIZED (
                    SELECT e.id AS job_id, e.locked_by, e.lease_token, e.shared_lease, e.crashes,
                        r.before
                    FROM {d.jobs} AS e, {d.rows_of(EXPIRY)}
                    WHERE {has_expired(d)} {which}
                    ORDER BY e.lease_until LIMIT :most::int {d.skip_locked_of("e")}),
                shared AS MATERIALIZED (SELECT locked_by FROM {d.jobs}
                    WHERE lease_until IS NOT NULL AND status = 'RUNNING'
                      AND (locked_by IN (SELECT e.locked_by FROM expired AS e)) IS TRUE
                    GROUP BY locked_by HAVING count(*) > 1)
                SELECT job_id, before, NULL::text AS outcome_result, '{LEASE_ERROR}' AS error,
                    NULL::float8 AS delay, {d.false} AS final,
                    CASE WHEN {interrupted} THEN '{INTERRUPTED}' ELSE '{LEASE_EXPIRED}' END AS kind
                FROM expired"""

"""Statements that a worker runs under its leases."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import ASKED_LEASE, LEASE
from pulsed.store.sql.prepared import StatementGroup, prepared


class LeaseStatements(StatementGroup):
    """Which leases a worker holds, and progress under them. An engine adds the heartbeat."""

    def extension(self, d: Dialect) -> str:
        """Return the UPDATE that extends those leases that are still held.

        A row locked by another session is skipped; see ``still_held``.
        """
        return f"""UPDATE {self.jobs}
            SET lease_until = {d.clock} + {d.milliseconds("lease_ms")}
            FROM {d.rows_of(LEASE, lock="skip")} WHERE {self.held}"""

    @prepared(LEASE)
    def still_held(self, d: Dialect) -> str:
        """Read which of these leases are held, to tell a skipped row from a lost lease."""
        return f"""SELECT {ASKED_LEASE}, j.cancel_requested
            FROM {self.jobs}, {d.rows_of(LEASE)} WHERE {self.held}"""

    @prepared()
    def held_by(self, d: Dialect) -> str:
        """Read a worker's leases as stored. The lease index has running rows only."""
        return f"""SELECT id, lease_token FROM {d.jobs}
            WHERE lease_until IS NOT NULL AND status = 'RUNNING' AND locked_by = :worker::uuid"""

    @prepared()
    def asked_to_stop(self, d: Dialect) -> str:
        """Read a worker's leases on jobs that were asked to stop, which have their own index."""
        return f"""SELECT id, lease_token FROM {d.jobs} {d.by_cancelling}
            WHERE cancel_requested = {d.true} AND locked_by = :worker::uuid
              AND status = 'RUNNING'"""

    @prepared(LEASE)
    def set_progress(self, d: Dialect) -> str:
        """Store a run's progress."""
        return f"""UPDATE {self.jobs} SET progress = :progress::json,
                updated_at = {d.now}
            FROM {d.rows_of(LEASE, lock="wait")} WHERE {self.held} RETURNING id"""

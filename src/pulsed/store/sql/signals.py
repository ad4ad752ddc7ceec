"""Signals to jobs."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB, of_jobs
from pulsed.store.sql.prepared import StatementGroup, prepared

# By its job as well: the index of a job's signals has ids too, but last.
_THIS_SIGNAL = "id = :id::uuid AND job_id = :job::uuid AND name = :name::text"


class SignalStatements(StatementGroup):
    """Signals: stored, and consumed in the order in which they were sent."""

    @prepared()
    def lock_status(self, d: Dialect) -> str:
        """Lock the job that a signal is for, and read its status."""
        return f"SELECT status FROM {d.jobs} WHERE id = :job::uuid {d.for_update}"

    @prepared()
    def send(self, d: Dialect) -> str:
        """Store a signal, unless one of the same id exists."""
        return f"""INSERT INTO {d.signals} (id, job_id, name, payload, sent_at)
            VALUES (:id::uuid, :job::uuid, :name::text, :payload::json, {d.clock})
            ON CONFLICT DO NOTHING"""

    @prepared()
    def sent(self, d: Dialect) -> str:
        """Read whether a signal was stored."""
        return f"SELECT 1 FROM {d.signals} WHERE {_THIS_SIGNAL}"

    @prepared()
    def oldest_signal(self, d: Dialect) -> str:
        """Read the next signal of a name."""
        return f"""SELECT id, payload::text FROM {d.signals}
            WHERE job_id = :job::uuid AND name = :name::text AND consumed_at IS NULL
            ORDER BY sent_at, id LIMIT 1"""

    @prepared()
    def is_past(self, d: Dialect) -> str:
        """Read whether an instant has passed."""
        return f"SELECT :instant::timestamptz <= {d.now}"

    @prepared()
    def consume(self, d: Dialect) -> str:
        """Consume a signal, once."""
        return f"""UPDATE {d.signals} SET consumed_at = {d.now}
            WHERE {_THIS_SIGNAL} AND consumed_at IS NULL"""

    @prepared(JOB)
    def forget_signals(self, d: Dialect) -> str:
        """Remove the signals of deleted jobs."""
        return f"DELETE FROM {d.signals} WHERE {of_jobs(d)}"

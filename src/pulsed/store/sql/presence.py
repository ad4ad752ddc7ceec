"""Presence rows, which workers refresh for as long as they live."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import WORKER, WORKER_COLUMNS
from pulsed.store.sql.prepared import StatementGroup, prepared


class PresenceStatements(StatementGroup):
    """Presence rows of workers: written, removed and read."""

    @prepared()
    def announce(self, d: Dialect) -> str:
        """Write a worker's row, or refresh it; returns what was asked of the worker."""
        return f"""INSERT INTO {d.workers} (id, host, pid, queues, topics, slots, running, stuck,
                state, version, started_at, last_beat)
            VALUES (:worker::uuid, :host::text, :pid::int, :queues::json, :topics::json,
                :slots::int, :running::int, :stuck::int, :state::text, :version::text,
                {d.now}, {d.now})
            ON CONFLICT (id) DO UPDATE SET running = excluded.running, stuck = excluded.stuck,
                state = excluded.state, last_beat = excluded.last_beat
            RETURNING request"""

    @prepared(WORKER)
    def ask(self, d: Dialect) -> str:
        """Ask workers to drain or to stop. One that was asked to stop still is to stop."""
        return f"""UPDATE {d.workers} AS w SET
                request = CASE WHEN w.request = 'stop' THEN 'stop' ELSE :request::text END
            FROM {d.rows_of(WORKER)} WHERE {d.same_id("w.id", "r.worker_id")}
            RETURNING {WORKER_COLUMNS}"""

    @prepared()
    def retire(self, d: Dialect) -> str:
        """Remove the row of a worker that shuts down."""
        return f"DELETE FROM {d.workers} WHERE id = :worker::uuid"

    @prepared()
    def forget_workers(self, d: Dialect) -> str:
        """Remove rows that have not been refreshed for ``age`` seconds."""
        silent = f"""SELECT id FROM {d.workers}
            WHERE last_beat < {d.now} - {d.seconds(":age::float8")} {d.skip_locked}"""
        return f"DELETE FROM {d.workers} WHERE {d.id_among('id', silent)}"

    @prepared()
    def read_workers(self, d: Dialect) -> str:
        """Read all workers."""
        return f"SELECT {WORKER_COLUMNS} FROM {d.workers} ORDER BY started_at"

    @prepared()
    def read_worker(self, d: Dialect) -> str:
        """Read one worker."""
        return f"SELECT {WORKER_COLUMNS} FROM {d.workers} WHERE id = :worker::uuid"

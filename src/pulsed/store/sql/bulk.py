"""Bulk operations: rows that say what is to be done, and how far it is."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB
from pulsed.store.sql.prepared import StatementGroup, prepared

BULK_COLUMNS = """id, kind, arguments, filter, actor, role, claimed, state, cursor, done, skipped,
    total, is_at_least, started_at, updated_at, ended_at, error"""

SKIP_COLUMNS = "job_id, status, reason, holder"

SKIP = "job_id uuid, its_status text, its_reason text, its_holder uuid"

HOLD = 10.0
"""Seconds for which an operation is left to the process that performed its last batch."""


class BulkStatements(StatementGroup):
    """Operations, and the jobs that they skipped."""

    @prepared()
    def insert_bulk(self, d: Dialect) -> str:
        """Store an operation, unless an unacknowledged try has stored it."""
        return f"""INSERT INTO {d.bulk} (id, kind, arguments, filter, actor, role, claimed, state,
                cursor, total, is_at_least, started_at, updated_at)
            VALUES (:id::uuid, :kind::text, :arguments::text, :filter::text, :actor::text,
                :role::text, :claimed::text, 'RUNNING', :cursor::uuid, :total::bigint,
                :is_at_least::bool, {d.now}, {d.now})
            ON CONFLICT (id) DO NOTHING"""

    @prepared()
    def read_bulk(self, d: Dialect) -> str:
        """Read an operation."""
        return f"SELECT {BULK_COLUMNS} FROM {d.bulk} WHERE id = :id::uuid"

    @prepared()
    def newest_bulk(self, d: Dialect) -> str:
        """Read the latest operations."""
        return f"""SELECT {BULK_COLUMNS} FROM {d.bulk}
            ORDER BY started_at DESC, id DESC LIMIT :most::int"""

    @prepared()
    def count_running_bulk(self, d: Dialect) -> str:
        """Count the operations that are in progress."""
        return f"SELECT count(*) FROM {d.bulk} WHERE state = 'RUNNING'"

    @prepared()
    def to_perform(self, d: Dialect) -> str:
        """Read operations that this process may perform, the longest untouched first.

        A hold that ends too far in the future was taken before the clock was set back.
        """
        return f"""SELECT {BULK_COLUMNS} FROM {d.bulk}
            WHERE state = 'RUNNING' AND (held_until IS NULL OR held_by = :performer::uuid
                OR held_until <= {d.now} OR held_until > {_end_of_hold(d)})
            ORDER BY updated_at LIMIT :most::int"""

    @prepared()
    def move_cursor(self, d: Dialect) -> str:
        """Take the next batch: whoever moves the cursor acts on the jobs that it passed."""
        return f"""UPDATE {d.bulk} SET cursor = :next::uuid, held_by = :performer::uuid,
                held_until = {_end_of_hold(d)}, updated_at = {d.now}
            WHERE id = :id::uuid AND state = 'RUNNING' AND cursor = :cursor::uuid
            RETURNING skipped"""

    @prepared()
    def count_batch(self, d: Dialect) -> str:
        """Add what a batch did, and end the operation after its last one."""
        return f"""UPDATE {d.bulk} SET done = done + :done::bigint,
                skipped = skipped + :skipped::bigint, state = :state::text,
                ended_at = CASE WHEN :state::text <> 'RUNNING' THEN {d.now} END
            WHERE id = :id::uuid RETURNING {BULK_COLUMNS}"""

    @prepared()
    def end_bulk(self, d: Dialect) -> str:
        """End an operation that is in progress."""
        return f"""UPDATE {d.bulk} SET state = :state::text, error = :error::text,
                ended_at = {d.now}, updated_at = {d.now}
            WHERE id = :id::uuid AND state = 'RUNNING' RETURNING {BULK_COLUMNS}"""

    @prepared(SKIP)
    def insert_skips(self, d: Dialect) -> str:
        """Remember jobs that an operation left as they are."""
        return f"""INSERT INTO {d.bulk_skips} (bulk_id, job_id, status, reason, holder)
            SELECT :id::uuid, r.job_id, r.its_status, r.its_reason, r.its_holder
            FROM {d.rows_of(SKIP)} WHERE true ON CONFLICT DO NOTHING"""

    @prepared()
    def read_skips(self, d: Dialect) -> str:
        """Read the jobs that an operation left as they are."""
        return f"""SELECT {SKIP_COLUMNS} FROM {d.bulk_skips} WHERE bulk_id = :id::uuid
            ORDER BY job_id DESC LIMIT :most::int"""

    @prepared()
    def add_to_audit(self, d: Dialect) -> str:
        """Add what a batch did to the operation's entry in the audit log."""
        return f"UPDATE {d.audit} SET affected = affected + :done::int WHERE id = :id::uuid"

    @prepared()
    def trim_bulk(self, d: Dialect) -> str:
        """Remove a batch of operations that ended too long ago, or are too many."""
        cutoff = f"{d.now} - {d.seconds(':age::float8')}"
        newest = f"SELECT started_at FROM {d.bulk} ORDER BY started_at DESC"
        return f"""DELETE FROM {d.bulk} WHERE id IN (SELECT id FROM {d.bulk}
                WHERE started_at < {d.greatest}({cutoff}, coalesce(
                    ({newest} LIMIT 1 OFFSET :kept::int), {cutoff}))
                  AND state <> 'RUNNING' ORDER BY started_at LIMIT :most::int)
            RETURNING id"""

    @prepared(JOB)
    def forget_skips(self, d: Dialect) -> str:
        """Remove the skipped jobs of removed operations."""
        among = d.id_among("bulk_id", f"SELECT r.job_id FROM {d.rows_of(JOB)}")
        return f"DELETE FROM {d.bulk_skips} WHERE {among}"


def _end_of_hold(d: Dialect) -> str:
    return f"{d.now} + {d.seconds(f'{HOLD}')}"

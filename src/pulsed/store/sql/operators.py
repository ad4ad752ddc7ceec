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
from pulsed.store.sql.prepared import StatementGroup, prepared


class OperatorStatements(StatementGroup):
    """Cancel, retry, delete, and how things stand after it."""

    @prepared(JOB)
    def cancel(self, d: Dialect) -> str:
        """End a waiting job; ask a running one, which decides when its run ends."""
        return f"""UPDATE {self.jobs} SET
                status = CASE WHEN status = 'RUNNING' THEN 'RUNNING' ELSE 'CANCELLED' END,
                completed_at = CASE WHEN status = 'RUNNING' THEN NULL ELSE {d.now} END,
                cancel_requested = {d.true}, updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND (j.status = 'RUNNING' OR j.{IS_CLAIMABLE})
            RETURNING {ENDED_COLUMNS}"""

    @prepared(JOB)
    def replay(self, d: Dialect) -> str:
        """Give jobs a second chance. The act's id makes a repeated call recognisable."""
        return f"""UPDATE {self.jobs} SET
                status = 'PENDING', attempts = 0, next_run_at = {d.now}, completed_at = NULL,
                cancel_requested = {d.false}, progress = NULL, cascades = NULL,
                generation = nullif(coalesce(generation, 0) + :fresh::int, 0),
                last_worker = :act::uuid, last_outcome = 'REPLAYED', updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND j.status IN {words(REPLAYABLE)}
            RETURNING id, queue"""

    @prepared(JOB)
    def delete(self, d: Dialect) -> str:
        """Remove jobs: a child with its parent's leave only, a parent not before its children."""
        return f"""DELETE FROM {d.jobs} AS j WHERE status IN {words(DELETABLE)}
              AND NOT {has_living_parent(d)} AND NOT {has_living_children(d)} AND
                {d.id_among("id", f"SELECT r.job_id FROM {d.rows_of(JOB, lock='wait')}")}
            RETURNING id, watched"""

    @prepared(JOB)
    def standing(self, d: Dialect) -> str:
        """Read where jobs stand after an act, and whose replay made them so."""
        return f"""SELECT j.id, j.status, j.last_outcome, j.last_worker
            FROM {self.jobs}, {d.rows_of(JOB)} WHERE {self.this_job}"""

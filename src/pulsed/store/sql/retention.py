"""The removal of jobs that ended long ago."""

from __future__ import annotations

from pulsed.model.lifecycle import TERMINAL
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB, is_needed, of_jobs, words
from pulsed.store.sql.prepared import StatementGroup, prepared


class RetentionStatements(StatementGroup):
    """Pruning: which process has the turn, and what it removes."""

    @prepared()
    def prune(self, d: Dialect) -> str:
        """Remove finished jobs of one status, the longest finished first.

        A row that another session has locked is skipped, so a prune never waits for a lock. The
        DELETE checks each picked job again: a dead letter may have been replayed in between. As in
        a reap, that second check is written so that no planner uses the index of finished jobs for
        it, once for each job. Whether a job is needed is not checked again: no job begins to need
        one that has ended. ``since`` is where the last batch ended: while an old snapshot is held,
        the index still has the entries of removed jobs, and a scan from its beginning would visit
        them all.
        """
        picked = f"""SELECT id FROM {d.jobs} AS j
                WHERE status = :status::text AND completed_at < {_cutoff(d)}
                  AND completed_at >= :since::timestamptz AND {_unneeded(d)}
                ORDER BY completed_at LIMIT :most::int {d.skip_locked}"""
        return f"""DELETE FROM {d.jobs} AS j WHERE {d.id_among("id", picked)}
              AND status = :status::text AND status IN {words(TERMINAL)}
              AND coalesce(completed_at, {d.now}) < {_cutoff(d)}
            RETURNING id, completed_at"""

    @prepared()
    def prunable(self, d: Dialect) -> str:
        """Count what a prune would remove, up to a bound."""
        return f"""SELECT count(*) FROM (SELECT 1 FROM {d.jobs} AS j
                WHERE status = :status::text AND completed_at < {_cutoff(d)} AND {_unneeded(d)}
                LIMIT :most::int) AS found"""

    @prepared(JOB)
    def delete_failures(self, d: Dialect) -> str:
        """Remove the failed attempts of deleted jobs."""
        return f"DELETE FROM {d.failures} WHERE {of_jobs(d)}"

    @prepared()
    def take_turn(self, d: Dialect) -> str:
        """Take the turn to prune: one process at a time, or a hundred would all delete at once.

        The turn expires, so that it is not lost with a process that dies. One that expires too far
        in the future was taken before the clock was set back, and does not count.
        """
        end_of_turn = f"{d.now} + {d.seconds(':length::float8')}"
        return f"""UPDATE {d.meta} SET prune_after = {end_of_turn}
            FROM (SELECT 1 FROM {d.meta} {d.skip_locked}) AS unlocked
            WHERE prune_after IS NULL OR prune_after <= {d.now} OR prune_after > {end_of_turn}
            RETURNING 1"""


def _cutoff(d: Dialect) -> str:
    return f"{d.now} - {d.seconds(':age::float8')}"


def _unneeded(d: Dialect) -> str:
    """Return whether ``j`` is needed neither by a job nor for a cascade to its children."""
    return f"cascades IS NULL AND NOT {is_needed(d)}"

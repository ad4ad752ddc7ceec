"""Parents and children: locked together, and children cancelled with their parent."""

from __future__ import annotations

from pulsed.model.lifecycle import REPLAYABLE
from pulsed.store.sql.dialect import HAS_WAITED, Dialect
from pulsed.store.sql.jobs import IS_LIVING, JOB, LEASE, has_living_children, words
from pulsed.store.sql.prepared import StatementGroup, prepared

# Children to cancel when their parent ends: of a failed one, not those that outlive it.
CONCERNED = "AND (j.status = 'CANCELLED' OR c.outlives IS NULL)"

# …and that are not cancelled or asked to stop yet.
UNTOLD = f"{CONCERNED} AND NOT (c.status = 'RUNNING' AND c.cancel_requested)"


class FamilyStatements(StatementGroup):
    """Locks on families, and the cascade from a parent that ended without success."""

    @prepared(LEASE)
    def hold(self, d: Dialect) -> str:
        """Lock a run's job until the transaction ends; no row means that its lease is lost."""
        return f"SELECT r.job_id FROM {d.rows_of(LEASE, lock='held')}"

    @prepared(JOB)
    def lock(self, d: Dialect) -> str:
        """Lock jobs."""
        return f"SELECT r.job_id FROM {d.rows_of(JOB, lock='wait')}"

    @prepared(JOB)
    def lock_free(self, d: Dialect) -> str:
        """Lock those of these jobs that no other session has locked."""
        return f"SELECT r.job_id FROM {d.rows_of(JOB, lock='skip')}"

    @prepared(JOB)
    def lock_families(self, d: Dialect) -> str:
        """Lock jobs and their parents, in the order that HAS_WAITED describes."""
        return f"""SELECT k.id FROM (SELECT f.id, max(f.above) AS above FROM (
                    SELECT r.job_id AS id, 0 AS above FROM {d.rows_of(JOB)}
                    UNION ALL
                    SELECT j.parent_id, 1 FROM {d.rows_of(JOB)}, {self.jobs}
                    WHERE {self.this_job}) AS f GROUP BY f.id) AS f
            JOIN {d.jobs} AS k ON {d.same_id("k.id", "f.id")}
            ORDER BY f.above = 1 OR k.{HAS_WAITED}, k.id {d.for_update_of("k")}"""

    @prepared(JOB)
    def parents(self, d: Dialect) -> str:
        """Read the parents of jobs, each once."""
        return f"""SELECT DISTINCT j.parent_id FROM {self.jobs}, {d.rows_of(JOB)}
            WHERE {self.this_job}"""

    @prepared(JOB)
    def with_parents(self, d: Dialect) -> str:
        """Read jobs, each with its parent if that still exists."""
        return f"""SELECT j.id, (SELECT p.id FROM {d.jobs} AS p {d.by_id}
                WHERE {d.same_id("p.id", "j.parent_id")})
            FROM {self.jobs}, {d.rows_of(JOB)} WHERE {self.this_job}"""

    @prepared(JOB)
    def mark_cascades(self, d: Dialect) -> str:
        """Mark jobs that ended unsuccessfully and have children to cancel, for the next cascade."""
        return f"""UPDATE {self.jobs} SET cascades = {d.true} FROM {d.rows_of(JOB)}
            WHERE {self.this_job} AND {has_living_children(d, CONCERNED)} RETURNING id"""

    @prepared()
    def pick_cascades(self, d: Dialect) -> str:
        """Lock a batch of parents that have children to cancel."""
        return f"""SELECT id FROM {d.jobs} WHERE cascades IS NOT NULL
            ORDER BY id LIMIT :most::int {d.skip_locked}"""

    @prepared()
    def untold_children(self, d: Dialect) -> str:
        """Lock children of a parent that are still to be cancelled.

        A child locked by another session is being ended there: a later cascade finds it, or not.
        There is no ORDER BY id: a planner that knows large families would scan the whole table.
        """
        return f"""SELECT c.id FROM {d.jobs} AS c {d.by_family}
            JOIN {self.jobs} ON {d.same_id("j.id", "c.parent_id")}
            WHERE c.parent_id = :parent::uuid AND c.{IS_LIVING} {UNTOLD}
            LIMIT :most::int {d.skip_locked_of("c")}"""

    @prepared(JOB, counted=True)
    def unmark_cascades(self, d: Dialect) -> str:
        """Clear the mark of parents that have no child left to cancel."""
        return f"""UPDATE {self.jobs} SET cascades = NULL FROM {d.rows_of(JOB)}
            WHERE {self.this_job} AND NOT {has_living_children(d, UNTOLD)}"""

    @prepared(JOB)
    def unsuccessful_children(self, d: Dialect) -> str:
        """Read the children to replay with jobs.

        Those are of fan-outs that are not decided, and of fan-outs that had not reached their wait.
        """
        family = """s.name || '|' || s.nth
                || CASE WHEN j.generation > 0 THEN '|' || j.generation ELSE '' END"""
        generation = """CASE WHEN j.generation > 0 THEN c.parent_step LIKE '%|%|' || j.generation
                ELSE c.parent_step NOT LIKE '%|%|%' END"""
        return f"""SELECT c.id FROM {d.rows_of(JOB)}
            JOIN {self.jobs} ON {self.this_job}
            JOIN {d.jobs} AS c {d.by_family} ON {d.same_id("c.parent_id", "j.id")}
                AND c.status IN {words(REPLAYABLE)} AND {generation}
            WHERE NOT EXISTS (SELECT 1 FROM {d.checkpoints} AS s
                WHERE {d.same_id("s.job_id", "j.id")} AND s.kind = 'FAN_OUT' AND s.state <> 'OPEN'
                  AND c.parent_step = {family})"""

"""What the doctor and the check for unserved queues ask, each at a bounded cost."""

from __future__ import annotations

from pulsed.store.sql.claiming import levels
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.families import UNTOLD
from pulsed.store.sql.jobs import IS_CLAIMABLE, has_living_children
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.waiting import has_come, is_aimless


class CheckStatements(StatementGroup):
    """Who waits for a worker, and what must never be."""

    @prepared()
    def queues(self, d: Dialect) -> str:
        """Read the queues with claimable jobs, without visiting the rows between them."""
        next_queue = f"""SELECT queue FROM {d.jobs}
            WHERE {IS_CLAIMABLE} {{after}} ORDER BY queue LIMIT 1"""
        after = "AND queue > queues.queue"
        return f"""WITH RECURSIVE queues(queue) AS (
            SELECT * FROM ({next_queue.format(after="")}) AS first
            UNION ALL
            SELECT ({next_queue.format(after=after)}) FROM queues WHERE queue IS NOT NULL)
            SELECT queue FROM queues"""

    @prepared()
    def oldest_due(self, d: Dialect) -> str:
        """Read since when the oldest due job of a queue has been due: an entry a priority."""
        return f"""WITH RECURSIVE {levels(d)}
            SELECT min((SELECT next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND priority = levels.priority
                  AND next_run_at <= {d.now} ORDER BY next_run_at LIMIT 1))
            FROM levels WHERE priority IS NOT NULL"""

    @prepared()
    def backlog(self, d: Dialect) -> str:
        """Count what waits for a worker in one priority of a queue, and since when.

        Jobs that nobody takes stay at its head, so they are among those that are read.
        """
        return f"""SELECT topic, count(*), min(next_run_at)
            FROM (SELECT topic, next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND priority = :priority::int
                  AND next_run_at <= {d.now}
                ORDER BY next_run_at, id LIMIT :most::int) AS head
            GROUP BY topic"""

    @prepared()
    def audit_leases(self, d: Dialect) -> str:
        """Count what must never be among the leases, those that ended first before all others."""
        return f"""SELECT count(*) FILTER (WHERE status = 'RUNNING'),
                count(*) FILTER (WHERE (status = 'RUNNING') <> (locked_by IS NOT NULL)),
                count(*) FILTER (WHERE status = 'RUNNING' AND lease_until < {d.now}
                    - {d.milliseconds("lease_ms")} - {d.seconds(":slack::float8")}),
                max(lease_ms) FILTER (WHERE status = 'RUNNING')
            FROM (SELECT status, locked_by, lease_until, lease_ms FROM {d.jobs}
                WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most::int) AS leased"""

    @prepared()
    def audit_newest(self, d: Dialect) -> str:
        """Count what must never be among the newest jobs."""
        return f"""SELECT count(*) FILTER (WHERE status = 'RUNNING' AND lease_until IS NULL),
                count(*) FILTER (WHERE attempts > max_attempts)
            FROM (SELECT status, lease_until, attempts, max_attempts FROM {d.jobs} {d.by_id}
                ORDER BY id DESC LIMIT :most::int) AS newest"""

    @prepared()
    def audit_waits(self, d: Dialect) -> str:
        """Count the jobs of one priority that wait for nothing, or for what is there already.

        A waker commits with what it wakes for, so no snapshot has one that waits for what is there.
        One whose deadline has passed is due, whatever it waits for. Those without one come first,
        because nothing but a wake-up would ever let them go on.
        """
        return f"""SELECT count(*) FILTER (WHERE aimless),
                count(*) FILTER (WHERE NOT aimless AND come)
            FROM (SELECT {is_aimless(d)} AS aimless, {has_come(d)} AS come
                FROM (SELECT id, status, next_run_at, wait_kind, wait_key, wait_job, wait_enough,
                        wait_too_many
                    FROM {d.jobs}
                    WHERE queue = :queue::text AND {IS_CLAIMABLE} AND priority = :priority::int
                      AND next_run_at > {d.now}
                    ORDER BY next_run_at DESC, id DESC LIMIT :most::int) AS j
                WHERE j.status = 'WAITING') AS waiting"""

    @prepared()
    def audit_cascades(self, d: Dialect) -> str:
        """Count the parents that ended a while ago, and whose children have not been told."""
        return f"""SELECT count(*) FROM {d.jobs} AS j WHERE j.cascades IS NOT NULL
                AND coalesce(j.completed_at, {d.now}) < {d.now} - {d.seconds(":slack::float8")}
                AND {has_living_children(d, UNTOLD)}"""

"""Queries of the doctor and of the check for unserved queues, each at a bounded cost."""

from __future__ import annotations

from pulsed.store.sql.claiming import levels
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.families import UNTOLD
from pulsed.store.sql.jobs import HAS_LIMIT, IS_CLAIMABLE, UNLIMITED, has_living_children
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.waiting import has_come, is_aimless


class HealthStatements(StatementGroup):
    """The backlog of queues, and counts of broken invariants."""

    @prepared()
    def queues(self, d: Dialect) -> str:
        """Read the queues with claimable jobs, by a skip scan: one index entry for each queue."""
        first, after = next_queue(d, ""), next_queue(d, "AND queue > queues.queue")
        return f"""WITH RECURSIVE queues(queue) AS (
            SELECT {first}
            UNION ALL
            SELECT {after} FROM queues WHERE queue IS NOT NULL)
            SELECT queue FROM queues"""

    @prepared()
    def oldest_due(self, d: Dialect) -> str:
        """Read the due time of a queue's oldest due job, from one index entry for each priority."""
        return self._oldest_due(d, UNLIMITED)

    @prepared()
    def oldest_limited_due(self, d: Dialect) -> str:
        """Read the same of the jobs with a limit."""
        return self._oldest_due(d, HAS_LIMIT)

    def _oldest_due(self, d: Dialect, which: str) -> str:
        return f"""WITH RECURSIVE {levels(d, which)}
            SELECT min((SELECT next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {which}
                  AND priority = levels.priority
                  AND next_run_at <= {d.now} ORDER BY next_run_at LIMIT 1))
            FROM levels WHERE priority IS NOT NULL"""

    @prepared()
    def limited_levels(self, d: Dialect) -> str:
        """Read the priorities of the jobs with a limit, highest first; the last row has none."""
        return f"WITH RECURSIVE {levels(d, HAS_LIMIT)} SELECT priority FROM levels"

    @prepared()
    def backlog(self, d: Dialect) -> str:
        """Count the due jobs of one priority of a queue by topic, with the oldest due time of each.

        Jobs that no worker claims stay at the head, so the bounded scan includes them.
        """
        return self._backlog(d, UNLIMITED)

    @prepared()
    def limited_backlog(self, d: Dialect) -> str:
        """Count the same of the jobs with a limit."""
        return self._backlog(d, HAS_LIMIT)

    def _backlog(self, d: Dialect, which: str) -> str:
        return f"""SELECT topic, count(*), min(next_run_at)
            FROM (SELECT topic, next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {which}
                  AND priority = :priority::int
                  AND next_run_at <= {d.now}
                ORDER BY next_run_at, id LIMIT :most::int) AS head
            GROUP BY topic"""

    @prepared()
    def running(self, d: Dialect) -> str:
        """Count the running jobs by queue and topic, from the index of leases."""
        return f"""SELECT queue, topic, count(*)
            FROM (SELECT queue, topic FROM {d.jobs}
                WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most::int) AS leased
            GROUP BY queue, topic"""

    @prepared()
    def audit_leases(self, d: Dialect) -> str:
        """Count broken invariants among the leases, in the order of their expiry."""
        return f"""SELECT count(*) FILTER (WHERE status = 'RUNNING'),
                count(*) FILTER (WHERE (status = 'RUNNING') <> (locked_by IS NOT NULL)),
                count(*) FILTER (WHERE status = 'RUNNING' AND lease_until < {d.now}
                    - {d.milliseconds("lease_ms")} - {d.seconds(":slack::float8")}),
                max(lease_ms) FILTER (WHERE status = 'RUNNING')
            FROM (SELECT status, locked_by, lease_until, lease_ms FROM {d.jobs}
                WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most::int) AS leased"""

    @prepared()
    def audit_newest(self, d: Dialect) -> str:
        """Count broken invariants among the newest jobs."""
        return f"""SELECT count(*) FILTER (WHERE status = 'RUNNING' AND lease_until IS NULL),
                count(*) FILTER (WHERE attempts > max_attempts)
            FROM (SELECT status, lease_until, attempts, max_attempts FROM {d.jobs} {d.by_id}
                ORDER BY id DESC LIMIT :most::int) AS newest"""

    @prepared()
    def audit_waits(self, d: Dialect) -> str:
        """Count the jobs of one priority whose wait is invalid, or already satisfied.

        A wake-up commits together with its cause, so no snapshot has a wait that is satisfied. A
        job whose deadline has passed is due, whatever it waits for. Jobs without a deadline come
        first, because only a wake-up would let them continue.
        """
        return self._audit_waits(d, UNLIMITED)

    @prepared()
    def audit_limited_waits(self, d: Dialect) -> str:
        """Count the same of the jobs with a limit."""
        return self._audit_waits(d, HAS_LIMIT)

    def _audit_waits(self, d: Dialect, which: str) -> str:
        return f"""SELECT count(*) FILTER (WHERE aimless),
                count(*) FILTER (WHERE NOT aimless AND come)
            FROM (SELECT {is_aimless(d)} AS aimless, {has_come(d)} AS come
                FROM (SELECT id, status, next_run_at, wait_kind, wait_key, wait_job, wait_enough,
                        wait_too_many
                    FROM {d.jobs}
                    WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {which}
                      AND priority = :priority::int
                      AND next_run_at > {d.now}
                    ORDER BY next_run_at DESC, id DESC LIMIT :most::int) AS j
                WHERE j.status = 'WAITING') AS waiting"""

    @prepared()
    def audit_cascades(self, d: Dialect) -> str:
        """Count the parents that ended over ``slack`` seconds ago with children left to cancel."""
        return f"""SELECT count(*) FROM {d.jobs} AS j WHERE j.cascades IS NOT NULL
                AND coalesce(j.completed_at, {d.now}) < {d.now} - {d.seconds(":slack::float8")}
                AND {has_living_children(d, UNTOLD)}"""


def next_queue(d: Dialect, after: str) -> str:
    """Return the first queue, from two index entries: one of jobs with a limit, one of others."""
    found = " UNION ALL ".join(
        f"""SELECT * FROM (SELECT queue FROM {d.jobs}
            WHERE {IS_CLAIMABLE} AND {which} {after} ORDER BY queue LIMIT 1) AS {name}"""
        for name, which in (("one", UNLIMITED), ("other", HAS_LIMIT))
    )
    return f"(SELECT min(found.queue) FROM ({found}) AS found)"

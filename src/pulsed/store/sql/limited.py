"""The claim of jobs with a limit: which keys have due jobs, what each has in use, and its jobs.

``verbs/limited.py`` explains the order of the statements.
"""

from __future__ import annotations

from pulsed.store.sql.claiming import is_free
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import (
    IS_CLAIMABLE,
    JOB,
    LIMITED,
    NOT_CLAIMABLE,
    SUSPECTED,
    UNLIMITED,
    UNSUSPECTED,
    is_startable,
)
from pulsed.store.sql.prepared import StatementGroup, prepared

KEY = "its_key text, its_name text"

GRANT = "g_key text, g_priority int, g_place int, g_most int, g_begun bool"
"""So many jobs of a key at most: its priorities are several rows, in their order. ``g_begun``: only
jobs that have started before."""

NEW_KEY = "job_id uuid, new_key text"

IN_USE = f"{LIMITED} AND started_at IS NOT NULL AND completed_at IS NULL"
"""Whether a job has started and not ended, as the index of slots has it. With a lease it runs."""


OF_LIMIT = """limit_key >= :name::text AND limit_key < :beyond::text
              AND (limit_key = :name::text
                OR substr(limit_key, 1, length(:name::text) + 1) = :name::text || ',')"""
"""Whether a job has a key of a limit: a range of the keys, and few others in it."""


class LimitedStatements(StatementGroup):
    """How a claim walks the keys of a queue. An engine adds the lock of a key and the claim."""

    @prepared()
    def limit_keys(self, d: Dialect) -> str:
        """Read the keys with claimable jobs and their priorities, by a skip scan; lock due ones.

        Each step is one index look-up: the next priority of the key, or else the next key. Whether
        a priority has a due job, its first job says.
        """
        same_key = "limit_key = c.limit_key AND priority < c.priority"
        following = "limit_key > c.limit_key"
        head = f"{self.jobs.replace(' AS j', ' AS c')}"
        this_head = d.same_id("c.id", "heads.id")
        skipped = f"c.limit_key IN (SELECT e.value FROM {d.elements(':skipped::json')})"
        return f"""WITH RECURSIVE heads(id, place) AS (
                SELECT {self._head(d, "limit_key > :after::text")}, 1
                UNION ALL
                SELECT coalesce({self._head(d, same_key)}, {self._head(d, following)}), place + 1
                FROM heads CROSS JOIN {head} WHERE {this_head} AND place < :most::int)
            SELECT c.limit_key, c.priority, c.next_run_at <= {d.now}, CASE
                WHEN c.next_run_at > {d.now} OR ({skipped}) IS TRUE
                THEN {d.false} ELSE {self.lock("c.limit_key")} END, NOT {is_free(d)}
            FROM heads CROSS JOIN {head} WHERE {this_head}
            ORDER BY heads.place"""

    def _head(self, d: Dialect, which: str) -> str:
        return f"""(SELECT id FROM {d.jobs}
                    WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {LIMITED} AND {which}
                    ORDER BY limit_key, priority DESC, next_run_at, id LIMIT 1)"""

    @prepared()
    def limit_suspects(self, d: Dialect) -> str:
        """Read the keys and priorities of due suspects, of which there are few, and lock them."""
        return f"""SELECT limit_key, priority, {self.lock("limit_key")}
            FROM (SELECT DISTINCT limit_key, priority
                FROM (SELECT limit_key, priority FROM {d.jobs} {d.by_suspicion}
                    WHERE queue = :queue::text AND {SUSPECTED} AND {LIMITED}
                      AND status NOT IN {NOT_CLAIMABLE} AND next_run_at <= {d.now}
                    LIMIT :most::int) AS suspects
                ORDER BY limit_key, priority DESC) AS found"""

    def lock(self, key: str) -> str:  # noqa: ARG002 - an engine with a single writer needs none
        """Return whether a key could be locked until the transaction ends, without waiting."""
        return self.dialect.true

    @prepared(KEY)
    def limit_use(self, d: Dialect) -> str:
        """Read what governs keys, and what is in use: their runs, and all that have started.

        Neither counts beyond ``most``; the jobs that run come first.
        """
        found = self.in_use(d)
        control = f"FROM {d.controls} WHERE scope = 'limit' AND name = r.its_name"
        return f"""SELECT r.its_key, coalesce((SELECT paused {control}), {d.false}),
                (SELECT coalesce(override, declared)::text {control}),
                (SELECT tat FROM {d.rates} WHERE scope = 'limit' AND key = r.its_key),
                (SELECT count(lease_until) FROM {found}), (SELECT count(*) FROM {found}), {d.clock}
            FROM {d.rows_of(KEY)}"""

    def in_use(self, d: Dialect) -> str:
        """Return the jobs of a key that have started and not ended, at most ``most``."""
        return f"""(SELECT lease_until FROM {d.jobs} WHERE {IN_USE} AND limit_key = r.its_key
                ORDER BY {self.leases_first} LIMIT :most::int) AS found"""

    leases_first = "lease_until"
    """The order of the index of slots in which jobs with a lease come first."""

    def granted(self, columns: str, *, suspects: bool, most: str) -> str:
        """Return the due jobs of one row of GRANT, best first: a range of the claim index."""
        d = self.dialect
        table, which = d.jobs, f"{IS_CLAIMABLE} AND {UNSUSPECTED}"
        if suspects:
            table = f"{d.jobs} {d.by_suspicion}"
            runs_one = f"SELECT 1 FROM {table} WHERE {SUSPECTED} AND locked_by = :worker::uuid"
            which = f"{SUSPECTED} AND status NOT IN {NOT_CLAIMABLE} AND NOT EXISTS ({runs_one})"
        return f"""SELECT {columns} FROM {table}
            WHERE queue = :queue::text AND {which} AND {LIMITED} AND limit_key = r.g_key
              AND priority = r.g_priority AND next_run_at <= {d.now}
              AND {is_startable(d)} AND (started_at IS NOT NULL OR NOT r.g_begun)
              AND (topic IN ({self.own_topics})) IS TRUE
              AND (:governed::bool OR {is_free(d)})
            ORDER BY next_run_at, id LIMIT {most}"""

    own_topics: str
    """The topics of the worker, as a query."""

    @prepared()
    def limit_runs(self, d: Dialect) -> str:
        """Read the jobs that hold the slots of a limit, by their keys."""
        return f"""SELECT limit_key, id FROM {d.jobs}
            WHERE {IN_USE} AND lease_until IS NOT NULL AND {OF_LIMIT}
            ORDER BY limit_key LIMIT :most::int"""

    @prepared()
    def limit_waits(self, d: Dialect) -> str:
        """Count the jobs of a limit that wait in a queue, by their keys."""
        return f"""SELECT limit_key, count(*) FROM (SELECT limit_key FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {LIMITED} AND {OF_LIMIT}
                ORDER BY limit_key LIMIT :most::int) AS waiting GROUP BY limit_key"""

    @prepared()
    def without_key(self, d: Dialect) -> str:
        """Read a stretch of a priority's jobs that have no key, in the order of their time."""
        return f"""SELECT id, topic, next_run_at FROM {d.jobs}
            WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {UNLIMITED}
              AND priority = :priority::int
              AND (next_run_at, id) > (:after::timestamptz, :after_id::uuid)
            ORDER BY next_run_at, id LIMIT :most::int"""

    @prepared(JOB)
    def payloads_without_key(self, d: Dialect) -> str:
        """Read the payloads of jobs that lack their key, and lock those that are free."""
        return f"""SELECT j.id, j.topic, j.payload::text
            FROM {d.rows_of(JOB)} CROSS JOIN {self.jobs}
            WHERE {self.this_job} AND j.{UNLIMITED} AND j.status NOT IN {NOT_CLAIMABLE}
            {d.skip_locked_of("j")}"""

    @prepared(NEW_KEY, counted=True)
    def set_limit_keys(self, d: Dialect) -> str:
        """Write the keys of jobs that lack theirs."""
        return f"""UPDATE {self.jobs} SET limit_key = r.new_key FROM {d.rows_of(NEW_KEY)}
            WHERE {self.this_job} AND j.{UNLIMITED} AND j.status NOT IN {NOT_CLAIMABLE}"""

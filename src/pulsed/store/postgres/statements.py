"""The statements that differ on PostgreSQL: each does its work in one round trip."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pulsed.store.sql.claiming import (
    ClaimStatements,
    assigned,
    is_free,
    is_unpaused,
    lease_grant,
)
from pulsed.store.sql.columns import TOPIC
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import (
    ASKED_LEASE,
    IS_CLAIMABLE,
    LEASE,
    LEVEL,
    LOWEST_ID,
    NOT_CLAIMABLE,
    SUCCESS,
    UNLIMITED,
)
from pulsed.store.sql.leases import LeaseStatements
from pulsed.store.sql.prepared import prepared
from pulsed.store.sql.recovery import EXPIRY, RecoveryStatements, has_expired
from pulsed.store.sql.settling import SettleStatements
from pulsed.store.sql.statement import Sql
from pulsed.store.sql.submission import MOST_FORMS, SubmitStatements, batch_of

OWN_TOPICS = "SELECT t_topic FROM topics"
"""The topics of a claim that are not paused."""

KEY_LOCK = 0x706B6579
"""The first half of the advisory locks on keys: ``pkey`` in ASCII."""


QUEUE_LOCK = 0x70717565
"""The first half of the advisory locks on queues: ``pque`` in ASCII."""


def risen_priority(d: Dialect, priority: str) -> str:
    """Return the priority of a job that has been due since ``due_at``, by the age of its queue."""
    steps = f"floor(extract(epoch FROM {d.now} - due_at) / :age::float8::numeric)"
    return f"least(:highest::int, {priority} + {steps})"


class PostgresClaimStatements(ClaimStatements):
    """A claim in one statement: pick, then lease.

    MATERIALIZED is required for correctness: a planner that re-runs the LIMIT for each outer row
    would claim more than was asked for. The UPDATE's guard expresses "claimable" so that it does
    not imply the claim index's condition. Otherwise a planner that knows a small table would use
    that index for the picked jobs, and it has no lookup by id.
    """

    @prepared(LEVEL)
    def claim(self, d: Dialect) -> str:
        """Claim due jobs of all priorities, unless a control governs the queue."""
        return self._claim(d, self._best(suspects=False, guard=f"WHERE {is_free(d)}"))

    @prepared()
    def claim_plain(self, d: Dialect) -> str:
        """Claim due jobs of the only priority in use, for topics that all have the same policy.

        It claims nothing if a claimable job has another priority, or if a control governs the
        queue. So an empty answer says nothing.

        Picked rows are locked, so their places hold, and finding them by place and not by id saves
        a tenth of a claim. One that another session has changed since the statement began is at a
        place that its snapshot does not see: it is left out, and found by the next full scan.

        The topics are JSON, because asyncpg makes several Python calls for each item of an array.
        """
        topics = f"""SELECT e.value FROM {d.elements(":names::json")}
            WHERE {is_unpaused(d, "e.value")}"""
        floor = self.floor(":at::timestamptz", ":claimed::float8", ":walked::float8")
        picked = self.due(
            f"{d.row_id} AS place",
            topics,
            ":priority::int",
            floor,
            ":last::uuid",
            suspects=False,
            guard=f"{self._has_one_priority(d)} AND {is_free(d)}",
        )
        return f"""WITH picked AS MATERIALIZED ({picked})
            UPDATE {self.jobs} SET {lease_grant(d, ":")}
            WHERE {d.id_among(f"j.{d.row_id}", "SELECT place FROM picked")}
              AND j.status NOT IN {NOT_CLAIMABLE}
            RETURNING {assigned(d, {})}"""

    @prepared(LEVEL)
    def claim_suspect(self, d: Dialect) -> str:
        """Claim due suspects, unless a control governs the queue."""
        return self._claim(d, self._best(suspects=True, guard=f"WHERE {is_free(d)}"))

    @prepared(LEVEL)
    def claim_governed(self, d: Dialect) -> str:
        """Claim due jobs of a queue whose control permits so many."""
        return self._claim(d, self._best(suspects=False))

    @prepared(LEVEL)
    def claim_governed_suspect(self, d: Dialect) -> str:
        """Claim due suspects of a queue whose control permits them."""
        return self._claim(d, self._best(suspects=True))

    @prepared(LEVEL)
    def claim_aged(self, d: Dialect) -> str:
        """Claim due jobs whose priority has risen while they waited, the highest first.

        Within one priority the oldest is the best. So the best of all are among the first of each.
        They are locked once they are chosen; the lock of the queue keeps other claims away.
        """
        columns = "id AS due_id, topic AS due_topic, next_run_at AS due_at"
        due = self.due(
            columns, OWN_TOPICS, "l_priority", "l_from", "l_id", suspects=False, lock=False
        )
        best = f"""SELECT due_id FROM levels CROSS JOIN LATERAL ({due}) AS due
            ORDER BY {risen_priority(d, "l_priority")} DESC, l_priority DESC, due_at,
                due_id LIMIT :most::int"""
        return self._claim(
            d,
            f"""SELECT id AS picked_id, topic AS picked_topic FROM {d.jobs} AS b
            WHERE {d.id_among("b.id", best)} AND b.status NOT IN {NOT_CLAIMABLE}
            {d.skip_locked}""",
        )

    @prepared()
    def in_flight(self, d: Dialect) -> str:
        """Read the transactions of pulsed's sessions that may be claiming now.

        A claim locks the table of jobs before it takes its snapshot, and until it has committed.
        So one that has not seen what is committed by now is among these.
        """
        return f"""SELECT DISTINCT l.pid || '/' || l.virtualtransaction
            FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
            WHERE l.locktype = 'relation' AND l.relation = '{d.jobs}'::regclass
              AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
              AND l.mode = 'RowExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()
              AND a.application_name ~ '/(claim|sync)$'"""

    def _has_one_priority(self, d: Dialect) -> str:
        """Return whether all claimable jobs of a queue have the same priority: two index probes."""
        other = f"""SELECT 1 FROM {d.jobs} WHERE queue = :queue::text AND {IS_CLAIMABLE}
            AND {UNLIMITED} AND priority"""
        return f"NOT EXISTS ({other} > :priority::int) AND NOT EXISTS ({other} < :priority::int)"

    def _best(self, *, suspects: bool, guard: str = "") -> str:
        """Return the best due jobs, locked, one priority after the other."""
        columns = "id AS picked_id, topic AS picked_topic"
        due = self.due(columns, OWN_TOPICS, "l_priority", "l_from", "l_id", suspects=suspects)
        return f"""SELECT due.picked_id, due.picked_topic FROM levels
            CROSS JOIN LATERAL ({due}) AS due {guard} LIMIT :most::int"""

    def _claim(self, d: Dialect, picked: str) -> str:
        """Return the claim of picked jobs.

        Only the policies of picked topics are joined with the jobs, because that join is a nested
        loop, too.
        """
        unpaused = f"{d.records(':topics', TOPIC)} WHERE {is_unpaused(d, 't_topic')}"
        return f"""WITH RECURSIVE topics AS MATERIALIZED ({unpaused}),
                {self._visited(d)},
                picked AS MATERIALIZED ({picked}),
                policies AS MATERIALIZED (SELECT * FROM topics
                    WHERE (t_topic IN (SELECT picked_topic FROM picked)) IS TRUE)
            UPDATE {self.jobs} SET {lease_grant(d)}
            FROM picked, policies
            WHERE {d.same_id("j.id", "picked_id")} AND j.topic = t_topic
              AND j.status NOT IN {NOT_CLAIMABLE}
            RETURNING {assigned(d, {})}"""

    def _visited(self, d: Dialect) -> str:
        """Return all priorities, highest first, each with the position where its scan begins.

        Known priorities begin at their floors; the others are found in the gaps between them.
        """

        def highest(above: str, below: str) -> str:
            return f"""(SELECT priority FROM {d.jobs}
                    WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {UNLIMITED}
                    AND priority < {above} AND priority > {below} ORDER BY priority DESC LIMIT 1)"""

        return f"""fresh(priority, below) AS (
                SELECT found.priority, gap.below
                FROM unnest(:above::int[], :below::int[]) AS gap(above, below)
                CROSS JOIN LATERAL {highest("gap.above", "gap.below")} AS found
                UNION ALL
                SELECT found.priority, fresh.below FROM fresh
                CROSS JOIN LATERAL {highest("fresh.priority", "fresh.below")} AS found),
            levels AS MATERIALIZED (
                SELECT l_priority, {self.floor("l_at", "l_claimed", "l_walked")} AS l_from, l_id
                FROM {d.rows_of(LEVEL)}
                UNION ALL
                SELECT fresh.priority, '-infinity', '{LOWEST_ID}' FROM fresh
                ORDER BY 1 DESC)"""


class PostgresLeaseStatements(LeaseStatements):
    """Leases, with a heartbeat that returns the extended ones."""

    @prepared(LEASE)
    def beat(self, d: Dialect) -> str:
        """Extend the leases still held, and return them."""
        return f"{self.extension(d)} RETURNING {ASKED_LEASE}, j.cancel_requested"


class PostgresRecoveryStatements(RecoveryStatements):
    """Recovery, with a reap that skips families which another session has locked."""

    @prepared(EXPIRY)
    def expired_in_families(self, d: Dialect) -> str:
        """Read the expired jobs that have a parent or waiters: their rows are locked first."""
        return f"""SELECT e.id FROM {d.jobs} AS e, {d.rows_of(EXPIRY)}
            WHERE {has_expired(d)} AND (e.parent_id IS NOT NULL OR e.watched IS NOT NULL)"""

    @prepared(EXPIRY)
    def reap(self, d: Dialect) -> str:
        """End the runs of silent workers, except those in ``left_alone``."""
        return self.reaping(d, "AND NOT e.id = ANY(:left_alone::uuid[])")


BETWEEN_PAYLOADS = "\x1f"
"""Separates payloads in one text: a character that JSON has nowhere, not even in its strings."""


class PostgresSubmitStatements(SubmitStatements):
    """New jobs, with an insertion of a batch that tells which of them were new."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.report = lru_cache(MOST_FORMS)(self._report)
        self.submit_first = lru_cache(MOST_FORMS)(self._submit_first)
        self.submit_untried = lru_cache(MOST_FORMS)(self._submit_untried)

    @prepared()
    def lock_queue(self, d: Dialect) -> str:  # noqa: ARG002
        """Take the advisory lock of a queue that a control governs."""
        return f"SELECT pg_advisory_xact_lock({QUEUE_LOCK}, :slot::int)::text"

    @prepared()
    def lock_keys(self, d: Dialect) -> str:  # noqa: ARG002
        """Take advisory locks, in the order given."""
        return f"""SELECT count(pg_advisory_xact_lock({KEY_LOCK}, u.slot)::text)
            FROM unnest(:slots::int[]) AS u(slot)"""

    def _submit_untried(self, shared: tuple[str, ...], own: tuple[str, ...]) -> Sql:
        """Return the insertion of a job without ON CONFLICT, which takes a tenth less."""
        return self.dialect.sql(self.first_insertion(shared, own), batch_of(own), counted=True)

    def _submit_first(self, shared: tuple[str, ...]) -> Sql:
        """Return the insertion of a batch whose ids nobody has, which takes a fifth less.

        Its payloads go in as one text, because to write an array takes the drivers longer.
        """
        text = self.first_insertion(shared, ("id", "payload"))
        payloads = f"string_to_array(:payload::text, chr({ord(BETWEEN_PAYLOADS)}))"
        text = text.replace(":payload::text[]", payloads)
        return self.dialect.sql(text, batch_of(("id",)), counted=True)

    def _report(self, shared: tuple[str, ...], own: tuple[str, ...]) -> Sql:
        """Return the insertion of a batch, which answers with the number of new jobs.

        If not all of them are new, their ids follow as one text, because the caller's own
        connection may have another codec for UUIDs. A RETURNING of all ids would cost the client
        half as much again as the rest of a submit.
        """
        text = f"""WITH stored AS ({self.insertion(shared, own)} RETURNING id),
                counted AS MATERIALIZED (SELECT count(*) AS new FROM stored)
            SELECT new, CASE WHEN new < cardinality(:id::uuid[])
                THEN array_to_string(ARRAY(SELECT id FROM stored), ',') END FROM counted"""
        return replace(self.dialect.sql(text, batch_of(own)), counts_itself=True)


class PostgresSettleStatements(SettleStatements):
    """Ends of runs; the statement for children locks their parents."""

    @prepared(SUCCESS)
    def settle_children(self, d: Dialect) -> str:
        """End runs of one worker that succeeded, of children that have never waited.

        Their parents are locked after them. It returns how many runs have ended, and the parents
        that wait.
        """
        return f"""WITH ended AS ({self.success(d)} RETURNING j.parent_id),
                parents AS MATERIALIZED (SELECT p.id, p.status FROM {d.jobs} AS p
                    WHERE {d.id_among("p.id", "SELECT DISTINCT parent_id FROM ended")}
                    ORDER BY p.id {d.for_update})
            SELECT (SELECT count(*) FROM ended),
                ARRAY(SELECT id FROM parents WHERE status = 'WAITING')"""

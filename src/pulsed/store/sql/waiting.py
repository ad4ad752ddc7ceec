"""Jobs that wait without a slot, and the protocol that wakes them.

Two last children that each check before the other has committed would leave their parent asleep. So
would a check in the very statement that waited for the parent's lock: its snapshot is older than
the lock. Therefore a transaction that ends a job first *locks* the jobs that may wait for it,
whatever their status, and *checks* them in a separate statement. A run that suspends itself does so
under its own row's lock, and checks again in the next statement. docs/adr has the whole argument.
"""

from __future__ import annotations

from pulsed.model.job import Status
from pulsed.model.lifecycle import LIVING
from pulsed.model.workflow import FAILED_CHILD
from pulsed.store.sql.checkpoints import CHECKPOINT
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.end_of_run import REPORTED, end_of_run
from pulsed.store.sql.jobs import IS_LIVING, JOB, LEASE, words
from pulsed.store.sql.prepared import StatementGroup, prepared

OUTCOME_COLUMNS = "id, topic, status, result::text, last_error AS error, last_outcome AS outcome"

SUSPENSION = """job_id uuid, token bigint, worker uuid, kind text, wait_key text, wait_job uuid,
    enough int, too_many int, delay float8, until timestamptz"""

# Worded so that no planner scans the index of claimable jobs for it.
IS_WAITING = f"j.status NOT IN {words(tuple(one for one in Status if one is not Status.WAITING))}"

# The end of a run that begins to wait; see ``end_of_run.REPORTED``.
_SUSPENDED = REPORTED | {
    "kind": "'WAITING'", "result": "NULL::json", "error": "NULL::text",
    "until": "r.until", "final": "1 = 0",
}  # fmt: skip


class WaitStatements(StatementGroup):
    """Suspending, being woken, and waiting for another job."""

    @prepared(SUSPENSION)
    def suspend(self, d: Dialect) -> str:
        """Suspend runs. One that was asked to stop is left out, for ``settle`` to end it."""
        return f"""UPDATE {self.jobs} SET {end_of_run(d, _SUSPENDED)},
                wait_kind = r.kind, wait_key = r.wait_key, wait_job = r.wait_job,
                wait_enough = r.enough, wait_too_many = r.too_many
            FROM {d.rows_of(SUSPENSION, lock="wait")} WHERE {self.held} AND NOT j.cancel_requested
            RETURNING id, lease_token"""

    @prepared(CHECKPOINT, counted=True)
    def open_waits(self, d: Dialect) -> str:
        """Insert the open checkpoints of jobs that this transaction has made WAITING."""
        return f"""INSERT INTO {d.checkpoints} AS s (job_id, name, nth, seq, kind, state,
                input_hash, tries, until, started_at, lease_token)
            SELECT r.job_id, r.name, r.nth, r.seq, r.kind, 'OPEN', r.input_hash, r.tries,
                nullif(j.next_run_at, {d.forever}), {d.now}, r.token
            FROM {d.rows_of(CHECKPOINT)}, {self.jobs}
            WHERE {self.this_job} AND {IS_WAITING} AND j.lease_token = r.token
            ON CONFLICT (job_id, name, nth) DO UPDATE SET until = excluded.until
            WHERE s.state = 'OPEN'"""

    @prepared(JOB)
    def wake(self, d: Dialect) -> str:
        """Wake those of these jobs whose wait is satisfied."""
        return f"""UPDATE {self.jobs} SET status = 'PENDING', next_run_at = {d.now},
                updated_at = {d.now}
            FROM {d.rows_of(JOB)} WHERE {self.this_job} AND {IS_WAITING} AND {has_come(d)}
            RETURNING queue"""

    @prepared(JOB)
    def waiters(self, d: Dialect) -> str:
        """Read the jobs that wait for one of these."""
        return f"""SELECT j.id, j.wait_job FROM {d.jobs} AS j
            WHERE {d.id_among("j.wait_job", f"SELECT r.job_id FROM {d.rows_of(JOB)}")}
              AND j.{IS_LIVING}"""

    @prepared(LEASE)
    def about_to_wait(self, d: Dialect) -> str:
        """Write which job a run is about to wait for, in a transaction of its own.

        So a transaction that sees that a job is watched also sees by which jobs.
        """
        return f"""UPDATE {self.jobs} SET wait_job = :target::uuid
            FROM {d.rows_of(LEASE, lock="wait")} WHERE {self.held} RETURNING id"""

    @prepared()
    def watch(self, d: Dialect) -> str:
        """Mark a living job as watched."""
        return f"""UPDATE {d.jobs} SET watched = {d.true}
            WHERE id = :target::uuid AND {IS_LIVING} RETURNING {OUTCOME_COLUMNS}"""

    @prepared(JOB)
    def outcomes(self, d: Dialect) -> str:
        """Read the status and the outcome of jobs."""
        return f"SELECT {OUTCOME_COLUMNS} FROM {self.jobs}, {d.rows_of(JOB)} WHERE {self.this_job}"


def has_come(d: Dialect) -> str:
    """Return whether the wait of ``j`` is satisfied; a sleep never is, but becomes due."""
    signal = f"""EXISTS (SELECT 1 FROM {d.signals} AS s
                WHERE s.job_id = j.id AND s.name = j.wait_key AND s.consumed_at IS NULL)"""
    job = f"""NOT EXISTS (SELECT 1 FROM {d.jobs} AS t {d.by_id}
                WHERE {d.same_id("t.id", "j.wait_job")} AND t.{IS_LIVING})"""
    return f"""CASE j.wait_kind WHEN 'FAN_OUT' THEN {_is_decided(d)} WHEN 'SIGNAL' THEN {signal}
                WHEN 'JOB' THEN {job} ELSE {d.false} END"""


def _is_decided(d: Dialect) -> str:
    """Return whether the fan-out that ``j`` waits for is decided.

    It counts only where a number decides, because every batch checks up to thousands of children. A
    CASE stops at the first true branch, where SQLite evaluates both sides of an OR.
    """

    # One status at a time: PostgreSQL turns a list into a filter, and scans all children. In a
    # subquery, or a planner may use an index of jobs in that status, whatever their parents are.
    def children(status: Status) -> str:
        return f"""FROM {d.jobs} AS c {d.by_family}
                WHERE {d.same_id("c.parent_id", "j.id")} AND c.parent_step = j.wait_key
                  AND c.status = (SELECT '{status}')"""

    def number(statuses: tuple[Status, ...]) -> str:
        return " + ".join(f"(SELECT count(*) {children(status)})" for status in statuses)

    living = " OR ".join(f"EXISTS (SELECT 1 {children(status)})" for status in LIVING)
    return f"""CASE WHEN NOT ({living}) THEN {d.true}
                WHEN j.wait_too_many IS NOT NULL AND {number(FAILED_CHILD)} >= j.wait_too_many
                THEN {d.true}
                WHEN j.wait_enough IS NOT NULL AND {number((Status.SUCCEEDED,))} >= j.wait_enough
                THEN {d.true} ELSE {d.false} END"""


def is_aimless(d: Dialect) -> str:
    """Return whether ``j``, which is WAITING, names nothing that could wake it."""
    return f"""CASE WHEN j.wait_kind IN ('FAN_OUT', 'SIGNAL') THEN j.wait_key IS NULL
                WHEN j.wait_kind = 'JOB' THEN j.wait_job IS NULL
                WHEN j.wait_kind = 'SLEEP' THEN j.next_run_at >= {d.forever} ELSE 1 = 1 END"""

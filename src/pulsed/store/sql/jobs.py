"""The jobs' table as statements see it: batches of rows, and conditions.

``status`` is set in submit, claim, settle and reap (one shared text, ``end_of_run.py``), cancel,
replay and wake, and nowhere else. Every worker write is fenced by status, owner and lease token *in
the UPDATE itself*: no row means that the lease is lost, which is an answer and not an error. Each
change of status, and a worker's progress, sets ``updated_at``; a heartbeat and the marks on related
jobs (``watched``, ``cascades``, ``wait_job``) do not.
"""

from __future__ import annotations

from uuid import UUID

from pulsed.model.job import Status
from pulsed.model.lifecycle import CLAIMABLE, LIVING, SUSPECT_AFTER
from pulsed.store.sql.dialect import Dialect

LOWEST_ID = UUID(int=0)
"""Sorts before every job's id."""

SOON = 1.0
"""Seconds: workers get a notification of a job that is due within them, and poll for all others."""

ENDED_COLUMNS = "id, status, parent_id, watched"
"""The columns that decide which other jobs the end of a job affects; see ``verbs/effects.py``."""

FAILURE_COLUMNS = "job_id, lease_token, attempt, worker_id, started_at, ended_at, error, traceback"

WORKER_COLUMNS = """id, host, pid, queues::text, topics::text, slots, running, stuck, state,
    version, started_at, last_beat, request"""

WORKER = "worker_id uuid"

REPORT = """job_id uuid, token bigint, worker uuid, kind text, outcome_result text, error text,
    delay float8, final bool"""

JOB = "job_id uuid"

LEASE = "job_id uuid, token bigint, worker uuid"

ASKED_LEASE = "r.job_id, r.token, r.worker"
"""The lease that an answer is about."""

SUCCESS = "job_id uuid, token bigint, outcome_result text"

LEVEL = "l_priority int, l_at timestamptz, l_id uuid, l_claimed float8, l_walked float8"

FAILURE = """job_id uuid, token bigint, n int, worker uuid, started timestamptz, failure text,
    trace text"""


def words(statuses: tuple[str, ...]) -> str:
    """Return statuses as an SQL list. They are constants of the model, so no input is injected."""
    return "(" + ", ".join(f"'{status}'" for status in statuses) + ")"


IS_CLAIMABLE = f"status IN {words(CLAIMABLE)}"

UNLIMITED = "limit_key IS NULL"
LIMITED = "limit_key IS NOT NULL"
"""Each has an index of claimable jobs of its own, so a query that uses one has to name it."""

HAS_LIMIT = "coalesce(limit_key, '') <> ''"
"""The same as LIMITED, worded as the index for pages and checks is. Claims must not use that one,
whatever a planner believes that an empty table has, and this one not theirs."""

IS_LIVING = f"status IN {words(LIVING)}"

NOT_CLAIMABLE = words(tuple(status for status in Status if status not in CLAIMABLE))

# The second is worded as the condition of the suspects' index. See lifecycle.SUSPECT_AFTER.
UNSUSPECTED = f"coalesce(crashes, 0) < {SUSPECT_AFTER}"
SUSPECTED = f"crashes >= {SUSPECT_AFTER} AND completed_at IS NULL"


def is_startable(d: Dialect) -> str:
    """Return whether a claimable job may be started: it has not expired, or has started before."""
    return f"(expires_at IS NULL OR expires_at > {d.now} OR started_at IS NOT NULL)"


def of_jobs(d: Dialect) -> str:
    """Return whether a row belongs to one of a batch of jobs."""
    return d.id_among("job_id", f"SELECT r.job_id FROM {d.rows_of(JOB)}")


def has_living_parent(d: Dialect) -> str:
    """Return whether the parent of ``j`` has not ended: it may still read the outcome of ``j``."""
    return f"""(j.parent_id IS NOT NULL AND EXISTS (SELECT 1 FROM {d.jobs} AS p {d.by_id}
        WHERE {d.same_id("p.id", "j.parent_id")} AND p.{IS_LIVING}))"""


def is_needed(d: Dialect) -> str:
    """Return whether another job may still read the outcome of ``j``: its parent, or a waiter.

    One that has ended without success may be replayed, and then reads it again.
    """
    parent = f"""(j.parent_id IS NOT NULL AND EXISTS (SELECT 1 FROM {d.jobs} AS p {d.by_id}
        WHERE {d.same_id("p.id", "j.parent_id")} AND p.status <> 'SUCCEEDED'))"""
    waiter = f"""(j.watched IS NOT NULL AND EXISTS (SELECT 1 FROM {d.jobs} AS w
        WHERE {d.same_id("w.wait_job", "j.id")} AND w.status <> 'SUCCEEDED'))"""
    return f"({parent} OR {waiter})"


def has_living_children(d: Dialect, which: str = "") -> str:
    """Return whether ``j`` has children ``c`` that have not ended.

    The coalesce keeps it a subplan for each job: a planner that expects an empty table turns a bare
    EXISTS into a join, with all children of all jobs on its inner side.
    """
    return f"""coalesce(EXISTS (SELECT 1 FROM {d.jobs} AS c {d.by_family}
        WHERE {d.same_id("c.parent_id", "j.id")} AND c.{IS_LIVING} {which}), {d.false})"""

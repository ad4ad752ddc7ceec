"""Every statement on the jobs' tables, named, with its intent above it.

``status`` is set in submit, claim, settle and reap (one shared text), cancel, replay and the wake
of ``sql/workflows.py``, and nowhere else. Whatever a worker writes is guarded by status, owner and
lease token *in the UPDATE itself*: no row means that the lease is lost, which is an answer and not
an error. Each of them and a worker's progress set ``updated_at``; a heartbeat and the notes that
jobs make about each other (``watched``, ``cascades``, ``wait_job``) do not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from uuid import UUID

import msgspec

from pulsed.model.job import Status
from pulsed.model.lifecycle import CLAIMABLE, DELETABLE, LIVING, REPLAYABLE, SUSPECT_AFTER, TERMINAL
from pulsed.model.outcome import EXPIRED, INTERRUPTED, LEASE_EXPIRED
from pulsed.store.sql.columns import (
    ASSIGNED,
    ASSIGNED_IDS,
    ASSIGNED_TYPES,
    JOB_COLUMNS,
    LONG_COLUMNS,
    NEW_JOB,
    NEW_JSON,
    START,
    TOPIC,
    filled_policy,
)
from pulsed.store.sql.dialect import FENCE, HAS_WAITED, Dialect
from pulsed.store.sql.statement import Sql

LOWEST_ID = UUID(int=0)
"""Sorts before every job's id."""

SOON = 1.0
"""Seconds: who waits for a queue hears of a job that is due by then, and polls for all others."""

LONG_TEXT = 4096
"""Characters of payload and headers beyond which a picked job's are read by another statement."""

_decode_assignments = msgspec.json.Decoder(list[tuple[ASSIGNED_TYPES]]).decode  # type: ignore[valid-type]

ENDED_COLUMNS = "id, status, parent_id, watched"
"""What tells who has to hear of a job's end."""

FAILURE_COLUMNS = "job_id, lease_token, attempt, worker_id, started_at, ended_at, error, traceback"

WORKER_COLUMNS = """id, host, pid, queues::text, topics::text, slots, running, stuck, state,
    version, started_at, last_beat"""

REPORT = """job_id uuid, token bigint, worker uuid, kind text, outcome_result text, error text,
    delay float8, final bool"""

JOB = "job_id uuid"

TICK = "tick_id uuid"

WORKER = "worker uuid"

EXPIRY = "length_ms bigint, before timestamptz"

LEASE = "job_id uuid, token bigint, worker uuid"

ASKED_LEASE = "r.job_id, r.token, r.worker"
"""The lease that an answer is about."""

SUCCESS = "job_id uuid, token bigint, outcome_result text"

LEVEL = "l_priority int, l_at timestamptz, l_id uuid, l_claimed float8, l_walked float8"

FAILURE = """job_id uuid, token bigint, n int, worker uuid, started timestamptz, failure text,
    trace text"""


MOST_SUBMITS = 128
"""How many forms of submit are kept; a program uses a few of those that there may be."""


def words(statuses: tuple[str, ...]) -> str:
    """Write statuses into a statement: they are ours, nobody can inject them."""
    return "(" + ", ".join(f"'{status}'" for status in statuses) + ")"


IS_CLAIMABLE = f"status IN {words(CLAIMABLE)}"

IS_LIVING = f"status IN {words(LIVING)}"

_NOT_CLAIMABLE = words(tuple(status for status in Status if status not in CLAIMABLE))

# The second says it in the words of the suspects' index. See lifecycle.SUSPECT_AFTER.
_UNSUSPECTED = f"coalesce(crashes, 0) < {SUSPECT_AFTER}"
_SUSPECTED = f"crashes >= {SUSPECT_AFTER} AND completed_at IS NULL"

# How a run ended, as settle reads it from its batch…
REPORTED = {
    "kind": "r.kind", "result": "r.outcome_result::json", "error": "r.error", "delay": "r.delay",
    "until": "NULL::timestamptz", "final": "r.final",
}  # fmt: skip

# …and when all of the batch succeeded. Constants, which both engines evaluate once.
_SUCCEEDED = REPORTED | {
    "kind": "'SUCCEEDED'", "error": "NULL::text", "delay": "NULL::float8", "final": "1 = 0"
}  # fmt: skip


def end_of_run(d: Dialect, ended: dict[str, str]) -> str:
    """Return the SET list that settle and reap share: a silent failure ends like a loud one.

    It has THE decision where a run's end takes its job; ``lifecycle.status_after`` is its twin.
    """
    kind, error, delay, final = ended["kind"], ended["error"], ended["delay"], ended["final"]
    given_back = f"{kind} IN ('RELEASED', 'SNOOZED', 'WAITING', '{INTERRUPTED}')"
    status_after = f"""CASE
        WHEN {kind} = 'SUCCEEDED' THEN 'SUCCEEDED'
        WHEN {kind} = 'CANCELLED' OR cancel_requested THEN 'CANCELLED'
        WHEN {kind} IN ('RELEASED', 'SNOOZED', '{INTERRUPTED}') THEN 'PENDING'
        WHEN {kind} = 'WAITING' THEN 'WAITING'
        WHEN attempts < max_attempts AND NOT {final} THEN 'RETRYING'
        ELSE 'DEAD_LETTERED' END"""
    return f"""
        status = {status_after},
        next_run_at = CASE {status_after}
            WHEN 'RETRYING' THEN {d.now} + {d.seconds(f"coalesce({delay}, {d.backoff})")}
            WHEN 'PENDING' THEN {d.now} + {d.seconds(f"coalesce({delay}, 0)")}
            WHEN 'WAITING' THEN {d.greatest}({d.now},
                coalesce({ended["until"]}, {d.now} + {d.seconds(delay)}, {d.forever}))
            ELSE next_run_at END,
        completed_at = CASE WHEN {status_after} IN {words(TERMINAL)} THEN {d.now} END,
        attempts = attempts - CASE WHEN {given_back} THEN 1 ELSE 0 END,
        crashes = CASE WHEN {kind} = '{INTERRUPTED}' THEN coalesce(crashes, 0) + 1
            WHEN {kind} IN ('FAILED', 'SNOOZED', 'WAITING') THEN NULL ELSE crashes END,
        result = {ended["result"]},
        last_error = CASE WHEN {kind} = 'SUCCEEDED' THEN NULL
            ELSE coalesce({error}, last_error) END,
        last_worker = locked_by,
        last_outcome = {kind},
        locked_by = NULL,
        lease_until = NULL,
        updated_at = {d.now}"""


def _due_again_in(d: Dialect) -> str:
    """Return the queue of a job whose run has ended, if that or the next suspect can run now."""
    soon = f"{IS_CLAIMABLE} AND next_run_at <= {d.now} + {d.seconds(f'{SOON}')}"
    return f"CASE WHEN {soon} OR crashes >= {SUSPECT_AFTER} THEN queue END"


def success(d: Dialect) -> str:
    """Return how runs of one worker end that succeeded.

    Left out are a job that is watched, one that has waited, which is locked after all others, and
    a suspect, whose end lets the next one run.
    """
    return f"""UPDATE {d.jobs} AS j {d.by_id} SET {end_of_run(d, _SUCCEEDED)}
        FROM (SELECT r.*, :worker::uuid AS worker FROM {d.rows_of(SUCCESS, lock="order")}) AS r
        WHERE {d.same_id("j.id", "r.job_id")} AND {FENCE} AND j.watched IS NULL
          AND NOT j.{HAS_WAITED} AND {_UNSUSPECTED}"""


def of_jobs(d: Dialect) -> str:
    """Return whether a row belongs to one of a batch of jobs."""
    return d.id_among("job_id", f"SELECT r.job_id FROM {d.rows_of(JOB)}")


def has_living_parent(d: Dialect) -> str:
    """Return whether the parent of ``j`` has not ended: it may still ask what ``j`` came to."""
    return f"""(j.parent_id IS NOT NULL AND EXISTS (SELECT 1 FROM {d.jobs} AS p {d.by_id}
        WHERE {d.same_id("p.id", "j.parent_id")} AND p.{IS_LIVING}))"""


def is_needed(d: Dialect) -> str:
    """Return whether another job may still ask what ``j`` came to: its parent, or who waits for it.

    One that has ended without success may be replayed, and then asks again.
    """
    parent = f"""(j.parent_id IS NOT NULL AND EXISTS (SELECT 1 FROM {d.jobs} AS p {d.by_id}
        WHERE {d.same_id("p.id", "j.parent_id")} AND p.status <> 'SUCCEEDED'))"""
    waiter = f"""(j.watched IS NOT NULL AND EXISTS (SELECT 1 FROM {d.jobs} AS w
        WHERE {d.same_id("w.wait_job", "j.id")} AND w.status <> 'SUCCEEDED'))"""
    return f"({parent} OR {waiter})"


def has_living_children(d: Dialect, which: str = "") -> str:
    """Return whether ``j`` has children ``c`` that have not ended.

    The coalesce keeps it a question for each job: a planner that believes the table to be empty
    makes a join of a bare EXISTS, with all children of all jobs on its inner side.
    """
    return f"""coalesce(EXISTS (SELECT 1 FROM {d.jobs} AS c {d.by_family}
        WHERE {d.same_id("c.parent_id", "j.id")} AND c.{IS_LIVING} {which}), {d.false})"""


def _lease_grant(d: Dialect, given: str = "") -> dict[str, str]:
    """Return what a claim sets: the claim is the lease, and fills the policy left unset.

    The topic's policy is the columns of TOPIC, or with ``given`` as ":" parameters.
    """
    filled = filled_policy(f"{given}t")
    return {
        "status": "'RUNNING'",
        "attempts": "attempts + 1",
        "lease_token": d.next_token,
        "locked_by": ":worker::uuid",
        "lease_until": f"{d.clock} + {d.milliseconds(filled['lease_ms'])}",
        "started_at": d.clock,
        "updated_at": d.clock,
        **filled,
    }


def _assigned(d: Dialect, written: dict[str, str]) -> str:
    """Return the columns that a claim answers with, as ``written`` where that says how.

    Reading instants is half of the cost of reading an answer. So the one that every claim needs
    is a number, and the other one only comes if it is not the same: of most jobs it is.
    """
    numbers = {
        "next_run_at": d.number("next_run_at"),
        "submitted_at": d.number("nullif(submitted_at, next_run_at)"),
    }
    return ", ".join((ASSIGNED | numbers | written)[name] for name in ASSIGNED)


def _set(values: dict[str, str]) -> str:
    return ",\n        ".join(f"{name} = {value}" for name, value in values.items())


class Statements:
    """The statements of one dialect, prepared once."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = d = dialect
        this_job = d.same_id("j.id", "r.job_id")
        held = f"{this_job} AND {FENCE}"

        self.submit = lru_cache(MOST_SUBMITS)(self._submit)

        # The priorities in use, highest first, without visiting the rows between them; and whether
        # there are suspects among the jobs.
        self.levels = d.sql(
            f"""WITH RECURSIVE {self._levels()}
            SELECT priority, EXISTS (SELECT 1 FROM {d.jobs} {d.by_suspicion}
                WHERE queue = :queue::text AND {_SUSPECTED} AND status NOT IN {_NOT_CLAIMABLE})
            FROM levels"""
        )
        # The queues with claimable jobs, without visiting the rows between them.
        self.queues = d.sql(f"WITH RECURSIVE {self._queues()} SELECT queue FROM queues")
        # Since when the oldest due job of a queue has been due: one index entry for each priority.
        self.oldest_due = d.sql(
            f"""WITH RECURSIVE {self._levels()}
            SELECT min((SELECT next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND priority = levels.priority
                  AND next_run_at <= {d.now} ORDER BY next_run_at LIMIT 1))
            FROM levels WHERE priority IS NOT NULL"""
        )
        # How many due jobs at the head of a queue are of other topics than these.
        self.others_first = d.sql(
            f"""SELECT count(*) FROM (SELECT topic, next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE}
                ORDER BY priority DESC, next_run_at, id LIMIT :most::int) AS head
            WHERE next_run_at <= {d.now}
              AND topic NOT IN (SELECT e.value FROM {d.elements(":names::json")})"""
        )
        if d.answers:
            self.claim = self._claim()
            self.claim_suspect = self._claim(suspects=True)
        else:
            self.claim = self._claim_picked()
            self.pick = self._pick()
            self.pick_suspect = self._pick(suspects=True)
            self.long_texts = d.sql(
                f"""SELECT j.id, {", ".join(LONG_COLUMNS)}
                FROM {d.jobs} AS j {d.by_id}, {d.rows_of(JOB)} WHERE {this_job}""",
                JOB,
            )

        # Extend what is still held. A row locked by somebody else is left out; see still_held.
        self.beat = d.sql(
            f"""UPDATE {d.jobs} AS j {d.by_id}
            SET lease_until = {d.clock} + {d.milliseconds("lease_ms")}
            FROM {d.rows_of(LEASE, lock="skip")} WHERE {held}
            {d.returning(f"{ASKED_LEASE}, j.cancel_requested")}""",
            LEASE,
            counted=not d.answers,
        )

        # Which of the leases are held at all: tells a skipped row from a lost one.
        self.still_held = d.sql(
            f"""SELECT {ASKED_LEASE}, j.cancel_requested
            FROM {d.jobs} AS j {d.by_id}, {d.rows_of(LEASE)} WHERE {held}""",
            LEASE,
        )

        # End runs of one worker that succeeded, as nearly all do, and that nobody waits for. Only
        # the current lease gets through. A child is left to ``settle_children``.
        self.settle_succeeded = d.sql(
            f"{success(d)} AND j.parent_id IS NULL", SUCCESS, counted=True
        )

        # End runs in any way.
        self.settle = d.sql(
            f"""UPDATE {d.jobs} AS j {d.by_id} SET {end_of_run(d, REPORTED)}
            FROM {d.rows_of(REPORT, lock="wait")} WHERE {held}
            RETURNING {ENDED_COLUMNS}, lease_token, attempts, started_at, last_worker,
                {_due_again_in(d)}""",
            REPORT,
        )

        # Did an earlier try of this very report go through, its answer lost on the way?
        self.settled_before = d.sql(
            f"""SELECT {ASKED_LEASE}
            FROM {d.jobs} AS j {d.by_id}, {d.rows_of(REPORT)}
            WHERE {this_job} AND j.status <> 'RUNNING' AND j.lease_token = r.token
              AND j.last_worker = r.worker AND j.last_outcome = r.kind""",
            REPORT,
        )

        self._prepare_recovery()
        self._prepare_checks()

        # One row for each failed attempt; nothing on the way of a success.
        self.record_failures = d.sql(
            f"""INSERT INTO {d.failures} ({FAILURE_COLUMNS})
            SELECT r.job_id, r.token, r.n, r.worker, r.started, {d.now}, r.failure, r.trace
            FROM {d.rows_of(FAILURE)} WHERE true
            ON CONFLICT (job_id, lease_token) DO NOTHING""",
            FAILURE,
        )

        # What the database thinks a worker holds. The lease index has the running rows only.
        self.held = d.sql(
            f"""SELECT id, lease_token FROM {d.jobs}
            WHERE lease_until IS NOT NULL AND status = 'RUNNING' AND locked_by = :worker::uuid"""
        )

        # Of these, the jobs that were asked to stop. They have an index of their own.
        self.asked_to_stop = d.sql(
            f"""SELECT id, lease_token FROM {d.jobs} {d.by_cancelling}
            WHERE cancel_requested = {d.true} AND locked_by = :worker::uuid
              AND status = 'RUNNING'"""
        )

        self.set_progress = d.sql(
            f"""UPDATE {d.jobs} AS j {d.by_id} SET progress = :progress::json,
                updated_at = {d.now}
            FROM {d.rows_of(LEASE, lock="wait")} WHERE {held} RETURNING id""",
            LEASE,
        )

        # A waiting job ends here; a running one is asked, and decides when its run ends.
        self.cancel = d.sql(
            f"""UPDATE {d.jobs} AS j {d.by_id} SET
                status = CASE WHEN status = 'RUNNING' THEN 'RUNNING' ELSE 'CANCELLED' END,
                completed_at = CASE WHEN status = 'RUNNING' THEN NULL ELSE {d.now} END,
                cancel_requested = {d.true}, updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {this_job} AND (j.status = 'RUNNING' OR j.{IS_CLAIMABLE})
            RETURNING {ENDED_COLUMNS}""",
            JOB,
        )

        # An operator's second chance. The act's id makes a repeated call recognisable.
        self.replay = d.sql(
            f"""UPDATE {d.jobs} AS j {d.by_id} SET
                status = 'PENDING', attempts = 0, next_run_at = {d.now}, completed_at = NULL,
                cancel_requested = {d.false}, progress = NULL, cascades = NULL,
                generation = nullif(coalesce(generation, 0) + :fresh::int, 0),
                last_worker = :act::uuid, last_outcome = 'REPLAYED', updated_at = {d.now}
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {this_job} AND j.status IN {words(REPLAYABLE)}
            RETURNING id, queue""",
            JOB,
        )

        self.delete_failures = d.sql(f"DELETE FROM {d.failures} WHERE {of_jobs(d)}", JOB)
        # A child goes with its parent's leave only, and a parent not before its children.
        self.delete = d.sql(
            f"""DELETE FROM {d.jobs} AS j WHERE status IN {words(DELETABLE)}
              AND NOT {has_living_parent(d)} AND NOT {has_living_children(d)} AND
                {d.id_among("id", f"SELECT r.job_id FROM {d.rows_of(JOB, lock='wait')}")}
            RETURNING id, watched""",
            JOB,
        )

        # Remove finished jobs of one status, the longest finished first. A row that somebody holds
        # is passed over, so a prune waits for nobody. What is picked is looked at again when it is
        # deleted: a dead letter may have been replayed in between. As in a reap, that second look
        # is written so that no planner takes the index of finished jobs for it, once for each job.
        # Whether it is needed is not asked again: nobody begins to need a job that has ended.
        # A prune that goes on says where the last batch ended: while an old snapshot is held, the
        # index still has what was removed, and would be walked through from its beginning.
        cutoff = f"{d.now} - {d.seconds(':age::float8')}"
        # Whose children have yet to be told is needed for that.
        unneeded = f"cascades IS NULL AND NOT {is_needed(d)}"
        picked = f"""SELECT id FROM {d.jobs} AS j
                WHERE status = :status::text AND completed_at < {cutoff}
                  AND completed_at >= :since::timestamptz AND {unneeded}
                ORDER BY completed_at LIMIT :most::int {d.skip_locked}"""
        self.prune = d.sql(
            f"""DELETE FROM {d.jobs} AS j WHERE {d.id_among("id", picked)}
              AND status = :status::text AND status IN {words(TERMINAL)}
              AND coalesce(completed_at, {d.now}) < {cutoff}
            RETURNING id, completed_at"""
        )

        # How many a prune would remove, up to a bound.
        self.prunable = d.sql(
            f"""SELECT count(*) FROM (SELECT 1 FROM {d.jobs} AS j
                WHERE status = :status::text AND completed_at < {cutoff} AND {unneeded}
                LIMIT :most::int) AS found"""
        )

        # Whose turn it is to prune: one process at a time, or a hundred of them would all delete
        # at once. The turn ends by itself, so that it is not lost with a process that dies; one
        # that ends too far in the future was taken under a clock that has been set back since.
        end_of_turn = f"{d.now} + {d.seconds(':length::float8')}"
        self.take_turn = d.sql(
            f"""UPDATE {d.meta} SET prune_after = {end_of_turn}
            FROM (SELECT 1 FROM {d.meta} {d.skip_locked}) AS unlocked
            WHERE prune_after IS NULL OR prune_after <= {d.now} OR prune_after > {end_of_turn}
            RETURNING 1"""
        )

        # Where jobs stand after an act, and whose replay made them so.
        self.standing = d.sql(
            f"""SELECT j.id, j.status, j.last_outcome, j.last_worker
            FROM {d.jobs} AS j {d.by_id}, {d.rows_of(JOB)} WHERE {this_job}""",
            JOB,
        )

        self.get = d.sql(
            f"""SELECT {JOB_COLUMNS} FROM {d.jobs} AS j {d.by_id}, {d.rows_of(JOB)}
            WHERE {this_job}""",
            JOB,
        )

        # For checks of access, which need no payload: a row can have megabytes.
        self.places = d.sql(
            f"""SELECT j.id, j.topic, j.queue, j.parent_id
            FROM {d.jobs} AS j {d.by_id}, {d.rows_of(JOB)} WHERE {this_job}""",
            JOB,
        )

        self.read_failures = d.sql(
            f"""SELECT {FAILURE_COLUMNS} FROM {d.failures} WHERE job_id = :job::uuid
              AND lease_token > :after::bigint
            ORDER BY lease_token LIMIT :most::int"""
        )

        self.announce = d.sql(
            f"""INSERT INTO {d.workers} (id, host, pid, queues, topics, slots, running, stuck,
                state, version, started_at, last_beat)
            VALUES (:worker::uuid, :host::text, :pid::int, :queues::json, :topics::json,
                :slots::int, :running::int, :stuck::int, :state::text, :version::text,
                {d.now}, {d.now})
            ON CONFLICT (id) DO UPDATE SET running = excluded.running, stuck = excluded.stuck,
                state = excluded.state, last_beat = excluded.last_beat"""
        )
        self.retire = d.sql(f"DELETE FROM {d.workers} WHERE id = :worker::uuid")
        silent = f"""SELECT id FROM {d.workers}
            WHERE last_beat < {d.now} - {d.seconds(":age::float8")} {d.skip_locked}"""
        self.forget_workers = d.sql(f"DELETE FROM {d.workers} WHERE {d.id_among('id', silent)}")
        self.read_workers = d.sql(f"SELECT {WORKER_COLUMNS} FROM {d.workers} ORDER BY started_at")
        self.read_worker = d.sql(
            f"SELECT {WORKER_COLUMNS} FROM {d.workers} WHERE id = :worker::uuid"
        )
        self.read_clock = d.sql(f"SELECT {d.clock}")

    def _prepare_checks(self) -> None:
        """Prepare what the doctor asks for, each at a bounded cost."""
        d = self.dialect

        # What must never be: among the leases, those that ended first before all others…
        self.audit_leases = d.sql(
            f"""SELECT count(*) FILTER (WHERE status = 'RUNNING'),
                count(*) FILTER (WHERE (status = 'RUNNING') <> (locked_by IS NOT NULL)),
                count(*) FILTER (WHERE status = 'RUNNING' AND lease_until < {d.now}
                    - {d.milliseconds("lease_ms")} - {d.seconds(":slack::float8")}),
                max(lease_ms) FILTER (WHERE status = 'RUNNING')
            FROM (SELECT status, locked_by, lease_until, lease_ms FROM {d.jobs}
                WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most::int) AS leased"""
        )
        # …and among the newest jobs.
        self.audit_newest = d.sql(
            f"""SELECT count(*) FILTER (WHERE status = 'RUNNING' AND lease_until IS NULL),
                count(*) FILTER (WHERE attempts > max_attempts)
            FROM (SELECT status, lease_until, attempts, max_attempts FROM {d.jobs} {d.by_id}
                ORDER BY id DESC LIMIT :most::int) AS newest"""
        )

        # What waits for a worker in one priority of a queue, and since when. Jobs that nobody
        # takes stay at its head, so they are among those that are read.
        self.backlog = d.sql(
            f"""SELECT topic, count(*), min(next_run_at)
            FROM (SELECT topic, next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND priority = :priority::int
                  AND next_run_at <= {d.now}
                ORDER BY next_run_at, id LIMIT :most::int) AS head
            GROUP BY topic"""
        )

    def _prepare_recovery(self) -> None:
        """Prepare what the watchdog does; see ticks.py."""
        d = self.dialect
        this_job = d.same_id("j.id", "r.job_id")

        # Whose time is up: the lengths of expired leases, and when the last of each ended.
        self.expired = d.sql(
            f"""SELECT lease_ms, max(lease_until) FROM {d.jobs}
            WHERE status = 'RUNNING' AND lease_until < {d.now} GROUP BY lease_ms"""
        )

        # A failure report that the worker did not live to make, for leases that ended before an
        # instant that depends on their length. The second look at the lease is written so that no
        # planner takes the index of leases for it, once for each job. Several jobs of one worker
        # have not failed but were interrupted; see lifecycle.ending_of_silence.
        interrupted = f"""{_UNSUSPECTED} AND (shared_lease = lease_token
            OR (locked_by IN (SELECT s.locked_by FROM shared AS s)) IS TRUE)"""
        expired = f"""e.status = 'RUNNING' AND e.lease_until < {d.now}
                      AND e.lease_ms = r.length_ms AND e.lease_until < r.before"""
        # Of those, the jobs whose end others have to hear of: these rows are locked first.
        self.expired_in_families = d.sql(
            f"""SELECT e.id FROM {d.jobs} AS e, {d.rows_of(EXPIRY)}
            WHERE {expired} AND (e.parent_id IS NOT NULL OR e.watched IS NOT NULL)""",
            EXPIRY,
        )
        left_alone = "AND NOT e.id = ANY(:left_alone::uuid[])" if d.for_update else ""
        self.reap = d.sql(
            f"""UPDATE {d.jobs} AS j {d.by_id} SET {end_of_run(d, REPORTED)}
            FROM (WITH expired AS MATERIALIZED (
                    SELECT e.id AS job_id, e.locked_by, e.lease_token, e.shared_lease, e.crashes,
                        r.before
                    FROM {d.jobs} AS e, {d.rows_of(EXPIRY)}
                    WHERE {expired} {left_alone}
                    ORDER BY e.lease_until LIMIT :most::int {d.skip_locked_of("e")}),
                shared AS MATERIALIZED (SELECT locked_by FROM {d.jobs}
                    WHERE lease_until IS NOT NULL AND status = 'RUNNING'
                      AND (locked_by IN (SELECT e.locked_by FROM expired AS e)) IS TRUE
                    GROUP BY locked_by HAVING count(*) > 1)
                SELECT job_id, before, NULL::text AS outcome_result, '{LEASE_EXPIRED}' AS error,
                    NULL::float8 AS delay, {d.false} AS final,
                    CASE WHEN {interrupted} THEN '{INTERRUPTED}' ELSE '{EXPIRED}' END AS kind
                FROM expired) AS r
            WHERE {this_job} AND j.status = 'RUNNING'
              AND coalesce(j.lease_until, {d.now}) < r.before
            RETURNING {ENDED_COLUMNS}, lease_token, attempts, started_at, last_worker, topic,
                last_outcome, {_due_again_in(d)}""",
            EXPIRY,
        )
        # What else the workers held that were just found silent. A row that is locked just now is
        # being settled or extended, and its worker alive.
        others = f"""SELECT id FROM {d.jobs}
            WHERE lease_until IS NOT NULL AND status = 'RUNNING'
              AND coalesce(shared_lease, 0) <> lease_token
              AND (locked_by IN (SELECT r.worker FROM {d.rows_of(WORKER)})) IS TRUE
            {d.skip_locked}"""
        self.note_shared = d.sql(
            f"""UPDATE {d.jobs} SET shared_lease = lease_token
            WHERE {d.id_among("id", others)} AND status = 'RUNNING'""",
            WORKER,
        )

        # The ticks of all watchdogs, and what time it is: at the beginning of the transaction, and
        # when it got to read them. See ticks.py.
        self.read_ticks = d.sql(
            f"""SELECT {d.now}, {d.clock}, t.id, t.previous, t.at
            FROM (SELECT 1) AS once LEFT JOIN {d.ticks} AS t ON {d.true}"""
        )
        self.add_tick = d.sql(
            f"""INSERT INTO {d.ticks} (id, previous, at)
            VALUES (:id::uuid, :previous::timestamptz, :at::timestamptz)"""
        )
        # Another watchdog may be about to remove the same, and frozen while it does.
        stale = f"SELECT r.tick_id FROM {d.rows_of(TICK, lock='skip', table=d.ticks)}"
        self.remove_ticks = d.sql(f"DELETE FROM {d.ticks} WHERE {d.id_among('id', stale)}", TICK)

        # Leases that were granted before the clock was set back end when they would have by the
        # clock as it is now. A row that is locked just now is being settled or extended.
        whole_lease = f"{d.now} + {d.milliseconds('lease_ms')}"
        too_long = f"""SELECT id FROM {d.jobs}
            WHERE status = 'RUNNING' AND lease_until > {whole_lease} {d.skip_locked}"""
        self.shorten_leases = d.sql(
            f"""UPDATE {d.jobs} SET lease_until = {whole_lease}
            WHERE {d.id_among("id", too_long)} AND status = 'RUNNING'"""
        )

    def _submit(self, shared: tuple[str, ...], own: tuple[str, ...]) -> Sql:
        """Return the insertion of jobs, naming only the columns that one of them fills.

        What all have in common goes in once, what they have each of their ``own`` as a batch. An
        id that exists is the same job submitted again.
        """
        d = self.dialect

        def given(name: str) -> str:
            value = f"r.{name}" if name in own else f":{name}::{NEW_JOB[name]}"
            return f"{value}::json" if name in NEW_JSON else value

        names = [name for name in NEW_JOB if name in shared or name in own]
        values = {name: given(name) for name in names if name not in START}
        values["status"] = "'PENDING'"
        values["submitted_at"] = d.now
        values["next_run_at"] = self._start({name: given(name) for name in START if name in names})
        batch = ", ".join(f"{name} {NEW_JOB[name]}" for name in own)
        listed = ", ".join(values.values())
        source = d.inserted(listed, batch) if own else f"VALUES ({listed})"
        return d.sql(
            f"INSERT INTO {d.jobs} ({', '.join(values)}) {source} ON CONFLICT DO NOTHING",
            batch,
            counted=True,
        )

    def _start(self, given: dict[str, str]) -> str:
        """Return when a new job may start: at its instant, after its delay, or now."""
        d = self.dialect
        if not given:
            return d.now
        start = f"{d.now} + {d.seconds(given['delay'])}" if "delay" in given else d.now
        start = f"coalesce({given['at']}, {start})" if "at" in given else start
        return f"{d.greatest}({d.now}, {start})"

    def _levels(self) -> str:
        d = self.dialect
        next_level = f"""SELECT priority FROM {d.jobs}
            WHERE queue = :queue::text AND {IS_CLAIMABLE} {{below}}
            ORDER BY priority DESC LIMIT 1"""
        below = "AND priority < levels.priority"
        return f"""levels(priority) AS (
            SELECT * FROM ({next_level.format(below="")}) AS top
            UNION ALL
            SELECT ({next_level.format(below=below)}) FROM levels WHERE priority IS NOT NULL)"""

    def _queues(self) -> str:
        d = self.dialect
        next_queue = f"""SELECT queue FROM {d.jobs}
            WHERE {IS_CLAIMABLE} {{after}} ORDER BY queue LIMIT 1"""
        after = "AND queue > queues.queue"
        return f"""queues(queue) AS (
            SELECT * FROM ({next_queue.format(after="")}) AS first
            UNION ALL
            SELECT ({next_queue.format(after=after)}) FROM queues WHERE queue IS NOT NULL)"""

    def _candidates(self, *, suspects: bool) -> tuple[str, str]:
        """Return where a claim finds its jobs: a table and a condition.

        That of suspects does not imply the claim index's, or a planner may walk all due jobs for
        them. A worker that runs one has no more.
        """
        d = self.dialect
        if not suspects:
            return d.jobs, f"{IS_CLAIMABLE} AND {_UNSUSPECTED}"
        table = f"{d.jobs} {d.by_suspicion}"
        runs_one = f"SELECT 1 FROM {table} WHERE {_SUSPECTED} AND locked_by = :worker::uuid"
        claimable = f"{_SUSPECTED} AND status NOT IN {_NOT_CLAIMABLE}"
        return table, f"{claimable} AND NOT EXISTS ({runs_one})"

    def _due(
        self,
        columns: str,
        topics: str,
        priority: str,
        floor: str,
        last: str,
        *,
        suspects: bool = False,
    ) -> str:
        """Return the due jobs of one priority, best first: one stretch of the claim index.

        ``IS TRUE`` keeps the topics a subplan, which PostgreSQL hashes. A bare IN becomes a nested
        loop over all topics for each job, because sessions have hash joins off.
        """
        d = self.dialect
        table, claimable = self._candidates(suspects=suspects)
        return f"""SELECT {columns} FROM {table}
            WHERE queue = :queue::text AND {claimable} AND priority = {priority}
              AND (next_run_at, id) > ({floor}, {last})
              AND next_run_at <= {d.now} AND (topic IN ({topics})) IS TRUE
            ORDER BY next_run_at, id LIMIT :most::int {d.skip_locked}"""

    def _floor(self, at: str, claimed: str, walked: str) -> str:
        """Return the instant that a priority's stretch begins at; see ``floors.Level``."""
        d = self.dialect
        ago = f"{d.now} - {d.seconds(claimed)}", f"{d.now} - {d.seconds(walked)}"
        return f"{d.greatest}({d.least}({at}, {ago[0]}), {ago[1]})"

    def _claim(self, *, suspects: bool = False) -> Sql:
        """Return the claim: pick, then lease, in one statement.

        MATERIALIZED is correctness: a planner that re-runs the LIMIT for each outer row would
        claim more than was asked for. The UPDATE's guard says "claimable" in words that do not
        imply the claim index's condition, or a planner that knows a small table looks the picked
        jobs up there, where an id cannot be looked up. All priorities are visited: the known ones
        from their floors, and every other that is found in the gaps between them. Only the
        policies of topics that were picked are joined with the jobs: that is a nested loop too.
        """
        d = self.dialect

        def highest(above: str, below: str) -> str:
            return f"""(SELECT priority FROM {d.jobs} WHERE queue = :queue::text AND {IS_CLAIMABLE}
                    AND priority < {above} AND priority > {below} ORDER BY priority DESC LIMIT 1)"""

        levels = f"""fresh(priority, below) AS (
                SELECT found.priority, gap.below
                FROM unnest(:above::int[], :below::int[]) AS gap(above, below)
                CROSS JOIN LATERAL {highest("gap.above", "gap.below")} AS found
                UNION ALL
                SELECT found.priority, fresh.below FROM fresh
                CROSS JOIN LATERAL {highest("fresh.priority", "fresh.below")} AS found),
            levels AS MATERIALIZED (
                SELECT l_priority, {self._floor("l_at", "l_claimed", "l_walked")} AS l_from, l_id
                FROM {d.rows_of(LEVEL)}
                UNION ALL
                SELECT fresh.priority, '-infinity', '{LOWEST_ID}' FROM fresh
                ORDER BY 1 DESC)"""
        columns = "id AS picked_id, topic AS picked_topic"
        ours = "SELECT t_topic FROM topics"
        due = self._due(columns, ours, "l_priority", "l_from", "l_id", suspects=suspects)
        return d.sql(
            f"""WITH RECURSIVE topics AS MATERIALIZED ({d.records(":topics", TOPIC)}), {levels},
                picked AS MATERIALIZED (SELECT due.picked_id, due.picked_topic FROM levels
                    CROSS JOIN LATERAL ({due}) AS due LIMIT :most::int),
                policies AS MATERIALIZED (SELECT * FROM topics
                    WHERE (t_topic IN (SELECT picked_topic FROM picked)) IS TRUE)
            UPDATE {d.jobs} AS j {d.by_id} SET {_set(_lease_grant(d))}
            FROM picked, policies
            WHERE {d.same_id("j.id", "picked_id")} AND j.topic = t_topic
              AND j.status NOT IN {_NOT_CLAIMABLE}
            RETURNING {_assigned(d, {})}""",
            LEVEL,
        )

    # -- SQLite: a claim of one priority in two statements, each of them a single step ------------
    #
    # It has no LATERAL, and a row that RETURNING answers with is a step, which has to wait for
    # Python's lock. One transaction holds the write lock over both, so nobody comes in between.

    # Nor does it know that a worker may have a thousand topics, and would compare each job with
    # each of them. So it hears their names only, and what a job leaves to its topic is filled in by
    # whoever asks: in the picked rows, and as parameters of the claim.

    def _pick(self, *, suspects: bool = False) -> Sql:
        """Return what a claim will have been, but for its topics' policies, as one JSON text."""
        d = self.dialect
        length = " + ".join(f"coalesce(length({name}), 0)" for name in LONG_COLUMNS)
        short = f"{length} <= {LONG_TEXT}"
        written = {"lease_token": d.next_token, "attempts": "attempts + 1"}
        written |= {name: f"nullif(hex({name}), '')" for name in ASSIGNED_IDS}
        written |= {name: f"CASE WHEN {short} THEN {name} END" for name in LONG_COLUMNS}
        floor = self._floor(":l_at", ":l_claimed", ":l_walked")
        ours = f"SELECT e.value FROM {d.elements(':names')}"
        due = self._due("*", ours, ":l_priority", floor, ":l_id", suspects=suspects)
        sql = d.sql(
            f"SELECT json_group_array(json_array({_assigned(d, written)})) FROM ({due}) AS due"
        )
        return replace(sql, unpack=_decode_assignments)

    def _claim_picked(self) -> Sql:
        """Return the claim of picked jobs whose topics have the same policy."""
        d = self.dialect
        return d.sql(
            f"""UPDATE {d.jobs} AS j {d.by_id} SET {_set(_lease_grant(d, ":"))}
            FROM {d.rows_of(JOB)}
            WHERE {d.same_id("j.id", "r.job_id")} AND j.status NOT IN {_NOT_CLAIMABLE}""",
            JOB,
            counted=True,
        )

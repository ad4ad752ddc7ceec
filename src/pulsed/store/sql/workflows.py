"""The statements of workflows: checkpoints, signals, and the protocol of waking.

Two last children that each look before the other has committed would leave their parent asleep, and
so would a look in the very statement that waited for the parent's lock: it sees what was there
before it waited. So whoever ends a job *locks* first those who may wait for it, whatever their
status, and *looks* in a statement of its own; and whoever suspends itself does so under its own
row's lock, and looks once more in the statement after that. See docs/adr for the whole argument.
"""

from __future__ import annotations

from pulsed.model.job import Status
from pulsed.model.lifecycle import LIVING, REPLAYABLE
from pulsed.model.workflow import FAILED_CHILD
from pulsed.store.sql.dialect import FENCE, HAS_WAITED, Dialect
from pulsed.store.sql.jobs import (
    IS_CLAIMABLE,
    IS_LIVING,
    JOB,
    LEASE,
    REPORTED,
    SUCCESS,
    end_of_run,
    has_living_children,
    of_jobs,
    success,
    words,
)
from pulsed.store.sql.statement import Sql

CHECKPOINT_COLUMNS = """name, nth, seq, kind, state, input_hash, value::text, error, tries, until,
    started_at, ended_at"""

IN_ORDER = "seq, kind, name, nth"

OUTCOME_COLUMNS = "id, topic, status, result::text, last_error AS error"

CHECKPOINT = """job_id uuid, token bigint, worker uuid, name text, nth int, seq int, kind text,
    state text, input_hash text, value text, error text, tries int, took float8"""

SUSPENSION = """job_id uuid, token bigint, worker uuid, kind text, wait_key text, wait_job uuid,
    enough int, too_many int, delay float8, until timestamptz"""

# Written so that no planner takes the index of claimable jobs for it, and walks through that.
_IS_WAITING = f"j.status NOT IN {words(tuple(one for one in Status if one is not Status.WAITING))}"

# Children whom the end of their parent concerns: of a failed one, not those that outlive it.
_CONCERNED = "AND (j.status = 'CANCELLED' OR c.outlives IS NULL)"

# …and who have not been told yet.
_UNTOLD = f"{_CONCERNED} AND NOT (c.status = 'RUNNING' AND c.cancel_requested)"


def _has_come(d: Dialect) -> str:
    """Return whether what ``j`` waits for is there: a sleeper waits for nothing but its time."""

    # One status at a time: of a list PostgreSQL makes a filter, and goes through all children. As
    # a subquery, or a planner may take an index of jobs in that status, whoever their parents are.
    def children(status: Status) -> str:
        return f"""FROM {d.jobs} AS c {d.by_family}
                WHERE {d.same_id("c.parent_id", "j.id")} AND c.parent_step = j.wait_key
                  AND c.status = (SELECT '{status}')"""

    def number(statuses: tuple[Status, ...]) -> str:
        return " + ".join(f"(SELECT count(*) {children(status)})" for status in statuses)

    living = " OR ".join(f"EXISTS (SELECT 1 {children(status)})" for status in LIVING)
    # Counted only where a number decides, for thousands of children are looked at with every
    # batch: a CASE stops at what is true, where SQLite works out both sides of an OR.
    fan_out = f"""CASE WHEN NOT ({living}) THEN {d.true}
                WHEN j.wait_too_many IS NOT NULL AND {number(FAILED_CHILD)} >= j.wait_too_many
                THEN {d.true}
                WHEN j.wait_enough IS NOT NULL AND {number((Status.SUCCEEDED,))} >= j.wait_enough
                THEN {d.true} ELSE {d.false} END"""
    signal = f"""EXISTS (SELECT 1 FROM {d.signals} AS s
                WHERE s.job_id = j.id AND s.name = j.wait_key AND s.consumed_at IS NULL)"""
    job = f"""NOT EXISTS (SELECT 1 FROM {d.jobs} AS t {d.by_id}
                WHERE {d.same_id("t.id", "j.wait_job")} AND t.{IS_LIVING})"""
    return f"""CASE j.wait_kind WHEN 'FAN_OUT' THEN {fan_out} WHEN 'SIGNAL' THEN {signal}
                WHEN 'JOB' THEN {job} ELSE {d.false} END"""


def _is_aimless(d: Dialect) -> str:
    """Return whether ``j``, which is WAITING, does not say what could ever wake it."""
    return f"""CASE WHEN j.wait_kind IN ('FAN_OUT', 'SIGNAL') THEN j.wait_key IS NULL
                WHEN j.wait_kind = 'JOB' THEN j.wait_job IS NULL
                WHEN j.wait_kind = 'SLEEP' THEN j.next_run_at >= {d.forever} ELSE 1 = 1 END"""


class WorkflowStatements:
    """The statements of one dialect, prepared once."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = d = dialect
        jobs = f"{d.jobs} AS j {d.by_id}"
        this_job = d.same_id("j.id", "r.job_id")
        held = f"{this_job} AND {FENCE}"

        # -- checkpoints ----------------------------------------------------------------------

        self.read_checkpoints = d.sql(
            f"""SELECT {CHECKPOINT_COLUMNS} FROM {d.checkpoints} WHERE job_id = :job::uuid
            ORDER BY {IN_ORDER}"""
        )
        # A page is chosen by what is small: of the values, which may be large, only its own are
        # read. Not by a join: a planner that believes in short histories looks up by the job alone.
        value = f"""(SELECT s.value FROM {d.checkpoints} AS s
                WHERE s.job_id = page.job_id AND s.name = page.name AND s.nth = page.nth)"""
        self.read_some_checkpoints = d.sql(
            f"""SELECT {CHECKPOINT_COLUMNS.replace("value", value)}
            FROM (SELECT job_id, name, nth, seq, kind, state, input_hash, error, tries, until,
                started_at, ended_at FROM {d.checkpoints} WHERE job_id = :job::uuid
                ORDER BY {IN_ORDER} LIMIT :most::int OFFSET :skip::int) AS page
            ORDER BY {IN_ORDER}"""
        )
        self.read_generation = d.sql(
            f"SELECT coalesce(generation, 0) FROM {d.jobs} WHERE id = :job::uuid"
        )

        # Write what steps came to, under the leases of their runs. What is decided stays so.
        self.record = d.sql(
            f"""INSERT INTO {d.checkpoints} AS s (job_id, name, nth, seq, kind, state, input_hash,
                value, error, tries, started_at, ended_at, lease_token)
            SELECT r.job_id, r.name, r.nth, r.seq, r.kind, r.state, r.input_hash, r.value::json,
                r.error, r.tries, {d.now} - {d.seconds("r.took")}, {d.now}, r.token
            FROM {d.rows_of(CHECKPOINT, lock="held")} WHERE true
            ON CONFLICT (job_id, name, nth) DO UPDATE SET state = excluded.state,
                value = excluded.value, error = excluded.error, tries = excluded.tries,
                ended_at = excluded.ended_at, lease_token = excluded.lease_token
            WHERE s.state = 'OPEN'""",
            CHECKPOINT,
            counted=True,
        )

        # What a try of the same write has left, if its answer was lost on the way.
        self.recorded = d.sql(
            f"""SELECT lease_token FROM {d.checkpoints}
            WHERE job_id = :job::uuid AND name = :name::text AND nth = :nth::int
              AND state <> 'OPEN'"""
        )

        self.read_checkpoint = d.sql(
            f"""SELECT {CHECKPOINT_COLUMNS}, coalesce(until <= {d.now}, {d.false})
            FROM {d.checkpoints}
            WHERE job_id = :job::uuid AND name = :name::text AND nth = :nth::int"""
        )

        # Hold a run's job for the rest of the transaction; no row: its lease is lost.
        self.hold = d.sql(f"SELECT r.job_id FROM {d.rows_of(LEASE, lock='held')}", LEASE)

        # -- suspending -----------------------------------------------------------------------

        # One that was asked to stop does not wait any more, but ends: that is for ``settle``.
        suspended = REPORTED | {
            "kind": "'WAITING'", "result": "NULL::json", "error": "NULL::text",
            "until": "r.until", "final": "1 = 0",
        }  # fmt: skip
        self.suspend = d.sql(
            f"""UPDATE {jobs} SET {end_of_run(d, suspended)},
                wait_kind = r.kind, wait_key = r.wait_key, wait_job = r.wait_job,
                wait_enough = r.enough, wait_too_many = r.too_many
            FROM {d.rows_of(SUSPENSION, lock="wait")} WHERE {held} AND NOT j.cancel_requested
            RETURNING id, lease_token""",
            SUSPENSION,
        )

        # The beginning of their waits. It is our own transaction that has made them WAITING.
        self.open_waits = d.sql(
            f"""INSERT INTO {d.checkpoints} AS s (job_id, name, nth, seq, kind, state, input_hash,
                tries, until, started_at, lease_token)
            SELECT r.job_id, r.name, r.nth, r.seq, r.kind, 'OPEN', r.input_hash, r.tries,
                nullif(j.next_run_at, {d.forever}), {d.now}, r.token
            FROM {d.rows_of(CHECKPOINT)}, {jobs}
            WHERE {this_job} AND {_IS_WAITING} AND j.lease_token = r.token
            ON CONFLICT (job_id, name, nth) DO UPDATE SET until = excluded.until
            WHERE s.state = 'OPEN'""",
            CHECKPOINT,
            counted=True,
        )

        # -- waking ---------------------------------------------------------------------------

        self.settle_children = self._settle_children()
        self.parents = d.sql(
            f"SELECT DISTINCT j.parent_id FROM {jobs}, {d.rows_of(JOB)} WHERE {this_job}", JOB
        )

        # Jobs and their parents, in the order that HAS_WAITED is about.
        self.lock_families = d.sql(
            f"""SELECT k.id FROM (SELECT f.id, max(f.above) AS above FROM (
                    SELECT r.job_id AS id, 0 AS above FROM {d.rows_of(JOB)}
                    UNION ALL
                    SELECT j.parent_id, 1 FROM {d.rows_of(JOB)}, {jobs}
                    WHERE {this_job}) AS f GROUP BY f.id) AS f
            JOIN {d.jobs} AS k ON {d.same_id("k.id", "f.id")}
            ORDER BY f.above = 1 OR k.{HAS_WAITED}, k.id {d.for_update_of("k")}""",
            JOB,
        )
        self.lock = d.sql(
            f"SELECT r.job_id FROM {d.rows_of(JOB, lock='wait')}",
            JOB,
        )
        self.lock_free = d.sql(f"SELECT r.job_id FROM {d.rows_of(JOB, lock='skip')}", JOB)
        self.with_parents = d.sql(
            f"""SELECT j.id, (SELECT p.id FROM {d.jobs} AS p {d.by_id}
                WHERE {d.same_id("p.id", "j.parent_id")})
            FROM {jobs}, {d.rows_of(JOB)} WHERE {this_job}""",
            JOB,
        )
        self.waiters = d.sql(
            f"""SELECT j.id, j.wait_job FROM {d.jobs} AS j
            WHERE {d.id_among("j.wait_job", f"SELECT r.job_id FROM {d.rows_of(JOB)}")}
              AND j.{IS_LIVING}""",
            JOB,
        )

        self.wake = d.sql(
            f"""UPDATE {jobs} SET status = 'PENDING', next_run_at = {d.now},
                updated_at = {d.now}
            FROM {d.rows_of(JOB)} WHERE {this_job} AND {_IS_WAITING} AND {_has_come(d)}
            RETURNING queue""",
            JOB,
        )

        # -- waiting for another job ----------------------------------------------------------

        # Two transactions: whoever sees that a job is watched sees by whom.
        self.about_to_wait = d.sql(
            f"""UPDATE {jobs} SET wait_job = :target::uuid
            FROM {d.rows_of(LEASE, lock="wait")} WHERE {held} RETURNING id""",
            LEASE,
        )
        self.watch = d.sql(
            f"""UPDATE {d.jobs} SET watched = {d.true}
            WHERE id = :target::uuid AND {IS_LIVING} RETURNING {OUTCOME_COLUMNS}"""
        )
        self.outcomes = d.sql(
            f"SELECT {OUTCOME_COLUMNS} FROM {jobs}, {d.rows_of(JOB)} WHERE {this_job}", JOB
        )

        # -- signals --------------------------------------------------------------------------

        # By its job as well: the index of a job's signals has ids too, but last.
        this_signal = "id = :id::uuid AND job_id = :job::uuid AND name = :name::text"
        self.lock_status = d.sql(
            f"SELECT status FROM {d.jobs} WHERE id = :job::uuid {d.for_update}"
        )
        self.send = d.sql(
            f"""INSERT INTO {d.signals} (id, job_id, name, payload, sent_at)
            VALUES (:id::uuid, :job::uuid, :name::text, :payload::json, {d.clock})
            ON CONFLICT DO NOTHING"""
        )
        self.sent = d.sql(f"SELECT 1 FROM {d.signals} WHERE {this_signal}")
        self.oldest_signal = d.sql(
            f"""SELECT id, payload::text FROM {d.signals}
            WHERE job_id = :job::uuid AND name = :name::text AND consumed_at IS NULL
            ORDER BY sent_at, id LIMIT 1"""
        )
        self.is_past = d.sql(f"SELECT :instant::timestamptz <= {d.now}")
        self.consume = d.sql(
            f"""UPDATE {d.signals} SET consumed_at = {d.now}
            WHERE {this_signal} AND consumed_at IS NULL"""
        )

        # -- the end of a parent --------------------------------------------------------------

        # It ended without success: its children have to be told, by whoever comes first.
        self.mark_cascades = d.sql(
            f"""UPDATE {jobs} SET cascades = {d.true} FROM {d.rows_of(JOB)}
            WHERE {this_job} AND {has_living_children(d, _CONCERNED)} RETURNING id""",
            JOB,
        )
        self.pick_cascades = d.sql(
            f"""SELECT id FROM {d.jobs} WHERE cascades IS NOT NULL
            ORDER BY id LIMIT :most::int {d.skip_locked}"""
        )
        # Locked ones are being ended by somebody else: they are found again, or not. They come in
        # no order: for that of the ids, a planner that knows large families walks the whole table.
        self.untold_children = d.sql(
            f"""SELECT c.id FROM {d.jobs} AS c {d.by_family}
            JOIN {jobs} ON {d.same_id("j.id", "c.parent_id")}
            WHERE c.parent_id = :parent::uuid AND c.{IS_LIVING} {_UNTOLD}
            LIMIT :most::int {d.skip_locked_of("c")}"""
        )
        self.unmark_cascades = d.sql(
            f"""UPDATE {jobs} SET cascades = NULL FROM {d.rows_of(JOB)}
            WHERE {this_job} AND NOT {has_living_children(d, _UNTOLD)}""",
            JOB,
            counted=True,
        )

        # -- what must never be --------------------------------------------------------------

        # A waker commits with what it wakes for, so no snapshot has a job that waits for what is
        # there. One whose deadline has passed is due, whatever it waits for. Those without one come
        # first, because nothing but a wake-up would ever let them go on.
        self.audit_waits = d.sql(
            f"""SELECT count(*) FILTER (WHERE aimless), count(*) FILTER (WHERE NOT aimless AND come)
            FROM (SELECT {_is_aimless(d)} AS aimless, {_has_come(d)} AS come
                FROM (SELECT id, status, next_run_at, wait_kind, wait_key, wait_job, wait_enough,
                        wait_too_many
                    FROM {d.jobs}
                    WHERE queue = :queue::text AND {IS_CLAIMABLE} AND priority = :priority::int
                      AND next_run_at > {d.now}
                    ORDER BY next_run_at DESC, id DESC LIMIT :most::int) AS j
                WHERE j.status = 'WAITING') AS waiting"""
        )
        self.audit_cascades = d.sql(
            f"""SELECT count(*) FROM {d.jobs} AS j WHERE j.cascades IS NOT NULL
                AND coalesce(j.completed_at, {d.now}) < {d.now} - {d.seconds(":slack::float8")}
                AND {has_living_children(d, _UNTOLD)}"""
        )

        # -- replays --------------------------------------------------------------------------

        self.forget_steps = d.sql(f"DELETE FROM {d.checkpoints} WHERE {of_jobs(d)}", JOB)
        self.forget_signals = d.sql(f"DELETE FROM {d.signals} WHERE {of_jobs(d)}", JOB)
        # A failure that the code has caught, and gone on from, is a part of its way: if it came
        # out otherwise now, the steps after it would not be those that are stored.
        failed = f"""{of_jobs(d)} AND s.state IN ('FAILED', 'TIMED_OUT')
              AND NOT EXISTS (SELECT 1 FROM {d.checkpoints} AS later
                WHERE {d.same_id("later.job_id", "s.job_id")} AND later.kind <> 'VERSION'
                  AND later.seq > s.seq AND later.started_at >= s.ended_at)"""
        self.forget_failed_steps = d.sql(
            f"DELETE FROM {d.checkpoints} AS s WHERE {failed} AND s.kind <> 'FAN_OUT'", JOB
        )
        self.reopen_fan_outs = d.sql(
            f"""UPDATE {d.checkpoints} AS s SET state = 'OPEN', value = NULL, error = NULL,
                until = NULL, ended_at = NULL
            WHERE {failed} AND s.kind = 'FAN_OUT'""",
            JOB,
        )
        family = """s.name || '|' || s.nth
                || CASE WHEN j.generation > 0 THEN '|' || j.generation ELSE '' END"""
        # Of fan-outs that are not decided, and of those that had not even come to their wait.
        generation = """CASE WHEN j.generation > 0 THEN c.parent_step LIKE '%|%|' || j.generation
                ELSE c.parent_step NOT LIKE '%|%|%' END"""
        self.unsuccessful_children = d.sql(
            f"""SELECT c.id FROM {d.rows_of(JOB)}
            JOIN {jobs} ON {this_job}
            JOIN {d.jobs} AS c {d.by_family} ON {d.same_id("c.parent_id", "j.id")}
                AND c.status IN {words(REPLAYABLE)} AND {generation}
            WHERE NOT EXISTS (SELECT 1 FROM {d.checkpoints} AS s
                WHERE {d.same_id("s.job_id", "j.id")} AND s.kind = 'FAN_OUT' AND s.state <> 'OPEN'
                  AND c.parent_step = {family})""",
            JOB,
        )

    def _settle_children(self) -> Sql:
        """Return the end of runs that succeeded, of jobs that have never waited.

        Their parents are locked behind it: PostgreSQL answers with those that wait, and how many
        runs have ended.
        """
        d = self.dialect
        if not d.answers:
            return d.sql(success(d), SUCCESS, counted=True)
        return d.sql(
            f"""WITH ended AS ({success(d)} RETURNING j.parent_id),
                parents AS MATERIALIZED (SELECT p.id, p.status FROM {d.jobs} AS p
                    WHERE {d.id_among("p.id", "SELECT DISTINCT parent_id FROM ended")}
                    ORDER BY p.id {d.for_update})
            SELECT (SELECT count(*) FROM ended),
                ARRAY(SELECT id FROM parents WHERE status = 'WAITING')""",
            SUCCESS,
        )

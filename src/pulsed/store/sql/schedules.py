"""The statements on schedules.

A fire moves the cursors first, each guarded against concurrent changes (its old value, the
revision, the state), and inserts the jobs of the schedules that matched, in one transaction. Three
lines of defence keep an occurrence from becoming two jobs: that guard, the deterministic id, and
the unique index.
"""

from __future__ import annotations

from pulsed.model.job import Status
from pulsed.model.schedule import ScheduleState
from pulsed.store.sql.columns import JOB_COLUMNS
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import words
from pulsed.store.sql.prepared import StatementGroup, prepared

SCHEDULE_COLUMNS = """id, app, name, spec::text AS spec_text, state, error, anchor, next_run_at,
    last_occurrence, last_fired_at, missed, revision, created_at, updated_at,
    declared"""

NOT_ACTIVE = words(tuple(s for s in ScheduleState if s is not ScheduleState.ACTIVE))

DECLARED = """new_id uuid, its_name text, its_spec text, its_state text, its_anchor timestamptz,
    its_cursor timestamptz"""

CHANGED = """schedule uuid, old_revision bigint, its_spec text, its_state text,
    its_anchor timestamptz, its_cursor timestamptz"""

NAMED = "its_name text"

SCHEDULE = "schedule uuid"

CURSOR = """schedule uuid, old_cursor timestamptz, old_revision bigint, new_cursor timestamptz,
    latest timestamptz, passed bigint, fired bool"""

UNFINISHED = (Status.PENDING, Status.RUNNING, Status.RETRYING, Status.WAITING)

# A page in the order of the unique index.
_LISTED = """(app, name) > (:after_app::text, :after_name::text)
              AND state = coalesce(:state::text, state)
              AND coalesce(next_run_at < :due_before::timestamptz,
                :due_before::timestamptz IS NULL)
            ORDER BY app, name LIMIT :most::int"""


class ScheduleStatements(StatementGroup):
    """Schedules: put, declared, fired, and read."""

    @prepared()
    def insert(self, d: Dialect) -> str:
        """Insert a schedule if its name is free: two processes may declare the same one at once."""
        return f"""INSERT INTO {d.schedules} (id, app, name, spec, declared, state, anchor,
                next_run_at, created_at, updated_at)
            VALUES (:id::uuid, :app::text, :name::text, :spec::json, :declared::bool, :state::text,
                :anchor::timestamptz, :cursor::timestamptz, {d.now}, {d.now})
            ON CONFLICT (app, name) DO NOTHING RETURNING {SCHEDULE_COLUMNS}"""

    @prepared()
    def update(self, d: Dialect) -> str:
        """Change a schedule, but only the revision that was read."""
        return f"""UPDATE {d.schedules} SET spec = :spec::json, declared = :declared::bool,
                state = :state::text, error = NULL,
                anchor = :anchor::timestamptz, next_run_at = :cursor::timestamptz,
                revision = revision + 1, updated_at = {d.now}
            WHERE id = :id::uuid AND revision = :revision::bigint
            RETURNING {SCHEDULE_COLUMNS}"""

    @prepared(NAMED)
    def read_named(self, d: Dialect) -> str:
        """Read those of a program's schedules that exist."""
        return f"""SELECT {SCHEDULE_COLUMNS} FROM {d.schedules} AS s, {d.rows_of(NAMED)}
            WHERE s.app = :app::text AND {d.same_id("s.name", "r.its_name")}"""

    @prepared(DECLARED)
    def insert_declared(self, d: Dialect) -> str:
        """Insert a program's declared schedules, in the order of names, as all programs do."""
        return f"""INSERT INTO {d.schedules} (id, app, name, spec, declared, state, anchor,
                next_run_at, created_at, updated_at)
            SELECT r.new_id, :app::text, r.its_name, r.its_spec::json, {d.true}, r.its_state,
                r.its_anchor, r.its_cursor, {d.now}, {d.now}
            FROM {d.rows_of(DECLARED)} WHERE {d.true}
            ON CONFLICT (app, name) DO NOTHING RETURNING name"""

    @prepared(CHANGED)
    def update_declared(self, d: Dialect) -> str:
        """Change a program's declared schedules, locked in the order of ids, as a fire does."""
        return f"""UPDATE {d.schedules} AS s SET spec = r.its_spec::json, declared = {d.true},
                state = r.its_state, error = NULL, anchor = r.its_anchor,
                next_run_at = r.its_cursor, revision = revision + 1, updated_at = {d.now}
            FROM {d.rows_of(CHANGED, lock="wait", table=d.schedules)}
            WHERE {d.same_id("s.id", "r.schedule")} AND s.revision = r.old_revision
            RETURNING name"""

    @prepared()
    def set_state(self, d: Dialect) -> str:
        """Pause or resume a schedule."""
        return f"""UPDATE {d.schedules} SET state = :state::text, error = NULL,
                next_run_at = :cursor::timestamptz, revision = revision + 1, updated_at = {d.now}
            WHERE id = :id::uuid AND revision = :revision::bigint
            RETURNING {SCHEDULE_COLUMNS}"""

    @prepared()
    def set_error(self, d: Dialect) -> str:
        """Put a schedule into ERROR at the occurrence that failed, not at one fired since."""
        return f"""UPDATE {d.schedules} SET state = 'ERROR', error = :error::text,
                revision = revision + 1, updated_at = {d.now}
            WHERE id = :id::uuid AND revision = :revision::bigint
              AND (next_run_at = :cursor::timestamptz) IS TRUE
              AND state NOT IN {NOT_ACTIVE}"""

    @prepared()
    def delete(self, d: Dialect) -> str:
        """Remove a schedule."""
        return f"""DELETE FROM {d.schedules}
            WHERE app = :app::text AND name = :name::text RETURNING id"""

    @prepared()
    def get(self, d: Dialect) -> str:
        """Read a schedule that is about to be changed, and lock it."""
        return f"""SELECT {SCHEDULE_COLUMNS} FROM {d.schedules}
            WHERE app = :app::text AND name = :name::text {d.for_update}"""

    @prepared()
    def find(self, d: Dialect) -> str:
        """Read a schedule by its id."""
        return f"SELECT {SCHEDULE_COLUMNS} FROM {d.schedules} WHERE id = :id::uuid"

    @prepared()
    def read(self, d: Dialect) -> str:
        """Read a schedule by its name."""
        return f"""SELECT {SCHEDULE_COLUMNS} FROM {d.schedules}
            WHERE app = :app::text AND name = :name::text"""

    @prepared()
    def list(self, d: Dialect) -> str:
        """Read a page of the schedules of all apps."""
        return f"SELECT {SCHEDULE_COLUMNS} FROM {d.schedules} WHERE {_LISTED}"

    @prepared()
    def list_of_app(self, d: Dialect) -> str:
        """Read a page of those of one app."""
        return f"""SELECT {SCHEDULE_COLUMNS} FROM {d.schedules}
            WHERE app = :app::text AND {_LISTED}"""

    @prepared()
    def due(self, d: Dialect) -> str:
        """Read due schedules, the longest due first."""
        return f"""SELECT {SCHEDULE_COLUMNS} FROM {d.schedules}
            WHERE state = 'ACTIVE' AND next_run_at <= {d.now}
            ORDER BY next_run_at LIMIT :most::int"""

    @prepared()
    def next_due(self, d: Dialect) -> str:
        """Read the clock, and when the next schedule is due after skipping the first ``skip``."""
        return f"""SELECT {d.clock}, (SELECT next_run_at FROM {d.schedules}
            WHERE state = 'ACTIVE' AND next_run_at IS NOT NULL
            ORDER BY next_run_at LIMIT 1 OFFSET :skip::int)"""

    @prepared(CURSOR)
    def advance(self, d: Dialect) -> str:
        """Move cursors, each only if no concurrent fire, edit or pause has changed the schedule.

        The guards are worded so that they do not imply the condition of the index of due schedules:
        ten thousand may be due at one instant, and a plan that scans them for each row would take
        minutes.
        """
        return f"""UPDATE {d.schedules} AS s SET next_run_at = r.new_cursor,
                state = CASE WHEN r.new_cursor IS NULL THEN 'DONE' ELSE state END,
                last_occurrence = r.latest, missed = missed + r.passed,
                last_fired_at = CASE WHEN r.fired THEN {d.now} ELSE last_fired_at END,
                updated_at = CASE WHEN r.new_cursor IS NULL THEN {d.now} ELSE updated_at END
            FROM {d.rows_of(CURSOR, lock="wait", table=d.schedules)}
            WHERE {d.same_id("s.id", "r.schedule")}
              AND (s.next_run_at = r.old_cursor) IS TRUE AND s.revision = r.old_revision
              AND s.state NOT IN {NOT_ACTIVE}
            RETURNING id"""

    @prepared(counted=True)
    def prune(self, d: Dialect) -> str:
        """Remove schedules that have been done for long enough, each after the last of its jobs.

        A declared one stays: its program would create it anew at the next start, and an instant
        that is past would be fired a second time. A locked row is skipped: it is about to change.
        There is no index for this scan, which is made once a minute.
        """
        jobs_left = f"""coalesce(EXISTS (SELECT 1 FROM {d.jobs} AS j
                WHERE {d.same_id("j.schedule_id", "s.id")} AND j.schedule_id IS NOT NULL),
                {d.false})"""
        done = f"""SELECT s.id FROM {d.schedules} AS s
            WHERE s.state = 'DONE' AND NOT s.declared
              AND s.updated_at < {d.now} - {d.seconds(":age::float8")} AND NOT {jobs_left}
            LIMIT :most::int {d.skip_locked}"""
        return f"DELETE FROM {d.schedules} WHERE {d.id_among('id', done)}"

    @prepared(SCHEDULE)
    def unfinished(self, d: Dialect) -> str:
        """Read which schedules have an unfinished job; worded as the condition of its index."""
        return f"""SELECT DISTINCT schedule_id FROM {d.jobs} AS j, {d.rows_of(SCHEDULE)}
            WHERE {d.same_id("j.schedule_id", "r.schedule")} AND j.schedule_id IS NOT NULL
              AND j.status IN {words(UNFINISHED)}"""

    @prepared()
    def fires(self, d: Dialect) -> str:
        """Read a page of the jobs that a schedule made, the latest first.

        A fire is a job; its history is the jobs. Each stands at its occurrence, a run out of turn
        at its submission. The first are a range of the index of occurrences; the others are its
        NULLs, and as many as were asked for.
        """
        page = _fires(d, "schedule_id = :schedule::uuid", is_page=True)
        return f"""SELECT {JOB_COLUMNS} FROM ({page}) AS page
            JOIN {self.jobs} ON {d.same_id("j.id", "page.its_id")}
            ORDER BY moment DESC, id DESC LIMIT :most::int"""

    @prepared(SCHEDULE)
    def last_fires(self, d: Dialect) -> str:
        """Read the last fires of each schedule as one text: of each its id, status and moment."""
        fires = _fires(d, "schedule_id = r.schedule", is_page=False)
        mark = f"{d.id_digits} || ',' || status || ',' || ({d.number('moment')})::text"
        return f"""SELECT s.id, (SELECT {d.all_texts(mark)} FROM (
                SELECT its_id AS id, its_status AS status, moment FROM ({fires}) AS found
                ORDER BY moment DESC, its_id DESC LIMIT :most::int) AS latest)
            FROM {d.rows_of(SCHEDULE)} CROSS JOIN {d.schedules} AS s
            WHERE {d.same_id("s.id", "r.schedule")}"""


def _fires(d: Dialect, whose: str, *, is_page: bool) -> str:
    """Return the latest jobs of a schedule, some at occurrences and some at submissions."""
    at_occurrence = _fires_at(d, "occurrence", f"{whose} AND occurrence IS NOT NULL", is_page)
    out_of_turn = _fires_at(d, "submitted_at", f"{whose} AND occurrence IS NULL", is_page)
    return f"{at_occurrence} UNION ALL {out_of_turn}"


def _fires_at(d: Dialect, moment: str, which: str, is_page: bool) -> str:  # noqa: FBT001 - as above
    before = f"coalesce(:before::timestamptz, {d.forever})"
    page = f"AND {moment} <= {before} AND ({moment} < {before} OR id < :before_id::uuid)"
    order = "occurrence DESC" if moment == "occurrence" else "submitted_at DESC, id DESC"
    return f"""SELECT * FROM (SELECT id AS its_id, status AS its_status, {moment} AS moment
                FROM {d.jobs} WHERE {which} {page if is_page else ""}
                ORDER BY {order} LIMIT :most::int) AS {moment}s"""

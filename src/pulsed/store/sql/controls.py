"""The statements on controls, and on the rates that they permit."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.prepared import StatementGroup, prepared

CONTROL_COLUMNS = """scope, name, paused, paused_at, paused_by, declared::text AS declared,
    override::text AS override, updated_at"""

RATE_KEY = "its_key text"

RATE = "its_key text, its_tat timestamptz"


class ControlStatements(StatementGroup):
    """Controls: read, written and removed; and rates."""

    @prepared()
    def read_control(self, d: Dialect) -> str:
        """Read a control."""
        return f"""SELECT {CONTROL_COLUMNS} FROM {d.controls}
            WHERE scope = :scope::text AND name = :name::text"""

    @prepared()
    def lock_control(self, d: Dialect) -> str:
        """Read a control that is about to be changed, and lock it."""
        return f"""SELECT {CONTROL_COLUMNS} FROM {d.controls}
            WHERE scope = :scope::text AND name = :name::text {d.for_update}"""

    @prepared()
    def list_controls(self, d: Dialect) -> str:
        """Read a page of controls, in the order of the primary key."""
        return f"""SELECT {CONTROL_COLUMNS} FROM {d.controls}
            WHERE (scope, name) > (:after_scope::text, :after_name::text)
              AND scope = coalesce(:scope::text, scope)
            ORDER BY scope, name LIMIT :most::int"""

    @prepared()
    def count_controls(self, d: Dialect) -> str:
        """Count the controls, up to a bound."""
        return f"SELECT count(*) FROM (SELECT 1 FROM {d.controls} LIMIT :most::int) AS found"

    @prepared()
    def put_control(self, d: Dialect) -> str:
        """Write a control."""
        return f"""INSERT INTO {d.controls} AS c (scope, name, paused, paused_at, paused_by,
                declared, override, updated_at)
            VALUES (:scope::text, :name::text, :paused::bool,
                CASE WHEN :paused::bool THEN {d.now} END, :paused_by::text,
                :declared::json, :override::json, {d.now})
            ON CONFLICT (scope, name) DO UPDATE SET paused = excluded.paused,
                paused_at = CASE WHEN excluded.paused
                    THEN coalesce(c.paused_at, excluded.paused_at) END,
                paused_by = excluded.paused_by, declared = excluded.declared,
                override = excluded.override, updated_at = excluded.updated_at
            RETURNING {CONTROL_COLUMNS}"""

    @prepared()
    def remove_control(self, d: Dialect) -> str:
        """Remove a control that governs nothing any more."""
        return f"DELETE FROM {d.controls} WHERE scope = :scope::text AND name = :name::text"

    @prepared()
    def queue_usage(self, d: Dialect) -> str:
        """Read what a queue uses of its numbers: running jobs up to a bound, its rate, the time.

        There are at most as many leases as workers have slots.
        """
        return f"""SELECT (SELECT count(*) FROM (SELECT 1 FROM {d.jobs}
                    WHERE lease_until IS NOT NULL AND queue = :name::text
                    LIMIT :most::int) AS leased),
                (SELECT tat FROM {d.rates} WHERE scope = 'queue' AND key = :name::text),
                {d.clock}"""

    @prepared(RATE_KEY)
    def read_rates(self, d: Dialect) -> str:
        """Read the theoretical arrival times of rates."""
        return f"""SELECT t.key, t.tat FROM {d.rates} AS t, {d.rows_of(RATE_KEY)}
            WHERE t.scope = :scope::text AND {d.same_id("t.key", "r.its_key")}"""

    @prepared(RATE)
    def write_rates(self, d: Dialect) -> str:
        """Write theoretical arrival times; the caller holds the locks of their keys."""
        return f"""INSERT INTO {d.rates} (scope, key, tat)
            SELECT :scope::text, r.its_key, r.its_tat FROM {d.rows_of(RATE)} WHERE {d.true}
            ON CONFLICT (scope, key) DO UPDATE SET tat = excluded.tat"""

    @prepared(counted=True)
    def prune_rates(self, d: Dialect) -> str:
        """Remove rates that restrict nothing any more, because their instants have passed."""
        passed = f"""SELECT scope, key FROM {d.rates} WHERE tat < {d.now} - {d.seconds("60")}
            ORDER BY scope, key LIMIT :most::int {d.skip_locked}"""
        return f"DELETE FROM {d.rates} WHERE (scope, key) IN ({passed})"

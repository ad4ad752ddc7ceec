"""The audit log: entries written, read and removed."""

from __future__ import annotations

from collections.abc import Iterable

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.statement import Sql

AUDIT_COLUMNS = "id, at, actor, role, claimed, act, affected, detail"

_CONDITIONS = {
    "since": "at >= :since::timestamptz",
    "until": "at < :until::timestamptz",
    "before": "at <= :before::timestamptz AND (at < :before::timestamptz OR id < :before_id::uuid)",
    "actor": "(actor = :actor::text OR claimed = :actor::text)",
}


class AuditStatements(StatementGroup):
    """Entries of the audit log."""

    @prepared()
    def write_entry(self, d: Dialect) -> str:
        """Write an entry, unless an unacknowledged try has written it."""
        return f"""INSERT INTO {d.audit} ({AUDIT_COLUMNS})
            VALUES (:id::uuid, {d.now}, :actor::text, :role::text, :claimed::text, :act::text,
                    :affected::int, :detail::text)
            ON CONFLICT (id) DO NOTHING"""

    def read_entries(self, given: Iterable[str]) -> Sql:
        """Read entries, the newest first, under the conditions of the parameters given."""
        conditions = [_CONDITIONS[name] for name in given]
        return self.dialect.sql(
            f"""SELECT {AUDIT_COLUMNS} FROM {self.dialect.audit}
            WHERE {" AND ".join(conditions) or "true"}
            ORDER BY at DESC, id DESC LIMIT :most::int"""
        )

    @prepared()
    def trim_entries(self, d: Dialect) -> str:
        """Remove a batch of the entries that are too old or too many."""
        cutoff = f"{d.now} - {d.seconds(':age::float8')}"
        last_kept = f"(SELECT at FROM {d.audit} ORDER BY at DESC LIMIT 1 OFFSET :kept::int)"
        return f"""DELETE FROM {d.audit} WHERE id IN (
            SELECT id FROM {d.audit}
            WHERE at < {d.greatest}({cutoff}, coalesce({last_kept}, {cutoff}))
            ORDER BY at LIMIT :most::int)"""

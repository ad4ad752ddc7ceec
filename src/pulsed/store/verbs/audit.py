"""The audit log in the database: entries are written in the transaction of the act itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from pulsed.model.audit import (
    KEPT_ENTRIES,
    KEPT_SECONDS,
    LONGEST_DETAIL,
    LONGEST_NAME,
    AuditEntry,
    Operator,
    printable,
)
from pulsed.model.ids import new_job_id
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Row, Statement
from pulsed.store.verbs.script import Script, Verb, VerbKind

T = TypeVar("T")

COLUMNS = "at, actor, role, claimed, act, affected, detail"
REMOVED_AT_ONCE = 1_000


class ActResult(NamedTuple):
    """What an act did, for its entry. An act that affected nothing gets no entry."""

    affected: int
    detail: str


def audited(
    d: Dialect, verb: Verb[T], by: Operator | None, act: str, done: Callable[[T], ActResult]
) -> Verb[T]:
    """Return a verb that records what it did; without an operator, the verb as it was."""
    if by is None:
        return verb
    sql = d.sql(
        f"""INSERT INTO {d.audit} (id, {COLUMNS})
        VALUES (:id::uuid, {d.now}, :actor::text, :role::text, :claimed::text, :act::text,
                :affected::int, :detail::text)
        ON CONFLICT (id) DO NOTHING"""
    )
    # One id for all tries: a retry after an unacknowledged commit adds no second entry.
    values: dict[str, Any] = {"id": new_job_id(), "act": act}
    for name in ("actor", "role", "claimed"):
        values[name] = printable(getattr(by, name), LONGEST_NAME)

    def script() -> Script[T]:
        result = yield from verb.script()
        affected, detail = done(result)
        if affected:
            detail = printable(by.detail or detail, LONGEST_DETAIL)
            yield Statement(sql, values | {"affected": affected, "detail": detail})
        return result

    return replace(verb, kind=VerbKind.TRANSACTION, script=script)


def read(
    d: Dialect, *, limit: int, since: datetime | None, until: datetime | None, actor: str | None
) -> Verb[list[AuditEntry]]:
    """Read entries, the newest first."""
    conditions, params = ["true"], dict[str, Any](most=limit)
    if since is not None:
        conditions.append("at >= :since::timestamptz")
        params["since"] = since
    if until is not None:
        conditions.append("at < :until::timestamptz")
        params["until"] = until
    if actor is not None:
        conditions.append("(actor = :actor::text OR claimed = :actor::text)")
        params["actor"] = actor
    sql = d.sql(
        f"""SELECT {COLUMNS} FROM {d.audit} WHERE {" AND ".join(conditions)}
        ORDER BY at DESC, id DESC LIMIT :most::int"""
    )

    def script() -> Script[list[AuditEntry]]:
        return [_entry(d, row) for row in (yield Statement(sql, params))]

    return Verb("audit_log", VerbKind.READ, script)


def trim(d: Dialect) -> Script[None]:
    """Remove a batch of the entries that are too old or too many."""
    cutoff = f"{d.now} - {d.seconds(':age::float8')}"
    last_kept = f"(SELECT at FROM {d.audit} ORDER BY at DESC LIMIT 1 OFFSET :kept::int)"
    sql = d.sql(
        f"""DELETE FROM {d.audit} WHERE id IN (
            SELECT id FROM {d.audit}
            WHERE at < {d.greatest}({cutoff}, coalesce({last_kept}, {cutoff}))
            ORDER BY at LIMIT :most::int)"""
    )
    kept = KEPT_ENTRIES - 1
    yield Statement(sql, {"age": KEPT_SECONDS, "kept": kept, "most": REMOVED_AT_ONCE})


def _entry(d: Dialect, row: Row) -> AuditEntry:
    at, actor, role, claimed, act, affected, detail = row
    return AuditEntry(
        at=d.time(at),
        actor=actor,
        role=role,
        claimed=claimed,
        act=act,
        affected=affected,
        detail=detail,
    )

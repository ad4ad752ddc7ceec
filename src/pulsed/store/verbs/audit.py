"""The audit log in the database: entries are written in the transaction of the act itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from pulsed.model.audit import (
    KEPT_ENTRIES,
    KEPT_SECONDS,
    LONGEST_DETAIL,
    LONGEST_NAME,
    AuditEntry,
    AuditKey,
    Operator,
    printable,
)
from pulsed.model.ids import new_job_id
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reads import read_all
from pulsed.store.verbs.script import Script, Verb, VerbKind

T = TypeVar("T")

REMOVED_AT_ONCE = 1_000


class ActResult(NamedTuple):
    """What an act did, for its entry. An act that affected nothing gets no entry."""

    affected: int
    detail: str


def audited(
    engine: Engine, verb: Verb[T], by: Operator | None, act: str, done: Callable[[T], ActResult]
) -> Verb[T]:
    """Return a verb that records what it did; without an operator, the verb as it was."""
    if by is None:
        return verb
    # One id for all tries: a retry after an unacknowledged commit adds no second entry.
    values: dict[str, Any] = {"id": new_job_id(), "act": act}
    for name in ("actor", "role", "claimed"):
        values[name] = printable(getattr(by, name), LONGEST_NAME)

    def script() -> Script[T]:
        result = yield from verb.script()
        affected, detail = done(result)
        if affected:
            detail = printable(by.detail or detail, LONGEST_DETAIL)
            entry = values | {"affected": affected, "detail": detail}
            yield Statement(engine.audit_log.write_entry, entry)
        return result

    return structs.replace(verb, kind=VerbKind.TRANSACTION, script=script)


def read(
    engine: Engine,
    *,
    limit: int,
    since: datetime | None,
    until: datetime | None,
    before: AuditKey | None,
    actor: str | None,
) -> Verb[list[AuditEntry]]:
    """Read entries, the newest first."""
    asked: dict[str, Any] = {"since": since, "until": until, "actor": actor}
    if before is not None:
        asked["before"] = before.at
    given = {name: value for name, value in asked.items() if value is not None}
    params = given | {"most": limit}
    if before is not None:
        params["before_id"] = before.id
    query = Statement(engine.audit_log.read_entries(given), params)
    return read_all("audit_log", engine, query, decode.audit_entry)


def trim(engine: Engine) -> Script[None]:
    """Remove a batch of the entries that are too old or too many."""
    bounds = {"age": KEPT_SECONDS, "kept": KEPT_ENTRIES - 1, "most": REMOVED_AT_ONCE}
    yield Statement(engine.audit_log.trim_entries, bounds)

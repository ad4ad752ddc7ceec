"""Removing everything: jobs, schedules, tokens and all else that is stored."""

from __future__ import annotations

from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Script, VerbKind, verb


@verb(VerbKind.TRANSACTION)
def flush(d: Dialect) -> Script[None]:
    """Delete every row of users' data; the tables and their version stay."""
    for delete in d.emptying:
        yield Statement(delete, {})

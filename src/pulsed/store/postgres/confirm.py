"""A commit that waits for the standby, even when it has nothing to write.

Under synchronous replication, a COMMIT waits until the standby has its WAL; a commit without WAL
does not wait. So a call that finds its work done, by another caller or by an earlier attempt whose
commit was interrupted, would acknowledge rows that no standby may have. It writes an empty message
instead: its own commit then waits, and that covers all earlier WAL.
"""

from __future__ import annotations

from typing import TypeVar

from pulsed.store.sql.statement import Sql, Statement
from pulsed.store.verbs.script import Script, Verb, VerbKind

T = TypeVar("T")

_MESSAGE = "SELECT pg_logical_emit_message(true, 'pulsed', '')::text"

COMMIT = "COMMIT"
COMMIT_WRITTEN = f"{_MESSAGE} WHERE pg_current_xact_id_if_assigned() IS NULL; {COMMIT}"
"""Commits, and waits for the standby whether or not the transaction wrote anything."""

_CONFIRM = Statement(Sql(_MESSAGE, ()), {})


def confirmed(verb: Verb[T]) -> Verb[T]:
    """Return a verb whose answer waits for the standby, even without its own transaction."""
    if verb.kind is not VerbKind.SINGLE:
        return verb
    return verb.with_script(lambda: _confirmed(verb.script()))


def _confirmed(script: Script[T]) -> Script[T]:
    """After a statement that says that it changed no row, write an empty message."""
    statement = next(script)
    while True:
        rows = yield statement
        sql = statement.sql
        if (sql.counted or sql.counts_itself) and not rows[0][0]:
            yield _CONFIRM
        try:
            statement = script.send(rows)
        except StopIteration as finished:
            value: T = finished.value
            return value

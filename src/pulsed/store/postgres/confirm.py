"""A commit that waits for the standby, even when it has nothing to write.

Under synchronous replication, a COMMIT waits until the standby has its WAL; a commit without WAL
does not wait. So a call that finds its work done, by another caller or by an earlier attempt whose
commit was interrupted, would acknowledge rows that no standby may have. It writes an empty message
instead: its own commit then waits, and that covers all earlier WAL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pulsed.store.sql.statement import Rows, Sql, Statement
from pulsed.store.verbs.script import Verb, VerbKind

_MESSAGE = "SELECT pg_logical_emit_message(true, 'pulsed', '')::text"

COMMIT = "COMMIT"
COMMIT_WRITTEN = f"{_MESSAGE} WHERE pg_current_xact_id_if_assigned() IS NULL; {COMMIT}"
"""Commits, and waits for the standby whether or not the transaction wrote anything."""

CONFIRM = Statement(Sql(_MESSAGE, ()), {})


def found_done(verb: Verb[Any], statement: Statement, rows: Rows) -> bool:
    """Whether a statement that commits by itself says that it changed no row: CONFIRM follows."""
    sql = statement.sql
    counts = sql.counted or sql.counts_itself
    is_single = verb.kind is VerbKind.SINGLE and not verb.confirms_itself
    return counts and not rows[0][0] and is_single


def confirming(
    verb: Verb[Any], execute: Callable[[Statement], Rows]
) -> Callable[[Statement], Rows]:
    """Return what executes a verb's statements, and confirms those that found their work done."""

    def confirmed(statement: Statement) -> Rows:
        rows = execute(statement)
        if found_done(verb, statement, rows):
            execute(CONFIRM)
        return rows

    return confirmed


def aconfirming(
    verb: Verb[Any], execute: Callable[[Statement], Awaitable[Rows]]
) -> Callable[[Statement], Awaitable[Rows]]:
    """Do the same for a driver that is awaited."""

    async def confirmed(statement: Statement) -> Rows:
        rows = await execute(statement)
        if found_done(verb, statement, rows):
            await execute(CONFIRM)
        return rows

    return confirmed

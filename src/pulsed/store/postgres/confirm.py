"""A commit that waits for the standby, also when there was nothing left to write.

Under synchronous replication a COMMIT waits until the standby has its WAL; one without WAL waits
for nobody. So a call that finds its work done, by an earlier try whose commit was cut short or by
another caller, would vouch for rows that no standby may have. It writes an empty message instead:
its own commit then waits, and what is waited for includes everything that was there before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from pulsed.store.sql.statement import Sql, Statement
from pulsed.store.verbs.script import Kind, Script, Verb

T = TypeVar("T")

_MESSAGE = "SELECT pg_logical_emit_message(true, 'pulsed', '')::text"

COMMIT = "COMMIT"
COMMIT_WRITTEN = f"{_MESSAGE} WHERE pg_current_xact_id_if_assigned() IS NULL; {COMMIT}"
"""Commits, and waits for the standby whether or not the transaction has changed anything."""

_CONFIRM = Statement(Sql(_MESSAGE, ()), {})


def confirmed(verb: Verb[T]) -> Verb[T]:
    """Return a verb that has no transaction of its own so that its answer, too, was waited for."""
    if verb.kind is not Kind.SINGLE:
        return verb
    return replace(verb, script=lambda: _confirmed(verb.script()))


def _confirmed(script: Script[T]) -> Script[T]:
    """Behind a counted statement that changed nothing, write something."""
    statement = next(script)
    while True:
        rows = yield statement
        if statement.sql.counted and not rows[0][0]:
            yield _CONFIRM
        try:
            statement = script.send(rows)
        except StopIteration as finished:
            value: T = finished.value
            return value

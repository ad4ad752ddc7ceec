"""What can be taken out of a statement: conditions, locks, their order, MATERIALIZED, conflicts.

Each change leaves a valid statement with the same parameters, so that only behaviour can tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from tests.mutation.conditions import Condition, conditions


class Kind(Enum):
    """What was taken out: what protects most comes first, in runs and in the score."""

    FENCE = "fences and states"
    KEY = "keys, limits and controls"
    LOCK = "row locks"
    ORDER = "orders of locks"
    ADVISORY = "advisory locks"
    ONCE = "MATERIALIZED"
    CONFLICT = "ON CONFLICT"
    TRANSACTION = "transactions"
    CONDITION = "other conditions"


class Change(NamedTuple):
    """A part of a text, and what stands there without it."""

    start: int
    end: int
    what: str
    """The part as reports name it."""
    kind: Kind
    instead: str

    def made_in(self, text: str) -> str:
        """Return the text with this change."""
        return f"{text[: self.start]}{self.instead}{text[self.end :]}"


_FENCE = re.compile(
    r"status|locked_by|lease_token|lease_until|lease_ms|revision|cursor|\bstate\b|started_at"
    r"|cancel_requested|completed_at|consumed_at|wait_|expires_at|next_run_at|crashes|generation"
    r"|cascades|outlives|watched|last_worker|last_outcome|shared_lease|held_by|held_until|nth <="
    r"|prune_after|due_at"
)
_KEY = re.compile(r"\bkey|key_|limit_key|paused|scope|tat\b|g_begun|g_key|its_key|its_name")
_ALWAYS = {"true", "1"}
"""Conditions that only the grammar needs."""

_LOCK = re.compile(r"FOR (?:NO KEY )?UPDATE(?: OF \w+)?( SKIP LOCKED)?")
_ONCE = re.compile(r"(\w+)(?:\([^()]*\))? AS (MATERIALIZED)")
_ADVISORY = re.compile(r"pg_(?:try_)?advisory_xact_lock(?=\()")
_NESTED = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*?"
"""Text whose parentheses are closed in it."""
_CONFLICT = re.compile(
    rf"ON CONFLICT(?: \([^()]*\))? (DO NOTHING|DO UPDATE\b{_NESTED})\s*(?=RETURNING|\)|$)"
)
_ORDER = re.compile(
    r"ORDER BY (?:[^()]|\([^()]*\))*?\s(?=FOR (?:NO KEY )?UPDATE(?: OF \w+)?(?! OF| SKIP))"
    r"|ORDER BY u\.\w+(?=\) AS r)"
)

_BATCH = re.compile(
    r"\(WITH b AS MATERIALIZED \(SELECT .*? FROM json_each\(:rows\)\), l AS MATERIALIZED "
    r"\(SELECT \* FROM b WHERE likelihood\(\w+ IS NOT NULL, 0\.0001\)\) SELECT \* FROM l\)"
    r"|\(SELECT :r_\w+ AS \w+(?:, :r_\w+ AS \w+)*\)"
)
"""SQLite's rows of a batch, and of one that has a single row: a condition has one name in both."""


def changes(text: str) -> list[Change]:
    """Return all changes of a statement, in their order."""
    found = [*map(_of_condition, conditions(text)), *_locks(text), *_others(text)]
    return sorted(each for each in found if each.what not in _ALWAYS)


def kind_of(condition: str) -> Kind:
    """Return what a condition is about; the subqueries in it count by themselves."""
    own = _own_text(condition)
    if _FENCE.search(own):
        return Kind.FENCE
    return Kind.KEY if _KEY.search(own) else Kind.CONDITION


def _own_text(condition: str) -> str:
    shorter = re.sub(r"\((?=SELECT)[^()]*\)", "()", condition)
    return condition if shorter == condition else _own_text(shorter)


def _of_condition(found: Condition) -> Change:
    what = _BATCH.sub("(batch)", " ".join(found.text.split()))
    return Change(found.start, found.end, what, kind_of(found.text), f"({found.text} OR 1 = 1)")


def _locks(text: str) -> Iterator[Change]:
    for found in _LOCK.finditer(text):
        yield Change(*found.span(), found[0], Kind.LOCK, "")
        if found[1]:
            yield Change(*found.span(1), f"SKIP LOCKED of {found[0]}", Kind.LOCK, "")
    for found in _ORDER.finditer(text):  # a lock that is skipped is in no cycle of waits
        start = text.rindex("ORDER BY", 0, found.end())
        yield Change(
            start, found.end(), " ".join(text[start : found.end()].split()), Kind.ORDER, ""
        )
    for found in _ADVISORY.finditer(text):
        yield Change(*found.span(), found[0], Kind.ADVISORY, "pg_try_advisory_xact_lock_shared")


def _others(text: str) -> Iterator[Change]:
    for found in _ONCE.finditer(text):
        what = f"{found[1]} AS MATERIALIZED"
        yield Change(*found.span(2), what, Kind.ONCE, "NOT MATERIALIZED")
    for found in _CONFLICT.finditer(text):
        what = " ".join(found[0].split()).partition(" SET ")[0]
        target = found[0][: found.start(1) - found.start()]
        instead = "" if found[1] == "DO NOTHING" else f"{target}DO NOTHING "
        yield Change(*found.span(), what, Kind.CONFLICT, instead)

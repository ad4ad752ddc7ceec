"""The mutants of an engine: each of its statements without one of its guards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from pulsed.store.sql.statement import Sql
from pulsed.store.sqlite.engine import SqliteEngine
from pulsed.store.verbs.engine import Engine
from tests.mutation.conditions import Condition, conditions
from tests.support.statements import names_of, postgres_engine

GROUPS = (
    "bulk", "checkpoints", "claiming", "controls", "expiry", "families", "keys", "leases",
    "limited", "operators", "recovery", "retention", "schedules", "settling", "signals",
    "streams", "waiting",
)  # fmt: skip
"""The groups whose statements change jobs and schedules, or choose what is changed."""

GUARD = re.compile(
    r"status|locked_by|lease_token|lease_until|revision|cursor|state\b|key_held|key_until|limit_key"
    r"|paused|started_at|cancel_requested|completed_at|consumed_at|wait_|expires_at|next_run_at"
    r"|crashes|generation|cascades|outlives|watched|last_worker|last_outcome"
)
"""What a guard is about. Other conditions only join tables, or find the row itself."""

INDEX = re.compile(r"INDEXED BY \w+")
"""An index of some rows only cannot be used any more without the condition that it fits."""


class Mutant(NamedTuple):
    """A statement without one guard."""

    group: str
    statement: str
    guard: str
    nth: int
    """Which of the conditions with this text, from 1."""
    original: Sql
    changed: Sql

    @property
    def name(self) -> str:
        """Its name in reports and in the list of those that are explained."""
        again = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.group}.{self.statement}: {' '.join(self.guard.split())}{again}"


def engine_named(name: str) -> Engine:
    """Return an engine's statements, without a database."""
    return SqliteEngine() if name == "sqlite" else postgres_engine()


def statements(engine: Engine) -> Iterator[tuple[str, str, Sql]]:
    """Yield the statements that matter, with their groups and names."""
    for group in GROUPS:
        owner = getattr(engine, group)
        for name in sorted(names_of(owner)):
            yield group, name, getattr(owner, name)


def mutants(engine: Engine) -> Iterator[Mutant]:
    """Yield all mutants of an engine."""
    for group, name, sql in statements(engine):
        seen: dict[str, int] = {}
        for condition in conditions(sql.text):
            guard = condition.text
            if not GUARD.search(_own_text(guard)):
                continue
            nth = seen[guard] = seen.get(guard, 0) + 1
            yield Mutant(group, name, guard, nth, sql, _without(sql, {(guard, nth)}))


def _own_text(condition: str) -> str:
    """Return a condition without the subqueries in it, whose conditions count by themselves."""
    shorter = re.sub(r"\((?=SELECT)[^()]*\)", "()", condition)
    return condition if shorter == condition else _own_text(shorter)


def together(survivors: Sequence[Mutant]) -> Mutant:
    """Return the statement of several mutants without any of their guards."""
    first = survivors[0]
    removed = {(each.guard, each.nth) for each in survivors}
    guards = " and ".join(f"{' '.join(each.guard.split())}" for each in survivors)
    return first._replace(guard=guards, nth=1, changed=_without(first.original, removed))


def _without(sql: Sql, removed: AbstractSet[tuple[str, int]]) -> Sql:
    text, single = (_removed(each, removed) for each in (sql.text, sql.single_row_text))
    return replace(sql, text=text, single_row_text=single)


def _removed(text: str, removed: AbstractSet[tuple[str, int]]) -> str:
    """Return a text without some conditions; one inside of another goes with that."""
    seen: Counter[str] = Counter()
    chosen: list[Condition] = []
    for condition in conditions(text):
        seen[condition.text] += 1
        is_inside = any(condition.start < outer.end for outer in chosen)
        if (condition.text, seen[condition.text]) in removed and not is_inside:
            chosen.append(condition)
    for condition in reversed(chosen):
        text = condition.removed_from(text)
    return INDEX.sub("", text) if chosen else text

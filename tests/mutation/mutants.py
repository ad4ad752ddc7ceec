"""The mutants of an engine: each of its statements without one of its guards."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from pulsed.store.postgres.dialect import PostgresDialect
from pulsed.store.postgres.engine import PostgresEngine
from pulsed.store.sql.statement import Sql
from pulsed.store.sqlite.engine import SqliteEngine
from pulsed.store.verbs.engine import Engine
from tests.mutation.changes import Change, Kind, changes
from tests.mutation.code import CODE
from tests.support.statements import groups, names_of

SUBMIT = "submission.submit"
"""The insertion of jobs, which has a text for each set of columns."""

_INSERTION = re.compile(r"INSERT INTO pulse_jobs \(.*(ON CONFLICT DO NOTHING)", re.DOTALL)

INDEX = re.compile(r"INDEXED BY \w+")
"""An index of some rows only cannot be used any more without the condition that it fits."""

Part: TypeAlias = tuple[str, int]
"""A change: what it takes out, and which of those with this text, from 1."""


@dataclass(frozen=True)
class Mutant:
    """A statement without one guard, or the code without one."""

    statement: str
    """Its group and its name."""
    what: str
    """What was taken out."""
    kind: Kind
    removed: Mapping[Sql, frozenset[Part]] = field(default_factory=dict)
    """The parts that are taken out of texts: one text for each clock."""
    patch: Callable[[], None] | None = None
    """Changes the code, in a process that ends after it."""
    engine: str = ""
    """The engine whose statement it is."""

    @property
    def name(self) -> str:
        """Its name in reports and in the list of those that are explained."""
        return f"{self.statement}: {self.what}"

    @cached_property
    def changed(self) -> dict[str, Sql]:
        """What is executed instead of these texts."""
        return {sql.text: without(sql, parts) for sql, parts in self.removed.items()}

    @property
    def digest(self) -> str:
        """A digest of these texts; empty if it changes the code."""
        texts = "\n".join(sql.text for sql in self.changed.values())
        return hashlib.sha256(texts.encode()).hexdigest()[:16] if texts else ""

    def of(self, sql: Sql) -> Sql:
        """Return what is executed instead of a statement."""
        if SUBMIT in self.statement and (found := _INSERTION.search(sql.text)):
            return replace(sql, text=sql.text[: found.start(1)] + sql.text[found.end(1) :])
        return self.changed.get(sql.text, sql)


def engines_named(name: str) -> list[Engine]:
    """Return an engine's statements without a database, with the server's clock and a test's."""
    if name == "sqlite":
        return [SqliteEngine()]
    return [PostgresEngine(PostgresDialect(own_clock=own)) for own in (False, True)]


def statements(engine: Engine) -> Iterator[tuple[str, Sql]]:
    """Yield the statements of an engine, by their names."""
    named = {id(group): name for name, group in vars(engine).items()}
    for group in groups(engine):
        for name in sorted(names_of(group)):
            yield f"{named[id(group)]}.{name}", getattr(group, name)


def names_by_text(engine: str) -> dict[str, str]:
    """Return the names of an engine's statements by their texts."""
    return {sql.text: name for each in engines_named(engine) for name, sql in statements(each)}


def name_of(names: Mapping[str, str], text: str) -> str | None:
    """Return the name of a statement that was executed, if it has one."""
    known = names.get(text)
    return SUBMIT if known is None and _INSERTION.search(text) else known


def mutants(engine: str) -> list[Mutant]:
    """Return all mutants of an engine."""
    by_statement = zip(*map(statements, engines_named(engine)), strict=True)
    found = [mutant for variants in by_statement for mutant in _mutants(variants)]
    found.append(Mutant(SUBMIT, "ON CONFLICT DO NOTHING", Kind.CONFLICT))
    found += [
        Mutant(each.place, each.what, each.kind, patch=each.patch)
        for each in CODE
        if each.engine == engine
    ]
    return [replace(mutant, engine=engine) for mutant in found]


def _mutants(variants: Sequence[tuple[str, Sql]]) -> Iterator[Mutant]:
    """Yield the mutants of one statement, whose texts differ by the clock."""
    sqls = [sql for _, sql in variants]
    for places in zip(*(numbered(sql.text) for sql in sqls), strict=True):
        change, nth = places[0]
        removed = {
            sql: frozenset({(each.what, number)})
            for sql, (each, number) in zip(sqls, places, strict=True)
        }
        what = f"{change.what} #{nth}" if nth > 1 else change.what
        yield Mutant(variants[0][0], what, change.kind, removed)


def numbered(text: str) -> list[tuple[Change, int]]:
    """Return the changes of a text, each with its number among those of the same words."""
    seen: Counter[str] = Counter()
    found = []
    for change in changes(text):
        seen[change.what] += 1
        found.append((change, seen[change.what]))
    return found


def together(chosen: Sequence[Mutant]) -> Mutant:
    """Return what several mutants of an engine change, as one."""
    removed: dict[Sql, frozenset[Part]] = {}
    for mutant in chosen:
        for sql, parts in mutant.removed.items():
            removed[sql] = removed.get(sql, frozenset()) | parts

    def patch() -> None:
        for mutant in chosen:
            if mutant.patch is not None:
                mutant.patch()

    statements = " + ".join(dict.fromkeys(mutant.statement for mutant in chosen))
    what = " and ".join(mutant.what for mutant in chosen)
    return Mutant(statements, what, chosen[0].kind, removed, patch, chosen[0].engine)


def without(sql: Sql, parts: AbstractSet[Part]) -> Sql:
    """Return a statement without some of its parts, whether it gets one row or many."""
    text, single = (_without(each, parts) for each in (sql.text, sql.single_row_text))
    return replace(sql, text=text, single_row_text=single)


def _without(text: str, parts: AbstractSet[Part]) -> str:
    """Return a text without some parts; one inside of another goes with that."""
    chosen: list[Change] = []
    for change, nth in numbered(text):
        is_inside = any(change.start < outer.end for outer in chosen)
        if (change.what, nth) in parts and not is_inside:
            chosen.append(change)
    for change in reversed(chosen):
        text = change.made_in(text)
    return INDEX.sub("", text) if chosen else text

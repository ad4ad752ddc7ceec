"""One statement by itself: rows that it concerns, and what takes a row out of its conditions.

Most guards have another before them: a read in the same transaction, or a lock. A verb cannot show
that the statement is guarded as well, so these run it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.script import Script, Verb, VerbKind
from tests.support.backends import Backend
from tests.support.jobs import ALICE, BOB, a_job

NAMES = ("job", "other", "third", "fourth", "fifth", "sixth", *"abcd", "bystander")
IDS = {name: UUID(int=number) for number, name in enumerate(NAMES, 11)}
JOB, OTHER = IDS["job"], IDS["other"]
MOMENTS = {"old": -86_400, "past": -5, "now": 0, "future": 3600, "later": 7200}
"""Seconds from now."""

Change: TypeAlias = str | tuple[str, str] | list[str] | Mapping[str, Any]
"""A SET list for the job, or for another row that it names; whole statements; or parameters."""


@dataclass(frozen=True)
class Case:
    """A statement that concerns one row, and changes of which each alone takes that row out."""

    statement: str
    rows: Mapping[str, str]
    """The jobs that exist, by their names in IDS, and a SET list for each."""
    without: Mapping[str, Change]
    """What takes the row out, by a name for it."""
    params: Mapping[str, Any] = field(default_factory=dict)
    batch: Sequence[tuple[Any, ...]] = ()
    also: Sequence[str] = ()
    """Statements that make more rows."""
    counts: Callable[[Rows], int] | None = None
    """How many rows an answer speaks of; its own number if None."""
    expected: int = 1
    name: str = ""
    """What tells it from others of the same statement."""


def figure(place: int) -> Callable[[Rows], int]:
    """Return what reads a number from the first row of an answer."""
    return lambda rows: int(rows[0][place] or 0)


def told(place: int) -> Callable[[Rows], int]:
    """Return what reads whether the first row of an answer says anything, or yes."""
    return lambda rows: int(rows[0][place] not in (None, False))


async def check_alone(backend: Backend, case: Case) -> None:
    """Run a statement on its rows as they are, and after each change."""
    store = backend.open()
    try:
        assert await _found(store, backend, case, None) == case.expected
        if "job" in case.rows and case.batch and case.batch[0][0] == JOB:
            backend.empty()
            same = case.rows["job"].replace("key = 'k'", "key = 'its own'")
            beside = replace(case, rows={**case.rows, "bystander": same})
            found = await _found(store, backend, beside, None)
            assert found == case.expected, f"{case.statement} finds a job that was not asked for"
        for label, change in case.without.items():
            backend.empty()
            found = await _found(store, backend, case, change)
            assert found == case.expected - 1, f"{case.statement} finds it in spite of: {label}"
    finally:
        await store.aclose()


async def repeat(backend: Backend, case: Case, times: int = 2) -> list[tuple[Any, ...]]:
    """Run a statement again and again; returns all rows of its table."""
    store = backend.open()
    try:
        for _ in range(times):
            await _found(store, backend, case, None)
        return backend.execute(f"SELECT * FROM {case.name}")
    finally:
        await store.aclose()


async def _found(store: SqlStore, backend: Backend, case: Case, change: Change | None) -> int:
    """Return how many rows a statement finds or changes, after a change."""
    given = await _prepared(store, backend, case)
    params = dict(case.params)
    if isinstance(change, Mapping):
        params |= change
    elif change is not None:
        for text in _texts(change):
            backend.execute(text.format_map(given))
    params = {name: _value(backend, value) for name, value in params.items()}
    batch = [tuple(_value(backend, value) for value in row) for row in case.batch]
    return await _run(store, backend, case, params, batch)


async def _prepared(store: SqlStore, backend: Backend, case: Case) -> dict[str, str]:
    """Store the rows; returns what the texts of changes may name."""
    await store.now()  # its tables exist
    if case.rows:
        await store.submit([a_job(id=IDS[name]) for name in case.rows])
    given = {name: backend.literal(each) for name, each in IDS.items()}
    given |= {"alice": backend.literal(ALICE), "bob": backend.literal(BOB)}
    for name, seconds in MOMENTS.items():
        given[name] = _instant(backend, seconds)
    yes = backend.engine == "postgres"
    given |= {"true": "true" if yes else "1", "false": "false" if yes else "0"}
    texts = [text for name, to in case.rows.items() for text in _texts((name, to))]
    for text in (*texts, *case.also):
        backend.execute(text.format_map(given))
    return given


def _instant(backend: Backend, seconds: float) -> str:
    instant = backend.clock() + timedelta(seconds=seconds)
    if backend.engine == "postgres":
        return f"'{instant.isoformat()}'::timestamptz"
    return str(round(instant.timestamp() * 1_000_000))


def _value(backend: Backend, value: Any) -> Any:
    """Return a parameter; a number of seconds from now is an instant."""
    return backend.clock() + value if isinstance(value, timedelta) else value


def _texts(change: str | tuple[str, str] | list[str]) -> list[str]:
    if isinstance(change, list):
        return change
    name, to = ("job", change) if isinstance(change, str) else change
    return [f"UPDATE pulse_jobs SET {to} WHERE id = {{{name}}}"] if to else []


async def _run(
    store: SqlStore,
    backend: Backend,
    case: Case,
    params: Mapping[str, Any],
    batch: Sequence[tuple[Any, ...]],
) -> int:
    group, _, name = case.statement.partition(".")
    sql = getattr(getattr(store.engine, group), name)

    def script() -> Script[Rows]:
        return (yield Statement(sql, params, batch))

    says = "RETURNING" in sql.text or sql.text.lstrip().startswith(("SELECT", "WITH"))
    is_silent = case.counts is None and not sql.counted and not says
    before = _contents(backend) if is_silent else []
    answer = await store.run(Verb("test", VerbKind.TRANSACTION, script))
    if is_silent:
        return _changed(before, _contents(backend))
    if case.counts is not None:
        return case.counts(answer)
    return int(answer[0][0]) if sql.counted else len(answer)


def _changed(before: Rows, after: Rows) -> int:
    """Return how many rows were changed, removed or made."""
    return max(sum(row not in after for row in before), sum(row not in before for row in after))


def _contents(backend: Backend) -> list[tuple[Any, ...]]:
    with backend.session() as session:
        tables = [table for (table,) in session.execute(backend.tables).fetchall()]
        return [row for table in tables for row in session.execute(f"SELECT * FROM {table}")]

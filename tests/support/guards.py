"""Taking guards out of a store's statements, to see that something fails without them."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pulsed.model.job import Lease
from pulsed.model.outcome import Released
from pulsed.store.base import Store
from pulsed.store.sql.statement import Sql
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.dialect import in_parameters, with_comparisons
from tests.support.backends import Backend
from tests.support.jobs import ALICE, BOB, claim_one, running, settle
from tests.support.statements import names_of, owner_of

Scenario = Callable[[SqlStore, Backend], Awaitable[None]]

STILL_CLAIMABLE = "AND j.status NOT IN ('RUNNING', 'SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')"
"""The guard in the UPDATE of a claim."""
TWINS = {"claim": ("pick", "claim_plain"), "settle_succeeded": ("settle_alike",)}
"""Statements that have the guards of another one, too: on SQLite the one that picks its rows and
the one for runs that are alike, on PostgreSQL its short form."""


def unguarded(sql: Sql, guard: str, instead: str = " ") -> Sql:
    """Return a statement without a guard, whether it gets one row or many."""
    pattern = guard_pattern(guard)
    assert not sql.single_row_text or pattern.search(sql.single_row_text), (
        f"a single row has lost its guard {guard!r}"
    )
    return replace(
        sql,
        text=pattern.sub(lambda _: instead, sql.text),
        single_row_text=pattern.sub(lambda _: instead, sql.single_row_text),
    )


def guard_pattern(guard: str) -> re.Pattern[str]:
    """Return what finds a guard, whatever numbers a statement gives to its parameters."""
    return re.compile(re.sub(r"\\\$\d+", r"\\$\\d+", re.escape(guard)))


def as_written(store: SqlStore, guard: str) -> str:
    """Return a guard as the statements of a store's engine have it."""
    return with_comparisons(guard) if store.dialect.engine == "sqlite" else guard


def without(store: SqlStore, statement: str, *guards: str, instead: str = " ") -> None:
    """Take guards out of one of a store's statements, and out of its twins."""
    owner = owner_of(store.engine, statement)
    names = [statement, *TWINS.get(statement, ())]
    places = [(owner, name) for name in names if name in names_of(owner)]
    for guard in (as_written(store, each) for each in guards):
        guarded = [
            (place, form)
            for place in places
            for form in {guard, in_parameters(guard)}
            if guard_pattern(form).search(getattr(*place).text)
        ]
        assert guarded, f"{statement} has lost its guard {guard!r}"
        for place, form in guarded:
            setattr(*place, unguarded(getattr(*place), form, instead))


async def check(
    backend: Backend,
    scenario: Scenario,
    statement: str,
    *guards: str,
    instead: str = " ",
    fails: tuple[type[Exception], ...] = (AssertionError,),
) -> None:
    """See the scenario pass with the guards and fail without them."""
    whole = backend.open()
    await scenario(whole, backend)
    await whole.aclose()
    backend.empty()
    broken = backend.open()
    without(broken, statement, *guards, instead=instead)
    with pytest.raises(fails):
        await scenario(broken, backend)
    await broken.aclose()


# -- leases that are not worth anything any more --------------------------------------------------


async def a_self_zombie(store: Store) -> Lease:
    """A worker that has claimed its own job a second time, and reports on the first."""
    zombie = await running(store, ALICE)
    await settle(store, zombie, Released())
    await claim_one(store, ALICE)
    return zombie.lease


async def somebody_with_anothers_token(store: Store) -> Lease:
    """A worker that has the right token of another worker's job."""
    return (await running(store, ALICE)).lease._replace(worker_id=BOB)

"""Schedules that are done are removed after their jobs, unless a program declares them."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from pulsed import Retention
from pulsed.engine.upkeep import pruner as pruner_module
from pulsed.engine.upkeep.pruner import Pruner
from pulsed.errors import PulsedError
from pulsed.model.audit import Operator
from pulsed.model.job import Status
from pulsed.model.outcome import Failed, Outcome, Succeeded
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.base import Store
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import Backend, only_postgres
from tests.support.clock import Clock
from tests.support.faults import Fault
from tests.support.guards import unguarded
from tests.support.jobs import claim, settle
from tests.support.schedules import DONE, all_jobs, put, read, tick
from tests.support.servers import ServerThread
from tests.test_guard_races import blocked

postgres = only_postgres

AGE = 3600.0
EVERY_END = dict.fromkeys((Status.SUCCEEDED, Status.DEAD_LETTERED), 0.0)


async def names(store: SqlStore) -> list[str]:
    return [row.name for row in await store.schedules.list_page()]


async def done(store: SqlStore, clock: Clock, *schedules: str, **says: Any) -> None:
    """Put schedules for one instant, and let that pass; their jobs wait to be run."""
    for name in schedules:
        await put(store, name, at=clock.after(1), max_attempts=1, **says)
    clock.advance(2)
    await tick(store)
    assert {(await read(store, name)).state for name in schedules} == {DONE}


async def ended(store: SqlStore, outcome: Outcome | None = None) -> None:
    """Let every job that waits end."""
    for run in await claim(store, limit=1000):
        await settle(store, run, outcome or Succeeded())


async def forgotten(store: SqlStore, clock: Clock) -> None:
    """Let every job end, and be removed."""
    await ended(store)
    clock.advance(1)
    await store.prune(EVERY_END, limit=1000)


# -- which ones -----------------------------------------------------------------------------------


async def test_one_that_was_put_goes_when_its_time_is_up_and_not_before(store, clock):
    await done(store, clock, "party")
    await forgotten(store, clock)
    clock.advance(AGE - 1)
    assert await store.schedules.prune(AGE, limit=5) == 0
    clock.advance(0.001)
    assert await store.schedules.prune(AGE, limit=5) == 1
    assert await names(store) == []
    assert await store.schedules.prune(AGE, limit=5) == 0


async def test_one_that_goes_on_and_one_that_is_declared_stay(store, clock):
    await done(store, clock, "declared", declared=True)
    await put(store, "goes_on")
    await put(store, "paused", at=clock.after(1))
    await store.schedules.pause("default", "paused")
    await forgotten(store, clock)
    clock.advance(10 * AGE)
    assert await store.schedules.prune(AGE, limit=5) == 0
    assert await names(store) == ["declared", "goes_on", "paused"]


@pytest.mark.parametrize("outcome", [None, Failed("no", final=True)], ids=["waits", "dead letter"])
async def test_a_schedule_stays_as_long_as_one_of_its_jobs(store, clock, outcome):
    """The job still leads to the schedule that made it, and to its occurrence."""
    await done(store, clock, "party")
    if outcome is not None:
        await ended(store, outcome)
    clock.advance(10 * AGE)
    assert await store.schedules.prune(AGE, limit=5) == 0
    (job,) = await all_jobs(store)
    assert job.schedule_id is not None
    made_by = await store.schedules.find(job.schedule_id)
    assert made_by is not None
    assert (made_by.name, made_by.last_occurrence) == ("party", job.occurrence)
    await store.delete([job.id])
    assert await store.schedules.prune(AGE, limit=5) == 1


async def test_the_time_counts_from_the_moment_at_which_nothing_was_left_to_come(store, clock):
    """Not from the skipped instant, which has no job."""
    await put(store, "party", at=clock.after(1), catch_up="skip")
    clock.advance(10 * AGE)
    assert await tick(store) == []
    row = await read(store, "party")
    assert (row.state, row.missed, row.updated_at) == (DONE, 1, clock.now)
    assert await store.schedules.prune(AGE, limit=5) == 0
    clock.advance(AGE + 1)
    assert await store.schedules.prune(AGE, limit=5) == 1


async def test_a_fire_after_which_more_is_to_come_is_no_change_of_the_schedule(store, clock):
    await put(store)
    changed = (await read(store)).updated_at
    clock.advance(60)
    assert len(await tick(store)) == 1
    assert (await read(store)).updated_at == changed


async def test_one_that_is_put_again_begins_anew(store, clock):
    await done(store, clock, "party")
    await forgotten(store, clock)
    clock.advance(10 * AGE)
    await put(store, "party", at=clock.after(1))
    assert await store.schedules.prune(AGE, limit=5) == 0
    clock.advance(2)
    await tick(store)
    await forgotten(store, clock)
    assert await store.schedules.prune(AGE, limit=5) == 0


async def test_a_name_that_was_freed_can_be_used_again(store, clock):
    await done(store, clock, "party")
    first = (await read(store, "party")).id
    await forgotten(store, clock)
    assert await store.schedules.prune(0.0, limit=5) == 1
    await done(store, clock, "party")
    assert (await read(store, "party")).id != first
    assert len(await all_jobs(store)) == 1


# -- how many, and concurrently ------------------------------------------------------------------


async def test_so_many_at_a_time(store, clock):
    await done(store, clock, *"abcde")
    await forgotten(store, clock)
    assert [await store.schedules.prune(0.0, limit=2) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_answer_removes_no_more_than_a_batch_for_each_try(store, clock, when):
    await done(store, clock, *"abcde")
    await forgotten(store, clock)
    fault = Fault(store, "prune_schedules", when)
    assert await store.schedules.prune(0.0, limit=2) == 2
    assert fault.hits == 1
    assert len(await names(store)) == (3 if when == "before" else 1)


async def test_one_that_is_just_being_changed_is_passed_over(postgres, clock):
    """The lock of the row sees to it; without that, the schedule would go as it begins anew."""

    async def removed(*guards: str) -> bool:
        store = postgres.open()
        await done(store, clock, "party")
        await forgotten(store, clock)
        statements = store.engine.schedules
        for guard in guards:
            assert guard in statements.prune.text
            statements.prune = unguarded(statements.prune, guard)
        with closing(postgres.connect()) as other:
            with other.transaction():
                other.execute("UPDATE pulse_schedules SET state = 'PAUSED'")
                pruning = asyncio.create_task(store.schedules.prune(0.0, limit=5))
                if guards:
                    await blocked(postgres)
                else:
                    assert await asyncio.wait_for(pruning, 60) == 0
            await pruning
        left = await names(store)
        await store.aclose()
        postgres.empty()
        return left == []

    assert not await removed()
    assert await removed("FOR UPDATE SKIP LOCKED")


# -- the pruner -----------------------------------------------------------------------------------


async def test_three_hundred_reminders_leave_nothing_behind(store, clock, monkeypatch):
    monkeypatch.setattr(pruner_module, "BATCH", 100)
    await done(store, clock, *(f"reminder-{number}" for number in range(300)))
    await ended(store)
    clock.advance(7 * 86_400 + 1)
    assert (await Pruner(store, Retention(), rest=no_rest).tick())[Status.SUCCEEDED] == 300
    assert (await all_jobs(store), await names(store)) == ([], [])


async def no_rest(_: float) -> None:
    pass


async def test_they_are_kept_for_ever_if_successes_are(store, clock):
    await done(store, clock, "party")
    await forgotten(store, clock)
    clock.advance(1e9)
    await Pruner(store, Retention(succeeded=None, cancelled=60)).tick()
    assert await names(store) == ["party"]


async def test_the_pruner_s_own_act_is_not_recorded_and_an_operator_s_is(store, clock):
    await done(store, clock, "a")
    await forgotten(store, clock)
    clock.advance(61)
    await Pruner(store, Retention(succeeded=60)).tick()
    assert await names(store) == []
    assert await prunes(store) == []
    await done(store, clock, "b")
    await forgotten(store, clock)
    assert await store.schedules.prune(0.0, limit=5, by=Operator("anna@desk")) == 1
    assert await store.schedules.prune(0.0, limit=5, by=Operator("anna@desk")) == 0
    assert await prunes(store) == [(1, "done for 0 s")]


async def prunes(store: Store) -> list[tuple[int, str]]:
    """Return what the audit log has about schedules that were removed."""
    found = await store.audit_log()
    return [(each.affected, each.detail) for each in found if each.act == "prune schedules"]


async def test_a_server_with_upkeep_of_its_own_records_every_prune(tmp_path):
    """Its workers do not prune through it, so the caller is an operator, named or not."""
    path = tmp_path / "jobs.db"
    with ServerThread(lambda: SqliteStore(path), upkeep=True) as server:
        store = RemoteStore(server.url)
        await put(store, "party", at=datetime(2099, 1, 1, tzinfo=UTC))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE pulse_schedules SET state = 'DONE', next_run_at = NULL")
        assert await store.schedules.prune(0.0, limit=5) == 1
        assert await prunes(store) == [(1, "done for 0 s")]
        await store.aclose()


@pytest.mark.parametrize("age", [-1.0, math.nan, math.inf])
async def test_a_server_refuses_an_age_that_is_none(tmp_path, age):
    with ServerThread(lambda: SqliteStore(tmp_path / "jobs.db")) as server:
        store = RemoteStore(server.url)
        with pytest.raises(PulsedError, match="seconds must be between 0 and"):
            await store.schedules.prune(age, limit=5)
        with pytest.raises(PulsedError, match="seconds must be between 0 and"):
            await store.prune({Status.SUCCEEDED: age}, limit=5)
        await store.aclose()


# -- without its guards ---------------------------------------------------------------------------


@pytest.mark.embedded("takes guards out of the statements")
@pytest.mark.parametrize(
    "guard, instead, kept",
    [
        ("s.state = 'DONE'", "1 = 1", "goes_on"),
        ("NOT s.declared", "1 = 1", "declared"),
        ("s.updated_at <", "s.updated_at <>", "young"),
        ("j.schedule_id IS NOT NULL", "1 = 0", "dead_letter"),
    ],
    ids=["state", "declared", "age", "jobs"],
)
async def test_each_condition_keeps_a_schedule(
    store: SqlStore, backend: Backend, guard, instead, kept
):
    clock = backend.clock
    await done(store, clock, "dead_letter")
    await ended(store, Failed("no", final=True))
    await done(store, clock, "declared", declared=True)
    await put(store, "goes_on", every=86_400_000_000)
    await ended(store)
    clock.advance(1)
    assert (await store.prune({Status.SUCCEEDED: 0.0}, limit=5)).total == 1
    clock.advance(AGE)
    await put(store, "young", at=clock.after(1), catch_up="skip")
    clock.advance(100)
    assert await tick(store) == []
    assert await store.schedules.prune(AGE, limit=5) == 0
    statements = store.engine.schedules
    assert guard in statements.prune.text
    statements.prune = unguarded(statements.prune, guard, instead)
    assert await store.schedules.prune(AGE, limit=5) == 1
    assert kept not in await names(store)

"""Guards of schedules: each test fails without the condition in the statement that it is about."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest

from pulsed.errors import ScheduleChanged, StorageError
from pulsed.store.sql.schedules import NOT_ACTIVE
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend, PostgresBackend
from tests.support.guards import Scenario
from tests.support.guards import unguarded as unguarded_sql
from tests.support.schedules import (
    APP,
    CURSOR,
    REVISION,
    STATE,
    a_spec,
    decided,
    jobs_of,
    put,
    read,
    tick,
    without,
)

pytestmark = pytest.mark.embedded("takes guards out of statements")


async def passes(backend: Backend, scenario: Scenario, statement: str, *guards: str) -> bool:
    """Whether a scenario passes on a store without these guards."""
    store = backend.open()
    await store.now()
    backend.empty()
    without(store, statement, *guards)
    try:
        await scenario(store, backend)
    except (AssertionError, StorageError, pytest.fail.Exception):  # also of what was not raised
        return False
    finally:
        await store.aclose()
    return True


async def stale_fire_does_nothing(store: SqlStore, backend: Backend) -> None:
    """A scheduler that read long ago comes back after others have fired."""
    await put(store)
    backend.clock.advance(61)
    stale = await decided(store)
    backend.clock.advance(600)
    await tick(store)
    before, there = await read(store), await jobs_of(store)
    assert await store.schedules.fire([stale]) == []
    assert await read(store) == before
    assert await jobs_of(store) == there


async def test_the_cursor_fences_a_fire_that_others_have_overtaken(backend):
    assert await passes(backend, stale_fire_does_nothing, "advance")
    assert not await passes(backend, stale_fire_does_nothing, "advance", CURSOR)


async def test_the_revision_fences_a_fire_that_was_decided_before_an_edit(backend):
    async def scenario(store: SqlStore, backend: Backend) -> None:
        await put(store)
        backend.clock.advance(61)
        stale = await decided(store)
        await put(store, payload='{"n":1}')
        assert await store.schedules.fire([stale]) == []

    assert await passes(backend, scenario, "advance")
    assert not await passes(backend, scenario, "advance", REVISION)


async def test_the_state_fences_a_fire_of_what_somebodys_hand_has_paused(backend):
    async def scenario(store: SqlStore, backend: Backend) -> None:
        await put(store)
        backend.clock.advance(61)
        stale = await decided(store)
        backend.execute("UPDATE pulse_schedules SET state = 'PAUSED'")
        assert await store.schedules.fire([stale]) == []

    assert await passes(backend, scenario, "advance")
    assert not await passes(backend, scenario, "advance", STATE)


def guard_of_updates(backend: Backend, pattern: str) -> str:
    """Return a guard of the statement that changes schedules, as this engine has it."""
    found = re.search(pattern, backend.open().engine.schedules.update.text)
    assert found is not None
    return found[0]


async def test_the_revision_fences_an_edit_that_was_decided_before_another(backend):
    async def scenario(store: SqlStore, backend: Backend) -> None:
        seen = (await put(store)).row.version
        row = (await put(store, queue="theirs")).row
        with pytest.raises(ScheduleChanged, match=r"'s' of app .* read it again"):
            await store.schedules.put(APP, "s", a_spec(priority=7), seen=seen)
        assert await read(store) == row

    revision = guard_of_updates(backend, r"AND revision = \S+")
    assert await passes(backend, scenario, "update")
    assert not await passes(backend, scenario, "update", revision)


async def test_the_id_fences_an_edit_of_a_schedule_that_was_made_anew(backend):
    async def scenario(store: SqlStore, backend: Backend) -> None:
        seen = (await put(store)).row.version
        await store.schedules.delete(APP, "s")
        row = (await put(store, queue="theirs")).row
        assert row.revision == seen.revision
        with pytest.raises(ScheduleChanged):
            await store.schedules.put(APP, "s", a_spec(priority=7), seen=seen)
        assert await read(store) == row

    its_id = guard_of_updates(backend, r"id = \S+ AND(?= revision)")
    assert await passes(backend, scenario, "update")
    assert not await passes(backend, scenario, "update", its_id)


async def test_a_pause_is_fenced_by_the_state_and_by_the_revision(backend):
    async def scenario(store: SqlStore, backend: Backend) -> None:
        await put(store)
        backend.clock.advance(61)
        stale = await decided(store)
        await store.schedules.pause(APP, "s")
        assert await store.schedules.fire([stale]) == []

    assert await passes(backend, scenario, "advance", STATE)
    assert await passes(backend, scenario, "advance", REVISION)
    assert not await passes(backend, scenario, "advance", STATE, REVISION)


@pytest.mark.parametrize("guard", ["revision", "cursor", "state"])
async def test_what_changed_is_not_parked(backend, guard):
    async def scenario(store: SqlStore, backend: Backend) -> None:
        await put(store)
        backend.clock.advance(61)
        stale = await read(store)
        if guard == "revision":
            await put(store, payload='{"n":1}')
        elif guard == "state":
            backend.execute("UPDATE pulse_schedules SET state = 'PAUSED'")
        else:
            await tick(store)
        before = await read(store)
        await store.schedules.set_error(stale, "too late")
        assert await read(store) == before

    postgres = isinstance(backend, PostgresBackend)
    guards = {
        "revision": "AND revision = " + ("$4::bigint" if postgres else ":revision"),
        "cursor": f"AND (next_run_at = {'$5::timestamptz' if postgres else ':cursor'}) IS TRUE",
        "state": f"AND state NOT IN {NOT_ACTIVE}",
    }
    assert await passes(backend, scenario, "set_error")
    assert not await passes(backend, scenario, "set_error", guards[guard])


def set_back(backend: Backend) -> None:
    """Move the cursor to where it has been, past every guard."""
    backend.execute(
        "UPDATE pulse_schedules SET next_run_at = last_occurrence, last_occurrence = NULL"
    )


async def test_a_cursor_that_was_set_back_makes_no_second_job(store, backend, clock):
    """The deterministic id is the second line of defence."""
    await put(store)
    clock.advance(61)
    await tick(store)
    there = await jobs_of(store)
    set_back(backend)
    await tick(store)
    assert await jobs_of(store) == there
    assert (await read(store)).next_run_at == clock.after(59)


async def test_an_occurrence_under_another_id_makes_no_second_job_either(store, backend, clock):
    """The unique index is the third."""
    await put(store)
    clock.advance(61)
    await tick(store)
    backend.execute(f"UPDATE pulse_jobs SET id = {backend.literal(uuid4())}")
    set_back(backend)
    await tick(store)
    assert len(await jobs_of(store)) == 1


@pytest.mark.parametrize("same_id", [True, False], ids=["primary key", "unique index"])
async def test_without_every_other_defence_the_table_refuses(store, backend, clock, same_id):
    await put(store)
    clock.advance(61)
    stale = await decided(store)
    await tick(store)
    if not same_id:
        backend.execute(f"UPDATE pulse_jobs SET id = {backend.literal(uuid4())}")
    set_back(backend)
    statements = store.engine.submission
    submit = statements.submit

    def unguarded(*columns):
        sql = submit(*columns)
        assert "ON CONFLICT DO NOTHING" in sql.text
        return unguarded_sql(sql, "ON CONFLICT DO NOTHING")

    statements.submit = unguarded
    with pytest.raises(StorageError):
        await store.schedules.fire([stale])
    assert len(await jobs_of(store)) == 1

"""Crashes and lost answers around every statement on schedules: nothing twice, nothing missed."""

from __future__ import annotations

import pytest

from pulsed.errors import TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.schedule import CatchUp, Overlap
from tests.support.faults import Fault
from tests.support.schedules import (
    ACTIVE,
    APP,
    ERROR,
    MINUTE,
    PAUSED,
    a_spec,
    after_statements,
    all_jobs,
    jobs_of,
    occurrences,
    put,
    read,
    tick,
)

# -- a crash between any two statements -----------------------------------------------------------


class CrashError(TransientStorageError):
    """The process ends here."""


def crash() -> None:
    raise CrashError("the process died")


@pytest.mark.embedded("stops transactions half way")
@pytest.mark.parametrize("overlap", list(Overlap))
async def test_a_crash_between_any_two_statements_of_a_fire(backend, store, clock, overlap):
    """Whatever statement the process does not reach, the next one fires each occurrence once."""
    await put(store, catch_up=CatchUp.ALL, overlap=overlap)
    statements = 3 if overlap is Overlap.SKIP else 2
    for number in range(statements + 1):
        clock.advance(180)
        before, there = await read(store), await all_jobs(store)
        dying = backend.open(retry=RetryPolicy.disabled())
        after_statements(dying, "fire", number, crash)
        with pytest.raises(CrashError):
            await tick(dying)
        await dying.aclose()
        assert await read(store) == before
        assert await all_jobs(store) == there
        made = await tick(store)
        assert len(made) == (1 if overlap is Overlap.SKIP else 3)
        await store.cancel([job.id for job in made])
    fired = occurrences(await jobs_of(store))
    assert len(set(fired)) == len(fired) == (statements + 1) * (1 if statements == 3 else 3)


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_connection_lost_between_statements_is_retried(store, clock, number):
    await put(store, catch_up=CatchUp.ALL)
    clock.advance(180)
    after_statements(store, "fire", number, crash)
    assert len(await tick(store)) == 3
    assert len(await jobs_of(store)) == 3


# -- an answer that got lost ----------------------------------------------------------------------


async def test_an_ambiguous_put_of_a_new_schedule(store, when, times):
    fault = Fault(store, "put_schedule", when, times)
    row, effect = await put(store)
    assert (fault.hits, effect, row.revision) == (times, "created", 0)
    assert await store.schedules.list_page() == [row]


async def test_an_ambiguous_put_of_a_changed_schedule(store, when, times):
    await put(store)
    fault = Fault(store, "put_schedule", when, times)
    row, effect = await put(store, every=5 * MINUTE)
    assert (fault.hits, effect, row.revision) == (times, "changed", 1)
    assert await read(store) == row


async def test_an_ambiguous_change_of_a_version(store, when, times):
    seen = (await put(store)).row.version
    fault = Fault(store, "put_schedule", when, times)
    row, effect = await store.schedules.put(APP, "s", a_spec(priority=7), seen=seen)
    assert (fault.hits, effect, row.revision) == (times, "changed", 1)


async def test_an_ambiguous_put_of_an_unchanged_schedule(store, when, times):
    first, _ = await put(store)
    Fault(store, "put_schedule", when, times)
    assert await put(store) == (first, "unchanged")


async def test_ambiguous_declarations(store, when, times):
    await put(store, "old", declared=True)
    await put(store, "same", declared=True)
    specs = {"new": a_spec(), "old": a_spec(priority=7), "same": a_spec()}
    fault = Fault(store, "declare_schedules", when, times)
    effects = await store.schedules.declare(APP, specs)
    assert effects == {"new": "created", "old": "changed", "same": "unchanged"}
    assert fault.hits == times
    assert [row.revision for row in await store.schedules.list_page()] == [0, 1, 0]


async def test_an_ambiguous_pause_and_resume(store, when, times):
    await put(store)
    Fault(store, "pause_schedule", when, times)
    paused = await store.schedules.pause(APP, "s")
    assert (paused.state, paused.revision) == (PAUSED, 1)
    Fault(store, "resume_schedule", when, times)
    resumed = await store.schedules.resume(APP, "s")
    assert (resumed.state, resumed.revision) == (ACTIVE, 2)


async def test_an_ambiguous_delete(store, when, times):
    await put(store)
    Fault(store, "delete_schedule", when, times)
    assert await store.schedules.delete(APP, "s") is True
    assert await store.schedules.list_page() == []
    assert await store.schedules.delete(APP, "s") is False


async def test_an_ambiguous_fire(store, clock, when, times):
    await put(store, catch_up=CatchUp.ALL)
    clock.advance(180)
    fault = Fault(store, "fire", when, times)
    await tick(store)
    assert fault.hits == times
    assert len(await jobs_of(store)) == 3
    row = await read(store)
    assert (row.next_run_at, row.missed) == (clock.after(60), 0)


async def test_an_ambiguous_park(store, when, times):
    await put(store)
    Fault(store, "set_schedule_error", when, times)
    await store.schedules.set_error(await read(store), "because")
    row = await read(store)
    assert (row.state, row.error, row.revision) == (ERROR, "because", 1)

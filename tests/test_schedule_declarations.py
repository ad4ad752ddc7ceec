"""Many schedules at once: declared in a few transactions, and listed in pages."""

from __future__ import annotations

import pytest

from pulsed import Pulse
from pulsed.batches import TRANSACTION
from pulsed.model.schedule import ScheduleFilter, ScheduleState
from pulsed.store import schedules
from tests.support.performed import Performed
from tests.support.schedules import APP, MINUTE, a_spec, jobs_of, put, read, tick

MANY = 2 * TRANSACTION.items + 1


@pytest.mark.embedded("counts its statements")
async def test_many_declarations_are_written_in_a_few_statements(store):
    await store.now()
    specs = {f"s{n}": a_spec() for n in range(MANY)}
    performed = Performed(store)
    assert await store.schedules.declare(APP, specs) == dict.fromkeys(specs, "created")
    assert performed.verbs == {"declare_schedules": 3}
    assert performed.statements["declare_schedules"] == 3 * 3
    assert await store.schedules.declare(APP, specs) == dict.fromkeys(specs, "unchanged")
    changed = {name: a_spec(priority=7) for name in specs}
    assert await store.schedules.declare(APP, changed) == dict.fromkeys(specs, "changed")
    assert performed.verbs == {"declare_schedules": 9}
    assert performed.statements["declare_schedules"] == 3 * (3 + 2 + 3)


async def test_declarations_say_what_they_did_to_each(store, clock):
    await put(store, "by_hand")
    await put(store, "paused", declared=True)
    await put(store, "other", declared=True)
    await store.schedules.pause(APP, "paused")
    before = await read(store, "by_hand")
    clock.advance(90)
    effects = await store.schedules.declare(
        APP, {"new": a_spec(), "by_hand": a_spec(priority=7), "paused": a_spec(every=5 * MINUTE)}
    )
    assert effects == {"new": "created", "by_hand": "changed", "paused": "changed"}
    ours = await read(store, "by_hand")
    assert (ours.id, ours.declared, ours.next_run_at) == (before.id, True, before.next_run_at)
    assert (await read(store, "paused")).state is ScheduleState.PAUSED
    assert (await read(store, "new")).next_run_at == clock.now + MINUTE
    await tick(store)
    (job,) = await jobs_of(store, "by_hand")
    assert job.priority == 7


async def test_declarations_that_say_the_same_of_two_apps_are_two(store):
    for app in ("one", "two"):
        assert await store.schedules.declare(app, {"s": a_spec()}) == {"s": "created"}
    assert [row.app for row in await store.schedules.list_page()] == ["one", "two"]
    assert await store.schedules.declare("three", {}) == {}


async def test_schedules_are_listed_in_pages(store, monkeypatch):
    monkeypatch.setattr(schedules, "SCHEDULE_PAGE", 2)
    for app in ("a", "b"):
        await store.schedules.declare(app, {name: a_spec() for name in "rst"})
    rows = await store.schedules.list_page(limit=4)
    assert [row.key for row in rows] == [("a", "r"), ("a", "s"), ("a", "t"), ("b", "r")]
    rest = await store.schedules.list_page(limit=4, after=rows[-1].key)
    assert [row.key for row in rest] == [("b", "s"), ("b", "t")]
    assert [row.key async for row in store.schedules.each()] == [row.key for row in rows + rest]
    of_app = [row.name async for row in store.schedules.each(ScheduleFilter("a"))]
    assert of_app == ["r", "s", "t"]
    assert await store.schedules.list_page(ScheduleFilter("a"), after=rows[2].key) == []


async def test_schedules_are_listed_by_state_and_by_what_is_overdue(store, clock):
    for name, minutes in {"soon": 1, "late": 60, "paused": 1}.items():
        await put(store, name, every=minutes * MINUTE)
    await put(store, "done", at=clock.after(1))
    await store.schedules.pause(APP, "paused")
    clock.advance(1)
    await tick(store)
    active = ScheduleFilter(state=ScheduleState.ACTIVE)
    assert [row.name for row in await store.schedules.list_page(active)] == ["late", "soon"]
    due = active._replace(due_before=clock.after(120))
    assert [row.name for row in await store.schedules.list_page(due)] == ["soon"]
    done = ScheduleFilter(state=ScheduleState.DONE)
    assert [row.name for row in await store.schedules.list_page(done)] == ["done"]


async def test_a_schedule_is_found_by_its_id(store):
    row, _ = await put(store)
    other, _ = await put(store, "other")
    assert await store.schedules.find(row.id) == row
    await store.schedules.delete(APP, "s")
    assert await store.schedules.find(row.id) is None
    assert await store.schedules.find(other.id) == other


async def test_an_app_goes_through_its_schedules_page_by_page(url):
    async with Pulse(url) as app:
        await app.store.schedules.declare(app.name, {name: a_spec() for name in "abcde"})
        first = await app.schedules.alist(limit=2)
        rest = await app.schedules.alist(after=first[-1])
        assert [each.name for each in first + rest] == list("abcde")
        assert [each.name async for each in app.schedules.aiterate()] == list("abcde")


def test_an_app_goes_through_its_schedules_without_a_loop(url):
    with Pulse(url) as app:
        app.schedules.put("a", "topic", every=60)
        app.schedules.put("b", "topic", every=60)
        assert [each.name for each in app.schedules.iterate()] == ["a", "b"]

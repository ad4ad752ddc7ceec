"""Streams in the store: appended once, in order, only by the run that leads, and bounded."""

import pytest

from pulsed.model import stream as bounds
from pulsed.model.ids import new_job_id
from pulsed.model.job import Assignment, Status
from pulsed.model.outcome import Succeeded
from pulsed.model.stream import Emission, StreamItem
from pulsed.store.base import Store
from tests.support.faults import Fault
from tests.support.guards import a_self_zombie, somebody_with_anothers_token
from tests.support.jobs import running, settle


async def emit(store: Store, run: Assignment, first: int, *values: str, number: int = 1) -> bool:
    emission = Emission(run.lease, number, first, values)
    return run.lease in await store.streams.emit([emission])


async def values_of(store: Store, run: Assignment, after: int = 0) -> list[str]:
    page = await store.streams.read(run.job_id, after=after, limit=10_000)
    return [item.value for item in page.items]


async def test_items_are_read_as_they_were_emitted(store, clock):
    run, other = await running(store), await running(store)
    assert await emit(store, run, 1, '{"a":[1,null,"ü"]}', "2")
    assert await emit(store, other, 1, '"of another"')
    clock.advance(5)
    assert await emit(store, run, 3, "3", number=2)
    page = await store.streams.read(run.job_id, limit=10)
    assert page.status is Status.RUNNING
    assert list(page.items) == [
        StreamItem(1, 1, '{"a":[1,null,"ü"]}', clock.after(-5)),
        StreamItem(2, 1, "2", clock.after(-5)),
        StreamItem(3, 2, "3", clock.now),
    ]


async def test_a_stream_is_read_from_a_position_and_in_pages(store):
    run = await running(store)
    assert await emit(store, run, 1, *map(str, range(1, 8)))
    assert await values_of(store, run, after=5) == ["6", "7"]
    page = await store.streams.read(run.job_id, after=2, limit=3)
    assert [item.position for item in page.items] == [3, 4, 5]
    assert [item.value for item in await store.streams.newest(run.job_id, limit=2)] == ["6", "7"]


async def test_the_status_tells_when_a_stream_has_ended_and_whether_there_is_one(store):
    run = await running(store)
    await settle(store, run, Succeeded("1"))
    assert (await store.streams.read(run.job_id, limit=1)) == ([], Status.SUCCEEDED)
    assert (await store.streams.read(new_job_id(), limit=1)) == ([], None)
    assert list(await store.streams.newest(new_job_id(), limit=1)) == []


@pytest.mark.parametrize("make", [a_self_zombie, somebody_with_anothers_token])
async def test_what_a_zombie_emits_is_refused_and_holds_up_no_other(store, make):
    zombie, healthy = await make(store), await running(store)
    emissions = [Emission(zombie, 1, 1, ["1"]), Emission(healthy.lease, 1, 1, ["2"])]
    assert await store.streams.emit(emissions) == {healthy.lease}
    assert list(await store.streams.newest(zombie.job_id, limit=1)) == []
    assert await values_of(store, healthy) == ["2"]


async def test_an_item_is_stored_once_when_the_answer_is_lost(store, when, times):
    run = await running(store)
    fault = Fault(store, "emit", when, times)
    assert await emit(store, run, 1, "1", "2")
    assert fault.hits == times
    assert await values_of(store, run) == ["1", "2"]


async def test_only_the_newest_items_are_kept_by_number(store, monkeypatch):
    monkeypatch.setattr("pulsed.store.verbs.streams.KEPT_ITEMS", 120)
    run = await running(store)
    assert await emit(store, run, 1, *["0"] * 199)
    assert len(await values_of(store, run)) == 120
    assert await emit(store, run, 200, "1")
    page = await store.streams.read(run.job_id, limit=1000)
    assert [item.position for item in page.items] == [*range(81, 201)]


async def test_only_the_newest_items_are_kept_by_size(store, monkeypatch):
    monkeypatch.setattr("pulsed.store.verbs.streams.KEPT_BYTES", 2_500)
    run = await running(store)
    large = '"' + "é" * 499 + '"'  # 1,000 bytes
    assert await emit(store, run, 1, *[large] * bounds.TRIMMED_EVERY)
    assert len(await values_of(store, run)) == 2


async def test_a_stream_goes_with_its_job(store, clock, backend):
    kept, pruned, deleted = [await running(store) for _ in range(3)]
    for run in (kept, pruned, deleted):
        assert await emit(store, run, 1, "1")
    for run in (pruned, deleted):
        await settle(store, run, Succeeded("1"))
    await store.delete([deleted.job_id])
    clock.advance(60)
    await store.prune({Status.SUCCEEDED: 30.0}, limit=10)
    assert await values_of(store, kept) == ["1"]
    assert backend.execute("SELECT count(*) FROM pulse_stream") == [(1,)]

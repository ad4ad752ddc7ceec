"""Where a job belongs, read without the job."""

from __future__ import annotations

from uuid import uuid4

from pulsed.model.job import JobPlace, WorkerInfo
from tests.support.jobs import a_job
from tests.support.schedules import a_spec


async def test_places_are_read_by_id_and_what_is_not_there_is_missing(store):
    parent = a_job(topic="t", queue="q")
    child = a_job(topic="u", parent_id=parent.id)
    await store.submit([parent, child])
    assert await store.places([]) == {}
    assert await store.places([parent.id, child.id, uuid4()], urgent=True) == {
        parent.id: JobPlace("t", "q", None),
        child.id: JobPlace("u", "default", parent.id),
    }


async def test_one_worker_is_found_among_others(store):
    ids = [uuid4(), uuid4()]
    for worker_id in ids:
        await store.announce(
            WorkerInfo(id=worker_id, host="h", pid=1, queues=("q",), topics=("t",), slots=1)
        )
    found = await store.worker(ids[1])
    assert (found.id, found.queues, found.topics) == (ids[1], ("q",), ("t",))
    assert await store.worker(uuid4()) is None


async def test_a_schedule_is_found_by_its_id(store):
    puts = [await store.put_schedule("app", name, a_spec(topic=name)) for name in ("a", "b")]
    assert await store.find_schedule(puts[1].row.id) == puts[1].row
    assert await store.find_schedule(uuid4()) is None

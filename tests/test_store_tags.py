"""Jobs by their tags: written with the job, found by an index, removed with it."""

import pytest

from pulsed.model.job import JobFilter, Status
from pulsed.model.keys import OnDuplicate
from pulsed.model.outcome import Succeeded
from tests.support.jobs import a_job, row, running, settle, submitted
from tests.support.performed import Performed
from tests.support.schedules import a_spec


def tagged(*tags, **options):
    return JobFilter(tag=tags[0], **options)


async def found(store, where, **options):
    return [job.id for job in await store.list_jobs(where, **options)]


async def test_jobs_are_found_by_any_of_their_tags(store):
    jobs = [a_job(tags=("a", "b")), a_job(tags=("b",)), a_job()]
    await store.submit(jobs)
    assert await found(store, tagged("a")) == [jobs[0].id]
    assert await found(store, tagged("b")) == [jobs[1].id, jobs[0].id]
    assert await found(store, tagged("c")) == []
    assert (await store.counts(tagged("b")))[Status.PENDING] == 2


async def test_a_tag_goes_with_other_conditions_and_pages(store):
    ids = [await submitted(store, tags=("a",), topic=topic) for topic in "xyxy"]
    assert await found(store, tagged("a", topic="y")) == [ids[3], ids[1]]
    page = await store.list_jobs(tagged("a"), limit=3)
    assert page.next == ids[1]
    assert await found(store, tagged("a"), before=page.next) == [ids[0]]
    assert await found(store, tagged("a", parent=ids[0])) == []
    assert await found(store, tagged("a", id_prefix=ids[2].hex)) == [ids[2]]


async def test_the_same_job_again_keeps_its_tags(store, backend):
    job = a_job(tags=("a",))
    await store.submit([job])
    await store.submit([job, a_job(tags=("b",))])
    assert await found(store, tagged("a")) == [job.id]
    assert backend.execute("SELECT count(*) FROM pulse_tags") == [(2,)]


async def test_a_job_that_was_not_stored_has_no_tags(store, backend):
    holder = await submitted(store, key="k", tags=("a",))
    await store.submit([a_job(key="k", tags=("b",))])
    assert await found(store, tagged("a")) == [holder]
    assert backend.execute("SELECT count(*) FROM pulse_tags") == [(1,)]


@pytest.mark.parametrize("tags", [("new",), ()])
async def test_a_replaced_job_has_the_tags_of_the_other(store, tags):
    holder = await submitted(store, key="k", tags=("old",))
    await store.submit([a_job(key="k", tags=tags, on_duplicate=OnDuplicate.REPLACE)])
    assert (await row(store, holder)).tags == tags
    assert await found(store, tagged("old")) == []
    assert await found(store, tagged("new")) == ([holder] if tags else [])


async def test_children_and_fired_jobs_are_found_by_their_tags(store):
    parent = await running(store)
    child = a_job(parent_id=parent.job_id, parent_step="f|1", tags=("a",))
    await store.workflows.add_children(parent.lease, [child])
    assert await found(store, tagged("a")) == [child.id]
    put = await store.schedules.put("app", "s", a_spec(tags=("b",)))
    fired = a_job(tags=("b",), schedule_id=put.row.id)
    await store.schedules.run_now("app", "s", fired)
    assert await found(store, tagged("b")) == [fired.id]


async def test_tags_go_with_the_job(store, backend, clock):
    deleted = await submitted(store, tags=("a",))
    await store.delete([deleted])
    run = await running(store, tags=("a",))
    await settle(store, run, Succeeded("1"))
    clock.advance(10)
    await store.prune({Status.SUCCEEDED: 1.0}, limit=10)
    assert backend.execute("SELECT count(*) FROM pulse_tags") == [(0,)]


@pytest.mark.embedded("counts statements")
async def test_without_tags_nothing_is_written(store):
    performed = Performed(store)
    await store.submit([a_job(), a_job()])
    await submitted(store)
    assert performed.statements["submit"] == 2

"""Reads: by id, page by page, filtered, counted."""

from uuid import UUID

import pytest

from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Failed, Succeeded
from pulsed.store import migrations
from tests.support.jobs import EVERYTHING, a_job, claim, claim_one, settle, submitted


async def pages(store, where, limit):
    """Read all pages the way a dashboard does."""
    found: list[UUID] = []
    before = None
    while page := await store.list_jobs(where, limit=limit, before=before):
        assert len(page) <= limit
        found += [job.id for job in page]
        before = page[-1].id
    return found


async def listed(store, **where) -> set[UUID]:
    return {job.id for job in await store.list_jobs(JobFilter(**where))}


async def test_get_answers_for_the_jobs_that_exist(store):
    known, stranger = await submitted(store), new_job_id()
    assert set(await store.get([known, stranger, known])) == {known}
    assert await store.get([]) == {}


@pytest.mark.parametrize("limit", [1, 3, 7, 50])
async def test_paging_is_complete_and_without_duplicates(store, limit):
    jobs = [a_job() for _ in range(20)]
    await store.submit(jobs)
    assert await pages(store, EVERYTHING, limit) == sorted((job.id for job in jobs), reverse=True)


async def test_jobs_that_arrive_between_two_pages_move_nothing(store):
    jobs = sorted((a_job() for _ in range(10)), key=lambda job: job.id)
    await store.submit(jobs)
    first = await store.list_jobs(EVERYTHING, limit=5)
    await store.submit([a_job() for _ in range(5)])
    second = await store.list_jobs(EVERYTHING, limit=5, before=first[-1].id)
    assert [job.id for job in first + second] == [job.id for job in reversed(jobs)]


async def test_paging_keeps_to_its_filter(store):
    jobs = [a_job(topic="a" if n % 3 else "b") for n in range(30)]
    await store.submit(jobs)
    expected = {job.id for job in jobs if job.topic == "b"}
    found = await pages(store, JobFilter(topic="b"), 4)
    assert len(found) == len(expected)
    assert set(found) == expected


async def test_filters_by_status_topic_queue_and_tag(store):
    done = await submitted(store, tags=("red", "blue"))
    await settle(store, await claim_one(store), Succeeded())
    other = await submitted(store, topic="report", queue="slow", tags=("blue",))
    plain = await submitted(store)
    assert await listed(store, status=(Status.SUCCEEDED,)) == {done}
    assert await listed(store, status=(Status.SUCCEEDED, Status.PENDING)) == {done, other, plain}
    assert await listed(store, topic="report") == {other}
    assert await listed(store, queue="default") == {done, plain}
    assert await listed(store, tag="blue") == {done, other}
    assert await listed(store, tag="red") == {done}
    assert await listed(store, tag="re") == set()
    assert await listed(store, tag="blue", status=(Status.PENDING,)) == {other}
    assert await listed(store, topic="' OR 1=1 --") == set()


async def test_filters_by_time_of_submission(store, clock):
    start = clock.now
    first = await submitted(store)
    clock.advance(60)
    middle = clock.now
    second = await submitted(store)
    clock.advance(60)
    assert await listed(store, since=start) == {first, second}
    assert await listed(store, since=middle) == {second}
    assert await listed(store, until=middle) == {first}
    assert await listed(store, since=start, until=middle) == {first}
    assert await listed(store, since=clock.now) == set()


ERRORS = [
    "100% of the disk is used",
    "100 of the disk is used",
    "no such column user_id",
    "no such column userXid",
    "~/.netrc is missing",
    "~~ is missing",
    "Connection REFUSED by peer",
    "Überlauf im Ärmelkanal",
    "back\\slash and 'quote'",
]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("100%", {0}),
        ("user_id", {2}),
        ("~/.netrc", {4}),
        ("~~", {5}),
        ("~", {4, 5}),
        ("%", {0}),
        ("_", {2}),
        ("connection refused", {6}),
        ("Connection REFUSED", {6}),
        ("Überlauf", {7}),
        ("\\", {8}),
        ("'", {8}),
        ("nothing of the kind", set()),
    ],
)
async def test_an_error_is_searched_for_literally_and_in_any_case(store, text, expected):
    await store.submit([a_job(payload=f'{{"n":{n}}}', max_attempts=1) for n in range(len(ERRORS))])
    for run in await claim(store):
        n = int(run.payload.split(":")[1].rstrip("}"))
        await settle(store, run, Failed(ERRORS[n]))
    found = await store.list_jobs(JobFilter(error=text))
    assert {ERRORS.index(job.last_error or "") for job in found} == expected
    assert (await store.counts(JobFilter(error=text)))[Status.DEAD_LETTERED] == len(expected)


async def test_counts_have_every_status_as_a_key(store):
    assert await store.counts(EVERYTHING) == dict.fromkeys(Status, 0)
    await store.submit([a_job() for _ in range(5)])
    first, second = await claim(store, limit=2)
    await settle(store, first, Succeeded())
    await settle(store, second, Failed("x"))
    expected = dict.fromkeys(Status, 0) | {
        Status.PENDING: 3,
        Status.SUCCEEDED: 1,
        Status.RETRYING: 1,
    }
    assert await store.counts(EVERYTHING) == expected


async def test_counts_keep_to_their_filter(store):
    await store.submit([a_job(topic="a"), a_job(topic="b"), a_job(topic="b", queue="slow")])
    assert (await store.counts(JobFilter(topic="b")))[Status.PENDING] == 2
    assert (await store.counts(JobFilter(topic="b", queue="slow")))[Status.PENDING] == 1
    dead = JobFilter(status=(Status.DEAD_LETTERED,))
    assert await store.counts(dead) == dict.fromkeys(Status, 0)


async def test_struggling_jobs_show_why_and_when_they_run_again(store, clock):
    await store.submit([a_job(max_attempts=5), a_job()])
    await settle(store, (await claim(store, limit=1))[0], Failed("503 from the mail server"))
    (found,) = await store.list_jobs(JobFilter(status=(Status.RETRYING,)))
    assert (found.attempts, found.last_error) == (1, "503 from the mail server")
    assert found.next_run_at == clock.after(1)


async def test_the_clock_that_decides_can_be_read(store, clock):
    assert await store.now() == clock.now
    clock.advance(5)
    assert await store.now() == clock.now


async def test_a_doctor_learns_engine_and_schema(store, backend):
    await store.counts(EVERYTHING)
    checked = await store.check()
    assert checked["schema"] == str(migrations.newest(backend.engine))
    assert {"sqlite": "SQLite", "postgres": "PostgreSQL"}[backend.engine] in checked["engine"]

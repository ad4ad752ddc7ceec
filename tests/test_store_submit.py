"""Submitting: what is acknowledged is a row, once."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from pulsed.model.backoff import Backoff
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, NewJob, Status
from pulsed.model.outcome import Succeeded
from pulsed.store.sql.columns import NEW_JOB, NOT_STORED
from tests.support.jobs import (
    EVERYTHING,
    a_job,
    claim,
    claim_one,
    ids,
    row,
    running,
    settle,
    submitted,
)


async def test_a_submitted_job_is_a_pending_row(store, clock):
    job = a_job(
        payload='{"to":"ada@example.com"}', priority=7, queue="mail", headers={"trace": "1"}
    )
    assert (await store.submit([job])).new == 1
    found = await row(store, job.id)
    assert found.status is Status.PENDING
    assert (found.topic, found.queue, found.priority) == ("email", "mail", 7)
    assert (found.payload, found.headers) == ('{"to":"ada@example.com"}', {"trace": "1"})
    assert (found.attempts, found.lease_token, found.locked_by, found.lease_until) == (
        0,
        0,
        None,
        None,
    )
    assert (found.submitted_at, found.next_run_at) == (clock.now, clock.now)
    assert (found.started_at, found.completed_at, found.last_error) == (None, None, None)


async def test_the_same_id_again_is_the_same_job(store):
    job = a_job(payload='{"n":1}')
    assert (await store.submit([job])).new == 1
    changed = a_job(id=job.id, payload='{"n":2}', topic="other", priority=9)
    assert (await store.submit([changed])).new == 0
    found = await row(store, job.id)
    assert (found.payload, found.topic, found.priority) == ('{"n":1}', "email", 0)


async def test_submitting_again_does_not_touch_a_job_that_has_moved_on(store):
    run = await running(store)
    assert (await store.submit([a_job(id=run.job_id)])).new == 0
    assert (await row(store, run.job_id)).status is Status.RUNNING
    await settle(store, run, Succeeded())
    assert (await store.submit([a_job(id=run.job_id)])).new == 0
    assert (await row(store, run.job_id)).status is Status.SUCCEEDED


async def test_an_id_twice_in_one_batch_is_one_job(store):
    job = a_job()
    assert (await store.submit([job, a_job(), job])).new == 2
    assert sum((await store.counts(EVERYTHING)).values()) == 2


async def test_new_ones_of_a_batch_are_stored_beside_known_ones(store):
    jobs = [a_job() for _ in range(4)]
    assert (await store.submit(jobs[:2])).new == 2
    assert (await store.submit(jobs)).new == 2
    assert set(await store.get([job.id for job in jobs])) == {job.id for job in jobs}


async def test_many_jobs_in_one_call(store):
    jobs = [a_job(payload=f'{{"n":{n}}}') for n in range(3_000)]
    assert (await store.submit(jobs)).new == 3_000
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 3_000
    found = await store.get([job.id for job in jobs[:50]])
    assert [found[job.id].payload for job in jobs[:50]] == [job.payload for job in jobs[:50]]


async def test_no_jobs_are_no_work(store):
    assert (await store.submit([])).new == 0


async def test_a_batch_is_stored_whole_or_not_at_all(store):
    good, bad = a_job(), a_job(priority=1_000)
    with pytest.raises(Exception, match=r"(?i)check|constraint|must be between"):
        await store.submit([good, bad])
    assert await store.get([good.id, bad.id]) == {}


async def test_a_delayed_job_is_invisible_until_it_is_due(store, clock):
    job_id = await submitted(store, delay=60)
    assert (await row(store, job_id)).next_run_at == clock.after(60)
    clock.advance(59.999)
    assert await claim(store) == []
    clock.advance(0.001)
    assert (await claim_one(store)).job_id == job_id


async def test_a_job_for_an_instant_is_invisible_until_then(store, clock):
    at = clock.after(3_600).astimezone()  # any zone will do
    job_id = await submitted(store, at=at)
    assert (await row(store, job_id)).next_run_at == at
    clock.advance(3_599)
    assert await claim(store) == []
    clock.advance(1)
    assert ids(await claim(store)) == [job_id]


async def test_next_run_at_is_never_before_now(store, clock):
    past = await submitted(store, at=clock.now - timedelta(days=400))
    negative = await submitted(store, delay=-30.0)
    assert (await row(store, past)).next_run_at == clock.now
    assert (await row(store, negative)).next_run_at == clock.now


async def test_times_keep_their_microseconds(store, clock):
    clock.advance(0.123457)
    job_id = await submitted(store, delay=0.000001)
    found = await row(store, job_id)
    assert found.submitted_at == clock.now
    assert found.next_run_at == clock.after(0.000001)


STORED = [*NEW_JOB.keys() - {"id", *NOT_STORED}, "status", "next_run_at", "submitted_at"]

SAYS_MORE = {
    "queue": "mail",
    "topic": "other",
    "payload": '{"n":[1,"\\"{}\\\\"]}',
    "priority": -7,
    "delay": 90.5,
    "at": datetime(2200, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "max_attempts": 9,
    "backoff": Backoff.exponential(3, factor=4, cap=50, jitter=0.5),
    "timeout": 1.5,
    "lease": 60.0,
    "headers": {"trace": "a,b"},
    "tags": ("red", "blue"),
    "schedule_id": uuid4(),
    "parent_id": uuid4(),
    "parent_step": "ship|1",
    "outlives": True,
    "key_for": "60.5",
    "on_duplicate": "replace",
    "expires": 60.5,
    "expires_at": datetime(2200, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "limit_key": "mail:7",
}
"""Of every field that a job need not have, a value."""


async def test_every_field_can_be_tested_here():
    # An occurrence is its schedule's only once, and a key is held once.
    told = {*SAYS_MORE, "id", "occurrence", "key"}
    assert told == set(NewJob.__struct_fields__)


@pytest.mark.parametrize("fields", [[name] for name in SAYS_MORE] + [list(SAYS_MORE)], ids=",".join)
async def test_a_batch_is_stored_like_its_jobs_one_by_one(store, backend, fields):
    """Whatever all of its jobs say, only some of them, or none."""
    options = {name: SAYS_MORE[name] for name in fields}
    batches = [[a_job(**options), a_job(**options)], [a_job(), a_job(**options)], [a_job()] * 2]
    for batch in batches:
        alone = [msgspec.structs.replace(job, id=new_job_id()) for job in batch]
        assert (await store.submit(batch)).new == len({job.id for job in batch})
        for job in alone:
            assert (await store.submit([job])).new == 1
        for together, single in zip(batch, alone, strict=True):
            assert stored(backend, together) == stored(backend, single)


def stored(backend, job):
    """Return all that the table has of a job but its id."""
    where = f"id = {backend.literal(job.id)}"
    return backend.execute(f"SELECT {', '.join(STORED)} FROM pulse_jobs WHERE {where}")


async def test_policy_given_at_submit_stays_on_the_row(store):
    job_id = await submitted(
        store, max_attempts=7, timeout=12.5, lease=90.0, backoff=Backoff.linear(30)
    )
    found = await row(store, job_id)
    assert (found.max_attempts, found.timeout, found.lease_seconds) == (7, 12.5, 90.0)


async def test_policy_left_unset_is_null_until_the_claim(store, backend):
    found = await row(store, await submitted(store))
    assert (found.max_attempts, found.timeout, found.lease_seconds) == (None, None, None)
    stored = backend.row(found.id)
    assert {stored[name] for name in stored if name.startswith("backoff_")} == {None}


async def test_tags_headers_and_payload_keep_every_character(store):
    text = 'naïve "quoted" \\ 日本 🎈 %_~ $1 :name ?'
    job_id = await submitted(
        store, tags=(text, "b"), headers={text: text}, payload='{"é🎈":"\\u0007 :now $1"}'
    )
    found = await row(store, job_id)
    assert found.tags == (text, "b")
    assert found.headers == {text: text}
    assert found.payload == '{"é🎈":"\\u0007 :now $1"}'
    assert [job.id for job in await store.list_jobs(JobFilter(tag=text))] == [job_id]


async def test_big_numbers_in_a_payload_are_not_rounded(store):
    payload = '{"n":123456789012345678901234567890,"x":0.1000000000000000055}'
    assert (await row(store, await submitted(store, payload=payload))).payload == payload

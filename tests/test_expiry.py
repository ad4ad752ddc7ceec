"""Expiry: a job that was not started in time is never started, and ends as EXPIRED."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.stats import StatsRecorder
from pulsed.engine.upkeep.watchdog import BATCH, Watchdog
from pulsed.engine.why import explain
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.events import JobExpired
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import EXPIRED, EXPIRED_ERROR, Failed, Released, Succeeded
from pulsed.model.retention import Retention
from pulsed.model.rollup import RollupFilter
from pulsed.store.base import Store
from pulsed.store.sql.insertion import insertion
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.guards import STILL_CLAIMABLE, check
from tests.support.jobs import (
    NO_WAIT,
    TOPIC,
    a_job,
    a_policy,
    claim,
    claim_one,
    ids,
    never_away,
    row,
    running,
    settle,
    submitted,
)

EXPIRED_JOBS = JobFilter(outcome=EXPIRED)


async def expired(store: Store, limit: int = 500) -> list[UUID]:
    """End what has expired; returns the jobs."""
    return [job.job_id for job in await store.expire(limit=limit)]


# -- when -----------------------------------------------------------------------------------------


async def test_seconds_count_from_when_the_job_may_start(store, clock):
    now = clock()
    at = datetime(2100, 1, 1, tzinfo=UTC)
    jobs = {
        now + timedelta(seconds=60): a_job(expires=60.0),
        now + timedelta(seconds=90): a_job(expires=60.0, delay=30.0),
        at + timedelta(seconds=60): a_job(expires=60.0, at=at),
        at: a_job(expires_at=at),
    }
    await store.submit(list(jobs.values()))
    for instant, job in jobs.items():
        assert abs((await row(store, job.id)).expires_at - instant) < timedelta(seconds=1)
    assert (await row(store, await submitted(store))).expires_at is None


async def test_a_job_is_started_until_it_expires_and_not_after(store, clock):
    early = await submitted(store, expires=60.0)
    clock.advance(59.9)
    assert ids(await claim(store)) == [early]
    late = await submitted(store, expires=60.0)
    clock.advance(60)
    assert await claim(store) == []
    assert (await row(store, late)).status is Status.PENDING
    assert await expired(store) == [late]


async def test_expired_jobs_do_not_hold_up_the_others(store, clock):
    await store.submit([a_job(expires=1.0) for _ in range(30)])
    clock.advance(2)
    kept = await submitted(store)
    assert ids(await claim(store, limit=10)) == [kept]


async def test_a_job_that_has_started_does_not_expire(store, clock):
    """Neither while it runs, nor before a retry, nor after its worker has handed it back."""
    run = await running(store, expires=5.0, backoff=NO_WAIT)
    clock.advance(10)
    assert await expired(store) == []
    await settle(store, run, Failed("boom"))
    assert await expired(store) == []
    again = await claim_one(store)
    await settle(store, again, Released())
    clock.advance(10)
    assert await expired(store) == []
    assert await settle(store, await claim_one(store), Succeeded("1"))
    assert (await row(store, run.job_id)).status is Status.SUCCEEDED


# -- the end --------------------------------------------------------------------------------------


async def test_an_expired_job_has_ended_without_a_run(store, clock):
    job = await submitted(store, expires=5.0)
    expires_at = (await row(store, job)).expires_at
    clock.advance(6)
    [ended] = await store.expire()
    assert ended == (job, TOPIC, "default", expires_at)
    found = await row(store, job)
    assert (found.status, found.last_outcome) == (Status.CANCELLED, EXPIRED)
    assert (found.last_error, found.has_expired) == (EXPIRED_ERROR, True)
    assert (found.attempts, found.started_at, found.completed_at) == (0, None, found.updated_at)
    assert await store.expire() == []
    assert await store.failures(job) == []


async def test_an_expired_job_releases_its_key(store, clock):
    await submitted(store, expires=5.0, key="k")
    clock.advance(6)
    assert (await store.submit([a_job(key="k")])).new == 0
    await store.expire()
    assert (await store.submit([a_job(key="k")])).new == 1


async def test_a_replacement_brings_its_own_expiry(store, clock):
    job = await submitted(store, expires=5.0, key="k")
    await store.submit([a_job(key="k", on_duplicate="replace", expires=60.0)])
    clock.advance(6)
    assert await expired(store) == []
    await store.submit([a_job(key="k", on_duplicate="replace")])
    assert (await row(store, job)).expires_at is None


async def test_a_replayed_job_no_longer_expires(store, clock):
    job = await submitted(store, expires=5.0)
    clock.advance(6)
    await store.expire()
    assert (await store.replay([job]))[job] == (True, Status.PENDING)
    clock.advance(60)
    assert await expired(store) == []
    assert ids(await claim(store)) == [job]


async def test_a_batch_is_bounded_and_takes_the_first_that_expired(store, clock):
    jobs = [a_job(expires=float(5 - n)) for n in range(3)]
    await store.submit(jobs)
    clock.advance(10)
    assert {*await expired(store, limit=2)} == {jobs[2].id, jobs[1].id}
    assert await expired(store, limit=2) == [jobs[0].id]


async def test_expired_jobs_are_found_counted_and_removed_by_retention(store, clock):
    jobs = [a_job(expires=5.0), a_job(), a_job(expires=5.0)]
    await store.submit(jobs)
    await store.cancel([jobs[1].id])
    clock.advance(6)
    await store.expire()
    found = await store.list_jobs(EXPIRED_JOBS)
    assert {job.id for job in found} == {jobs[0].id, jobs[2].id}
    assert (await store.counts(EXPIRED_JOBS))[Status.CANCELLED] == 2
    page = await store.list_jobs(EXPIRED_JOBS, limit=1)
    [rest] = await store.list_jobs(EXPIRED_JOBS, limit=1, before=page.next)
    assert {page[0].id, rest.id} == {jobs[0].id, jobs[2].id}
    clock.advance(100)
    ages = Retention(cancelled=60).ages
    assert (await store.prune(ages, limit=10)).removed[Status.CANCELLED] == 3


# -- upkeep ---------------------------------------------------------------------------------------


async def test_the_watchdog_ends_expired_jobs_tells_hooks_and_counts_them(store, clock):
    jobs = [a_job(expires=5.0) for _ in range(BATCH + 2)]
    await store.submit(jobs)
    clock.advance(6)
    heard: list[Any] = []
    store.events.subscribe(heard.extend, [JobExpired])
    recorder = StatsRecorder(store)
    await never_away(store)
    await Watchdog(store, tick=10, on_ended=recorder.count, now=clock).tick()
    assert {event.job_id for event in heard} == {job.id for job in jobs}
    event = heard[0]
    assert (event.topic, event.queue, event.at) == (TOPIC, "default", clock())
    assert timedelta(0) < event.at - event.expired_at < timedelta(seconds=2)
    await recorder.flush()
    totals = await store.rollups.totals(RollupFilter(clock() - timedelta(hours=1), clock()))
    assert totals.stats.expired == len(jobs)


async def test_why_says_when_a_job_expires_and_that_it_has(store, clock):
    job = await submitted(store, expires=180.0)
    assert "it expires in 3 min unless it starts" in explain(await row(store, job), [], clock())
    clock.advance(181)
    hints = explain(await row(store, job), [], clock())
    assert any("it has expired" in hint for hint in hints)
    await store.expire()
    [hint] = explain(await row(store, job), [], clock())
    assert hint.startswith("expired at 20")
    assert hint.endswith("before any worker started it")
    again = await submitted(store, expires=180.0)
    await claim_one(store)
    assert not any("expires" in hint for hint in explain(await row(store, again), [], clock()))


# -- guards, by removal ---------------------------------------------------------------------------


async def _is_never_claimed_late(store: Any, backend: Any) -> None:
    await submitted(store, expires=5.0)
    backend.clock.advance(6)
    assert await claim(store) == []


async def _retry_is_claimed(store: Any, backend: Any) -> None:
    run = await running(store, expires=5.0, backoff=NO_WAIT)
    backend.clock.advance(6)
    await settle(store, run, Failed("boom"))
    assert ids(await claim(store)) == [run.job_id]


async def _retry_goes_on(store: Any, backend: Any) -> None:
    """The UPDATE checks what a job that was picked has become, as after a lost race."""
    run = await running(store, expires=5.0, backoff=NO_WAIT)
    await settle(store, run, Failed("boom"))
    backend.clock.advance(6)
    await _expire_alone(store, run.job_id)
    assert (await row(store, run.job_id)).status is Status.RETRYING


async def _ended_job_stays(store: Any, backend: Any) -> None:
    job = await submitted(store, expires=5.0)
    await store.cancel([job])
    backend.clock.advance(6)
    await _expire_alone(store, job)
    assert (await row(store, job)).last_outcome is None


async def _other_job_stays(store: Any, backend: Any) -> None:
    job = await submitted(store, expires=5.0)
    await _expire_alone(store, job)
    assert (await row(store, job)).status is Status.PENDING


async def _expire_alone(store: Any, job_id: UUID) -> None:
    """Run the UPDATE of an expiry on a job, whether or not the pick would have found it."""

    def script() -> Any:
        yield Statement(store.engine.expiry.expire, {}, [(job_id,)])

    await store.run(Verb("expire", VerbKind.TRANSACTION, script))


@pytest.mark.embedded("takes guards out of the statements")
@pytest.mark.parametrize(
    "scenario, statement, guard, instead",
    [
        (_is_never_claimed_late, "claim", "AND (expires_at IS NULL", "AND (1 = 1"),
        (_retry_is_claimed, "claim", "OR started_at IS NOT NULL", " "),
        (_retry_goes_on, "expire", "AND j.started_at IS NULL", " "),
        (_ended_job_stays, "expire", STILL_CLAIMABLE, " "),
        (_other_job_stays, "expire", "coalesce(j.expires_at,", "coalesce(j.submitted_at,"),
    ],
)
async def test_each_guard_of_expiry_is_needed(backend, scenario, statement, guard, instead):
    await check(backend, scenario, statement, guard, instead=instead)


async def test_a_job_that_waits_for_its_limit_is_not_started_late(store, clock):
    await store.controls.declare(ControlScope.LIMIT, {"mail": Numbers(running=1)})
    policy = a_policy(limit_name="mail")
    first, late = (a_job(limit_key="mail", expires=5.0) for _ in range(2))
    await store.submit([first, late])
    run = await claim_one(store, topics=[policy])
    clock.advance(6)
    await settle(store, run, Succeeded("1"))
    assert await claim(store, topics=[policy]) == []
    assert await expired(store) == [{first.id: late, late.id: first}[run.job_id].id]


@pytest.mark.embedded("compares the texts of statements")
async def test_a_job_without_an_expiry_is_stored_by_the_same_statement(store):
    """It names no column of expiries, so that whoever uses none pays nothing."""
    plain = insertion(store.engine.submission.submit, [a_job(), a_job()]).sql.text
    assert "expires" not in plain
    assert "expires" not in insertion(store.engine.submission.submit, [a_job()]).sql.text
    both = insertion(store.engine.submission.submit, [a_job(), a_job(expires=1.0)]).sql.text
    assert "expires_at" in both


async def test_topics_without_a_handler_here_expire_too(store, clock):
    job = await submitted(store, expires=5.0, topic="elsewhere")
    clock.advance(6)
    assert await claim(store, topics=[a_policy()]) == []
    assert await expired(store) == [job]

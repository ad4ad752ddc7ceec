"""Expiry in the API: options, handlers, schedules, results, workflows, the command line."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pulsed import Context, FanOutFailed, JobCancelled, NeverStarted, Pulse, Status
from pulsed.client.jobtype import JobType
from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import InvalidHandler, InvalidOption
from pulsed.model.job import JobFilter
from pulsed.model.outcome import EXPIRED, EXPIRED_ERROR
from pulsed.store.blocking import run_blocking
from tests.support.commands import run
from tests.support.jobs import NO_WAIT
from tests.support.workers import finished, handler, in_status, submit, submit_with, working
from tests.support.workflows import call_of

PAST = datetime(2001, 1, 1, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def add(n: int) -> int:
    return n


@pytest.fixture
def job(app: Pulse) -> JobType[..., Any]:
    return app.job(add)


def test_a_job_takes_seconds_a_timedelta_or_an_instant(job):
    for given, seconds in (60, 60), (timedelta(minutes=2), 120):
        made = job.using(expires=given).enqueue(1)
        assert made.expires_at - made.submitted_at == timedelta(seconds=seconds)
        assert made.refresh().expires_at - made.submitted_at == timedelta(seconds=seconds)
    made = job.using(expires=FUTURE).enqueue(1)
    assert made.expires_at == made.refresh().expires_at == FUTURE
    assert job.enqueue(1).expires_at is None
    assert job.using(delay=60, expires=5).enqueue(1).refresh().has_expired is False


def test_the_last_expiry_counts(job):
    later = job.using(expires=FUTURE).using(expires=60)
    assert later.enqueue(1).refresh().expires_at < FUTURE
    assert job.using(expires=60).using(expires=FUTURE).enqueue(1).refresh().expires_at == FUTURE


@pytest.mark.parametrize(
    "given",
    [0, -1, float("nan"), "soon", True, FUTURE.replace(tzinfo=None), 10**12],
    ids=repr,
)
def test_what_is_no_expiry_is_refused(app, job, given):
    with pytest.raises(InvalidOption, match="expires"):
        job.using(expires=given)
    assert sum(app.jobs.counts().values()) == 0


def test_a_handler_says_it_for_its_jobs_and_a_job_for_itself(app):
    job = app.job(expires=timedelta(minutes=1))(add)
    each = [job.enqueue(1), *job.enqueue_many([(2,), job.bind(3)]), app.enqueue("add", {"n": 4})]
    for made in each:
        made.refresh()
        assert made.expires_at - made.submitted_at == timedelta(minutes=1)
    assert job.using(expires=FUTURE).enqueue(1).refresh().expires_at == FUTURE
    with pytest.raises(InvalidHandler, match="expires"):
        app.job(topic="other", expires=FUTURE)(add)


def test_a_schedule_says_it_for_its_jobs(app, job):
    app.schedules.put("hourly", job.bind(1), cron="@hourly", expires=90)
    assert app.schedules.get("hourly").spec.expires == 90.0
    made = app.schedules.run_now("hourly")
    made.refresh()
    assert made.expires_at - made.submitted_at == timedelta(seconds=90)
    with pytest.raises(InvalidOption, match="number of seconds"):
        app.schedules.put("other", job.using(expires=FUTURE).bind(1), cron="@hourly")
    assert app.schedules.edit("hourly", expires=None).spec.expires is None


def test_a_result_that_never_comes_says_so(app, job):
    late = job.using(expires=PAST).enqueue(1)
    run_blocking(app.store.expire())
    with pytest.raises(NeverStarted, match=r"expired at 2001.*no worker had started it") as caught:
        late.result(timeout=5)
    assert isinstance(caught.value, JobCancelled)
    assert (late.has_expired, late.last_outcome, late.status) == (
        True,
        EXPIRED,
        Status.CANCELLED,
    )
    assert [each.id for each in app.jobs.list(outcome="expired")] == [late.id]
    with pytest.raises(InvalidOption, match="outcome must be one of"):
        app.jobs.list(outcome="over")
    late.retry()
    assert late.refresh().expires_at is None


# -- those who wait for it ------------------------------------------------------------------------


async def _child(n: int) -> int:
    return n


async def test_a_parent_is_woken_by_the_expiry_of_its_child(store, clock):
    async def work(ctx: Context) -> str:
        lost = handler(_child, topic="nobody's", expires=5.0)
        try:
            await ctx.fan_out([call_of(lost, n=1)])
        except FanOutFailed as error:
            return str(error)
        return "?"

    parent = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):
        await in_status(store, parent, Status.WAITING)
        [child] = await store.list_jobs(JobFilter(parent=parent))
        assert child.expires_at is not None
        clock.advance(6)
        await Watchdog(store, tick=10).tick()
        assert EXPIRED_ERROR in ((await finished(store, parent)).result or "")


async def test_a_workflow_that_waits_for_it_gets_the_error(store, clock):
    async def work(ctx: Context, target: str) -> str:
        try:
            await ctx.wait_for(target)
        except NeverStarted as error:
            return str(error)
        return "?"

    target = await submit_with(store, "nobody's", {"expires": 5.0})
    waiter = await submit(store, "work", target=str(target))
    async with working(store, work):
        await in_status(store, waiter, Status.WAITING)
        clock.advance(6)
        await Watchdog(store, tick=10).tick()
        assert "expired before it started" in ((await finished(store, waiter)).result or "")


# -- the command line -----------------------------------------------------------------------------


def test_the_command_line_enqueues_finds_and_shows_it(url, live):
    made = run("enqueue", "t", "--expires", "2001-01-01T00:00:00Z", "--url", url)
    assert made.exit_code == 0, made.output
    job_id = made.stdout.strip()
    kept = run("enqueue", "t", "--expires", "5m", "--url", url).stdout.strip()
    rows = run_blocking(live.get([UUID(kept)]))
    [row] = rows.values()
    assert row.expires_at - row.submitted_at == timedelta(minutes=5)
    shown = run("jobs", "show", kept, "--format", "table", "--url", url).stdout
    assert "it expires in" in shown
    run_blocking(live.expire())
    listed = run("jobs", "list", "--outcome", "expired", "--json", "--url", url).stdout
    assert [json.loads(line)["id"] for line in listed.splitlines()] == [job_id]
    shown = run("jobs", "show", job_id, "--format", "table", "--url", url).stdout
    assert "expired at 2001-01-01 00:00:00 UTC before any worker started it" in shown
    refused = run("enqueue", "t", "--expires", "soon", "--url", url)
    assert (refused.exit_code, "is no time" in refused.stderr) == (2, True)

"""``app.jobs``: finding jobs and changing their course, one by one and in bulk."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pulsed import JobCancelled, JobNotFound, Pulse, Status
from pulsed.errors import InvalidOption, InvalidTransition
from pulsed.store.blocking import run_blocking
from tests.support.apps import declare_add, declare_fail, work_off, working
from tests.support.jobs import running

NOBODY = "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"


class TestJobs:
    def test_get(self, app: Pulse) -> None:
        job = declare_add(app).enqueue(1)
        assert app.jobs.get(str(job.id)) == app.jobs.get(job.id) == job
        assert str(job.id) in repr(job)
        assert "add PENDING" in repr(job)

    @pytest.mark.parametrize("verb", ["get", "cancel", "retry", "run_now", "delete", "failures"])
    def test_a_missing_job_is_said_to_be_missing(self, app: Pulse, verb: str) -> None:
        with pytest.raises(JobNotFound, match=NOBODY):
            getattr(app.jobs, verb)(NOBODY)
        for malformed in ("12", "", None, 7):
            with pytest.raises(InvalidOption, match="A job id is a UUID"):
                getattr(app.jobs, verb)(malformed)

    def test_list_filters_and_pages(self, app: Pulse) -> None:
        add = declare_add(app)
        jobs = add.enqueue_many([(n,) for n in range(5)])
        other = app.enqueue("other", {}, unknown=True, queue="q", tags=["red"])
        newest_first = [job.id for job in reversed(jobs)]
        assert [job.id for job in app.jobs.list(topic="add", limit=2)] == newest_first[:2]
        page = app.jobs.list(topic="add", limit=2, before=newest_first[1])
        assert [job.id for job in page] == newest_first[2:4]
        assert [job.id for job in app.jobs.iterate(topic="add")] == newest_first
        assert app.jobs.list(queue="q") == app.jobs.list(tag="red") == [other]
        add_only = app.jobs.list(topic="add")
        assert add_only[0].cancel() == Status.CANCELLED
        assert app.jobs.list(status="cancelled") == [add_only[0]]
        assert len(app.jobs.list(status=["PENDING", Status.CANCELLED])) == 6
        assert app.jobs.list(since=datetime.now(UTC) + timedelta(hours=1)) == []
        assert len(app.jobs.list(until=datetime.now(UTC) + timedelta(hours=1))) == 6

    @pytest.mark.parametrize(
        "condition",
        [
            {"status": "BUSY"},
            {"status": []},
            {"status": 5},
            {"since": datetime(2026, 1, 1)},  # noqa: DTZ001
            {"topic": ""},
            {"error": ""},
            {"limit": 0},
            {"limit": 10**6},
            {"limit": True},
            {"before": "x"},
            {"colour": "red"},
        ],
    )
    def test_a_bad_condition_is_refused(self, app: Pulse, condition: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption):
            app.jobs.list(**condition)

    def test_retry_takes_parked_jobs_only(self, app: Pulse) -> None:
        add, fail = declare_add(app), declare_fail(app)
        done, dead, waiting, cancelled = (
            add.enqueue(1),
            fail.enqueue("x"),
            add.using(delay=60).enqueue(1),
            add.using(delay=60).enqueue(1),
        )
        work_off(app, done, dead)
        app.jobs.cancel(cancelled.id)
        assert app.jobs.retry(dead.id) == Status.PENDING
        assert dead.refresh().attempts == 0
        assert cancelled.retry() == Status.PENDING
        with pytest.raises(InvalidTransition, match=r"is SUCCEEDED.*Enqueue a new one"):
            app.jobs.retry(done.id)
        with pytest.raises(InvalidTransition, match="is PENDING; only DEAD_LETTERED and CANCELLED"):
            app.jobs.retry(waiting.id)
        with pytest.raises(InvalidTransition, match="SUCCEEDED already"):
            app.jobs.cancel(done.id)

    def test_run_now_makes_delayed_jobs_due(self, app: Pulse) -> None:
        add = declare_add(app)
        first, second = (add.using(delay=3600).enqueue(1) for _ in range(2))
        assert app.jobs.run_now(first.id) == Status.PENDING
        assert app.jobs.run_matching_now(topic="a*", payload={"a": 1}) == 2
        work_off(app, first, second)
        with pytest.raises(InvalidTransition, match=r"is SUCCEEDED.*Enqueue a new one"):
            app.jobs.run_now(first.id)

    def test_delete_removes(self, app: Pulse) -> None:
        job = declare_add(app).enqueue(1)
        assert app.jobs.delete(job.id) == Status.PENDING
        with pytest.raises(JobNotFound):
            app.jobs.delete(job.id)

    async def test_a_running_job_is_asked_to_stop_and_cannot_be_deleted(self, url: str) -> None:
        started = asyncio.Event()
        async with Pulse(url) as app:

            @app.job(lease=0.15)
            async def wait() -> None:
                started.set()
                await asyncio.Event().wait()

            async with working(app):
                job = await wait.aenqueue()
                await started.wait()
                with pytest.raises(InvalidTransition, match="is RUNNING and cannot be deleted"):
                    await app.jobs.adelete(job.id)
                with pytest.raises(InvalidTransition, match=r"is RUNNING.*cancel it first"):
                    await job.aretry()
                assert await job.acancel() == Status.RUNNING
                with pytest.raises(JobCancelled):
                    await job.aresult(60)
            assert await app.jobs.adelete(job.id) == Status.CANCELLED

    def test_bulk_acts_count_what_they_changed(self, app: Pulse) -> None:
        add = declare_add(app)
        jobs = add.enqueue_many([(n,) for n in range(2_500)])
        assert app.jobs.cancel_matching(topic="add") == 2_500
        assert app.jobs.cancel_matching(topic="add") == 0
        assert app.jobs.retry_matching(status="CANCELLED") == 2_500
        app.jobs.cancel(jobs[0].id)
        assert app.jobs.delete_matching(topic="add", status="PENDING") == 2_499
        assert app.jobs.delete_matching(queue="default") == 1

    def test_cancelling_counts_those_that_were_asked_to_stop(self, app: Pulse) -> None:
        claimed = run_blocking(running(app.store))
        app.enqueue("email")
        assert app.jobs.cancel_matching(topic="email") == 2
        assert app.jobs.cancel_matching(status="RUNNING") == 1
        assert app.jobs.cancel(claimed.job_id) is Status.RUNNING

    @pytest.mark.parametrize("verb", ["retry_matching", "cancel_matching", "delete_matching"])
    def test_bulk_acts_need_a_condition(self, app: Pulse, verb: str) -> None:
        declare_add(app).enqueue(1)
        for condition in ({}, {"topic": None}):
            with pytest.raises(InvalidOption, match="Without a condition every job"):
                getattr(app.jobs, verb)(**condition)
        assert app.jobs.counts()[Status.PENDING] == 1

    def test_bulk_acts_refuse_states_they_cannot_change(self, app: Pulse) -> None:
        with pytest.raises(InvalidOption, match="PENDING cannot be retried"):
            app.jobs.retry_matching(status="PENDING")
        with pytest.raises(InvalidOption, match="SUCCEEDED cannot be cancelled"):
            app.jobs.cancel_matching(status="SUCCEEDED")
        with pytest.raises(InvalidOption, match="RUNNING cannot be deleted"):
            app.jobs.delete_matching(status=["RUNNING", "PENDING"])

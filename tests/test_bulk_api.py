"""Bulk operations through an app: start, preview, wait, stop; checked before anything is stored."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from pulsed import Pulse, Status
from pulsed.errors import BulkNotFound, InvalidOption, InvalidTransition
from pulsed.model.bulk import BulkState
from pulsed.store.blocking import run_blocking
from pulsed.store.verbs import bulk as verbs
from tests.support.jobs import running


@pytest.fixture
def three(app: Pulse) -> list[Any]:
    return [app.enqueue("email", delay=3600) for _ in range(3)]


def test_an_operation_is_started_and_waited_for(app: Pulse, three):
    assert app.jobs.bulk.preview("cancel", topic="email")[Status.PENDING] == 3
    operation = app.jobs.bulk.cancel(topic="email")
    assert (operation.state, operation.total, operation.progress) == (BulkState.RUNNING, 3, 0.0)
    assert operation.wait() is operation
    assert (operation.state, operation.done, operation.progress) == (BulkState.DONE, 3, 1.0)
    assert app.jobs.counts()[Status.CANCELLED] == 3
    assert "cancel DONE done=3" in repr(operation)
    again = app.jobs.bulk.get(operation.id)
    assert (again.row, again.skips()) == (operation.row, [])
    assert [each.id for each in app.jobs.bulk.list()] == [operation.id]


async def test_the_same_without_blocking(url):
    async with Pulse(url) as app:
        await app.aenqueue("email")
        operation = await (await app.jobs.bulk.adelete(topic="email")).await_()
        assert operation.done == 1
        assert (await app.jobs.acounts())[Status.PENDING] == 0


def test_waiting_ends_after_its_timeout(app: Pulse, three, monkeypatch):
    monkeypatch.setattr(verbs, "BATCH", 1)
    operation = app.jobs.bulk.cancel(topic="email").wait(timeout=0)
    assert (operation.state, operation.done) == (BulkState.RUNNING, 1)
    assert operation.stop().state is BulkState.STOPPED
    assert operation.refresh().done == 1


def test_jobs_get_another_time_priority_and_queue(app: Pulse, three):
    at = datetime.now(UTC) + timedelta(days=30)
    assert app.jobs.bulk.reschedule(at=at, topic="email").wait().done == 3
    assert app.jobs.bulk.reprioritise(7, topic="email").wait().done == 3
    assert app.jobs.bulk.move("mail", topic="email").wait().done == 3
    assert app.jobs.bulk.run_now(topic="email").wait().done == 3
    jobs = app.jobs.list()
    assert {(job.row.priority, job.row.queue) for job in jobs} == {(7, "mail")}


def test_one_job_gets_another_time_priority_and_queue(app: Pulse, three):
    job_id = three[0].id
    at = datetime.now(UTC) + timedelta(days=3)
    app.jobs.reschedule(job_id, at=at)
    app.jobs.reprioritise(job_id, -5)
    app.jobs.move(job_id, "mail")
    row = app.jobs.get(job_id).row
    assert (row.next_run_at, row.priority, row.queue) == (at, -5, "mail")
    app.jobs.reschedule(job_id, delay=timedelta(hours=1))
    assert app.jobs.get(job_id).row.next_run_at < at


def test_a_running_job_cannot_be_changed(app: Pulse):
    claimed = run_blocking(running(app.store))
    with pytest.raises(InvalidTransition, match="RUNNING and cannot be moved"):
        app.jobs.move(claimed.job_id, "mail")


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda bulk: bulk.retry(), "Without a condition"),
        (lambda bulk: bulk.retry(status="RUNNING"), "RUNNING cannot be retried"),
        (lambda bulk: bulk.reschedule(topic="email"), "takes at or delay"),
        (lambda bulk: bulk.reschedule(at=datetime.now(UTC), delay=1, topic="x"), "takes at or"),
        (lambda bulk: bulk.reprioritise(101, topic="email"), "between -100 and 100"),
        (lambda bulk: bulk.move("a,b", topic="email"), "must not be blank or contain"),
        (lambda bulk: bulk.cancel(color="red"), "cannot be filtered by 'color'"),
        (lambda bulk: bulk.preview("explode", topic="email"), "is no act on jobs"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_stored(app: Pulse, three, change, problem):
    with pytest.raises(InvalidOption, match=problem):
        change(app.jobs.bulk)
    assert app.jobs.bulk.list() == []


def test_an_operation_that_does_not_exist(app: Pulse):
    for call in (app.jobs.bulk.get, app.jobs.bulk.stop):
        with pytest.raises(BulkNotFound, match="There is no bulk operation"):
            call(uuid4())

"""The backend of the Tasks framework: what Django documents, on both engines."""

import pickle
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from pulsed import Limit
from pulsed.contrib.django import app
from pulsed.errors import CalledInEventLoop, JobCancelled
from tests.contrib_django.project.settings import BACKEND
from tests.contrib_django.project.shop import tasks
from tests.contrib_django.project.shop.jobs import count_orders
from tests.contrib_django.project.shop.models import Order
from tests.contrib_django.working import work

pytestmark = pytest.mark.usefixtures("alias")


@pytest.fixture
def order(alias: str) -> Any:
    return Order.objects.create(name="book")


def test_a_new_task_is_ready_and_can_be_read_by_its_id():
    result = tasks.pack.enqueue(7, note="now")
    found = tasks.pack.get_result(result.id)
    assert found.status == result.status == "READY"
    assert (found.args, found.kwargs) == ([7], {"note": "now"}) == (result.args, result.kwargs)
    assert found.enqueued_at is not None
    assert found.started_at is None
    assert found.finished_at is None
    assert (found.errors, found.worker_ids, found.attempts) == ([], [], 0)
    assert found.task == tasks.pack
    assert found.backend == "default"
    with pytest.raises(ValueError, match="not finished"):
        _ = found.return_value


def test_a_worker_runs_plain_and_async_tasks(order: Any):
    plain, on_loop = tasks.pack.enqueue(order.id), tasks.apack.enqueue(order.id)
    work(plain, on_loop)
    order.refresh_from_db()
    assert order.runs == 2
    assert plain.return_value == {"order": order.id, "note": ""}
    assert on_loop.return_value == order.id
    for result in (plain, on_loop):
        assert result.status == "SUCCESSFUL"
        assert result.attempts == len(result.worker_ids) == 1
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.last_attempted_at == result.started_at


def test_a_failed_task_has_an_error_for_each_attempt():
    result = tasks.fail.enqueue("broken")
    work(result)
    assert result.status == "FAILED"
    assert result.attempts == len(result.errors) == 2
    for error in result.errors:
        assert error.exception_class is ValueError
        assert "ValueError: broken" in error.traceback
    assert result.started_at < result.last_attempted_at
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_an_error_of_the_projects_own_is_found_again():
    result = tasks.fail_in_its_own_way.enqueue()
    work(result)
    (error,) = result.errors
    assert error.exception_class is tasks.OutOfPaper


def test_a_context_tells_of_earlier_attempts():
    result = tasks.attempts.enqueue()
    work(result)
    assert result.return_value == [2, 1]
    assert [error.exception_class for error in result.errors] == [LookupError]


def test_what_is_not_json_fails_the_task_and_is_refused_as_an_argument():
    result = tasks.not_json.enqueue()
    work(result)
    assert {error.exception_class for error in result.errors} == {TypeError}
    with pytest.raises(TypeError, match="Unsupported"):
        tasks.mail.enqueue(object())


def test_queue_priority_and_time_are_those_of_the_job():
    later = timezone.now() + timedelta(hours=1)
    result = tasks.mail.using(priority=9, run_after=later).enqueue("ada")
    row = app.jobs.get(result.id).row
    assert (row.queue, row.priority, row.next_run_at) == ("mail", 9, later)
    task = tasks.mail.get_result(result.id).task
    assert (task.queue_name, task.priority, task.run_after) == ("mail", 9, later)


def test_without_time_zones_all_times_are_local():
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        connections.close_all()  # PostgreSQL's have a time zone of their own
        later = timezone.now() + timedelta(hours=1)
        result = tasks.mail.using(run_after=later).enqueue("ada")
        found = tasks.mail.get_result(result.id)
        assert found.task.run_after == later
        assert found.enqueued_at == result.enqueued_at
        assert timedelta() <= timezone.now() - found.enqueued_at < timedelta(minutes=10)
        row = app.jobs.get(result.id).row
        assert row.next_run_at == later.replace(tzinfo=ZoneInfo("Asia/Tokyo"))
    connections.close_all()


def test_options_of_pulsed_are_options_of_a_task():
    first, again = tasks.bill.enqueue(3, cents=5), tasks.bill.enqueue(order_id=3)
    other = tasks.bill.using(max_attempts=9, tags=["later"]).enqueue(4)
    assert first.id == again.id != other.id
    assert again.kwargs == {"cents": 5}
    row = app.jobs.get(first.id).row
    assert (row.key, row.max_attempts, row.timeout, row.tags) == ("bill-3", 5, 30, ("money",))
    assert row.expires_at is not None
    assert app.jobs.get(other.id).row.max_attempts == 9


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"queue_name": "nowhere"}, "not valid"),
        ({"priority": 101}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"key": "bill-{nothing}"}, "nothing"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_a_task_that_cannot_run_is_refused(change: dict[str, Any], reason: str):
    with pytest.raises(Exception, match=reason) as caught:
        tasks.bill.using(**change)
    assert "InvalidTask" in type(caught.value).__name__


def test_an_option_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match="max_attemps"):
        tasks.bill.using(max_attemps=3)


@pytest.mark.parametrize("result_id", ["nothing", "0197a8f0-0000-7000-8000-000000000000"])
def test_an_unknown_result_does_not_exist(result_id: str):
    with pytest.raises(Exception, match=result_id) as caught:
        tasks.pack.get_result(result_id)
    assert type(caught.value).__name__ == "TaskResultDoesNotExist"


def test_a_result_of_another_task_is_a_mismatch():
    result = tasks.mail.enqueue("ada")
    with pytest.raises(Exception, match="mail") as caught:
        tasks.pack.get_result(result.id)
    assert type(caught.value).__name__ == "TaskResultMismatch"


def test_a_job_that_is_no_task_is_no_result():
    job = count_orders.enqueue()
    with pytest.raises(Exception, match=str(job.id)) as caught:
        tasks.pack.get_result(str(job.id))
    assert type(caught.value).__name__ == "TaskResultDoesNotExist"


def test_a_cancelled_task_has_failed():
    result = tasks.mail.enqueue("ada")
    app.jobs.cancel(result.id)
    result.refresh()
    assert result.status == "FAILED"
    assert [error.exception_class for error in result.errors] == [JobCancelled]


def test_signals_are_sent_for_every_task():
    seen: list[tuple[str, str, str]] = []

    def receiver(name: str) -> Any:
        def receive(sender: type, task_result: Any, **_: Any) -> None:
            seen.append((name, sender.__module__, str(task_result.status)))

        return receive

    signals = tasks.signals
    receivers = {name: receiver(name) for name in ("enqueued", "started", "finished")}
    for name, receive in receivers.items():
        getattr(signals, f"task_{name}").connect(receive)
    try:
        work(tasks.mail.enqueue("ada"))
        good = [(name, SENDER, state) for name, state in STATES]
        assert seen == good
        seen.clear()
        work(tasks.fail.enqueue("twice"))
        again = [("started", SENDER, "RUNNING"), ("finished", SENDER, "FAILED")]
        assert seen == [*good[:2], *again]
    finally:
        for name, receive in receivers.items():
            getattr(signals, f"task_{name}").disconnect(receive)


SENDER = f"pulsed.contrib.django.{BACKEND.partition('.')[0]}"
STATES = [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_a_receiver_that_fails_does_not_fail_the_task():
    def receive(**_: Any) -> None:
        raise RuntimeError("a receiver's own problem")

    tasks.signals.task_finished.connect(receive)
    try:
        plain, on_loop = tasks.mail.enqueue("ada"), tasks.anothing.enqueue()
        work(plain, on_loop)
        assert {plain.status, on_loop.status} == {"SUCCESSFUL"}
    finally:
        tasks.signals.task_finished.disconnect(receive)


async def test_async_views_enqueue_and_read():
    result = await tasks.mail.aenqueue("ada")
    found = await tasks.mail.aget_result(result.id)
    assert found.status == "READY"


async def test_a_blocking_read_on_an_event_loop_names_its_async_form():
    result = await tasks.mail.aenqueue("ada")
    with pytest.raises(CalledInEventLoop, match=r"get_result\(\) blocks.+await aget_result"):
        result.refresh()


def test_a_result_that_is_read_again_is_the_same():
    result = tasks.pack.enqueue(7, note="now")
    assert tasks.pack.get_result(result.id) == result


def test_a_task_that_exits_has_failed():
    result = tasks.leave.enqueue()
    work(result)
    assert result.status == "FAILED"
    assert {error.exception_class for error in result.errors} == {SystemExit}


def test_the_class_of_tasks_can_be_pickled():
    assert pickle.loads(pickle.dumps(type(tasks.bill))) is type(tasks.bill)


def test_the_command_line_enqueues_a_task_by_its_path():
    job = app.enqueue(tasks.pack.module_path, {"args": [3]})
    found = tasks.pack.get_result(str(job.id))
    assert (found.args, found.kwargs) == ([3], {})


# -- limits ---------------------------------------------------------------------------------------

with_options = pytest.mark.skipif(not tasks.TAKES_OPTIONS, reason="@task takes no limit")


@with_options
def test_a_limit_counts_the_jobs_of_a_task_per_argument():
    results = [
        tasks.serve.enqueue(1, "ada"),
        tasks.serve.enqueue(2, customer="ada"),
        tasks.serve.enqueue(3),
        tasks.print_label.enqueue(4),
    ]
    keys = {job.payload["args"][0]: job.row.limit_key for job in app.jobs.list()}
    topic = tasks.serve.module_path
    assert keys == {
        1: f"{topic},ada",
        2: f"{topic},ada",
        3: f"{topic},nobody",
        4: tasks.print_label.module_path,
    }
    work(*results)
    assert {result.status for result in results} == {"SUCCESSFUL"}
    first = results[0]
    assert (first.args, first.kwargs, first.return_value) == ([1, "ada"], {}, "ada")


@with_options
@pytest.mark.parametrize("limit", [0, "two", Limit(running=1, per="nobody")])
def test_a_limit_that_a_task_cannot_have_is_refused_where_it_is_declared(limit: Any):
    with pytest.raises(Exception, match=r"running|limit"):
        tasks.task(limit=limit)(tasks.mail.func)


def test_a_limit_is_not_changed_for_one_call():
    with pytest.raises(TypeError, match="no option 'limit'"):
        tasks.print_label.using(limit=3)

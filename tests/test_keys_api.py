"""Keys in the API: options, keys computed from arguments, batches, transactions, schedules."""

import asyncio
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from pulsed import DuplicateKey, KeyNotFound, Pulse, Status
from pulsed.errors import InvalidArguments, InvalidHandler, InvalidOption
from pulsed.model.keys import UNTIL_START
from tests.support.backends import Backend


def add(n: int, m: int = 0) -> int:
    return n + m


@pytest.fixture
def job(app: Pulse) -> Any:
    return app.job(add)


# -- one job --------------------------------------------------------------------------------------


def test_a_duplicate_is_the_job_that_holds_the_key(job):
    first = job.using(key="k", priority=7).enqueue(1)
    assert (first.is_new, first.key, first.holds_key) == (True, "k", True)
    second = job.using(key="k").enqueue(2)
    assert (second.is_new, second.id, second.priority) == (False, first.id, 7)
    assert job.using(key="other").enqueue(3).is_new


def test_a_duplicate_may_raise(job):
    first = job.using(key="k").enqueue(1)
    with pytest.raises(DuplicateKey, match="holds the key 'k'") as caught:
        job.using(key="k", on_duplicate="raise").enqueue(2)
    assert caught.value.job_id == first.id


def test_a_duplicate_may_replace(job):
    debounced = job.using(key="k", on_duplicate="replace", delay=60)
    first = debounced.enqueue(1)
    assert first.row.key_for == UNTIL_START
    second = debounced.enqueue(2)
    assert (second.id, second.is_new) == (first.id, False)
    first.refresh()
    assert first.row.payload == '{"n":2}'


async def test_coroutines_do_the_same(url):
    async with Pulse(url) as app:
        job = app.job(add)
        jobs = await asyncio.gather(*(job.using(key="k").aenqueue(n) for n in range(5)))
        assert len({job.id for job in jobs}) == 1
        assert sorted(bool(job.is_new) for job in jobs) == [False] * 4 + [True]
        found = await job.afind("k")
        assert found.id == jobs[0].id


def test_jobs_are_found_by_their_key(app, job):
    with pytest.raises(KeyNotFound, match="no job of 'add' with the key 'k'"):
        job.find("k")
    first = job.using(key="k", delay=60).enqueue(1)
    assert app.jobs.find("add", "k").id == job.find("k").id == first.id
    job.find("k").cancel()
    assert job.find("k").status is Status.CANCELLED
    second = job.using(key="k").enqueue(2)
    assert job.find("k").id == second.id
    assert {each.id for each in app.jobs.list(key="k")} == {first.id, second.id}
    assert [each.id for each in app.jobs.list(key="k", holds_key=True)] == [second.id]


def test_a_retry_whose_key_is_taken_says_by_whom(app, job):
    first = job.using(key="k").enqueue(1)
    first.cancel()
    second = job.using(key="k").enqueue(2)
    with pytest.raises(DuplicateKey, match=f"job {second.id} of 'add' has taken its key 'k'"):
        app.jobs.retry(first.id)
    assert app.jobs.get(first.id).status is Status.CANCELLED
    second.cancel()
    assert app.jobs.retry(first.id) is Status.PENDING


# -- many -----------------------------------------------------------------------------------------


def test_many_jobs_keep_the_first_of_each_key(job):
    calls = [job.using(key=f"k{n % 3}").bind(n) for n in range(6)]
    jobs = job.enqueue_many(calls)
    assert [each.is_new for each in jobs] == [True] * 3 + [False] * 3
    assert [each.id for each in jobs[3:]] == [each.id for each in jobs[:3]]
    assert list(job.enqueue_iter(calls, batch=2)) == [each.id for each in jobs]


# -- keys from arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["sum-{n}-{m}", lambda n, m: f"sum-{n}-{m}"], ids=["text", "function"]
)
def test_a_key_is_computed_from_the_arguments(app, key):
    job = app.job(key=key)(add)
    first = job.enqueue(1)
    assert (first.key, job.enqueue(1, 0).id, job.enqueue(1, m=0).is_new) == (
        "sum-1-0", first.id, False,
    )  # fmt: skip
    assert job.enqueue(1, 2).is_new
    assert job.using(key="mine").enqueue(1).key == "mine"
    assert [each.is_new for each in job.enqueue_many([(1,), (5,), (5,)])] == [False, True, False]
    assert app.enqueue("add", {"n": 1}).id == first.id


def test_a_function_may_decide_that_there_is_no_key(app):
    job = app.job(key=lambda n: None if n < 0 else str(n), on_duplicate="raise")(add)
    assert job.enqueue(-1).is_new
    assert job.enqueue(-1).is_new
    job.enqueue(1)
    with pytest.raises(DuplicateKey):
        job.enqueue(1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"key": "sum-{o}"}, r"key names 'o', which is not a parameter.*There are: n, m"),
        ({"key": lambda o: "k"}, "key names 'o'"),
        ({"key": "sum-{n"}, "not a valid format"),
        ({"key": 7}, "key must be a text"),
        ({"key": "k", "key_for": "soon"}, "key_for must be 'start', 'end' or a number"),
        ({"key": "k", "key_for": -1}, "key_for must be"),
        ({"key": "k", "on_duplicate": "drop"}, "on_duplicate must be 'return'"),
    ],
)
def test_a_bad_key_is_refused_at_the_decorator(app, options, message):
    with pytest.raises(InvalidHandler, match=message):
        app.job(**options)(add)


def test_a_key_that_cannot_be_made_is_refused(app):
    job = app.job(key="{n.name}")(add)
    with pytest.raises(InvalidArguments, match="cannot be made of these arguments"):
        job.enqueue(1)
    tall = app.job(key="{n:300}", topic="tall")(add)
    with pytest.raises(InvalidOption, match="1 to 255 characters"):
        tall.enqueue(1)


@pytest.mark.parametrize("options", [{"key_for": "start"}, {"on_duplicate": "raise"}])
def test_options_about_a_key_need_one(job, options):
    with pytest.raises(InvalidOption, match=r"is about the key of a job: give it key="):
        job.using(**options).enqueue(1)


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\nb", 7])
def test_a_bad_key_is_refused(job, key):
    with pytest.raises(InvalidOption, match="key must"):
        job.using(key=key)


# -- the caller's transaction ---------------------------------------------------------------------


@pytest.mark.embedded("using(conn=...) needs the database itself")
def test_a_key_in_the_callers_transaction(app, job, backend: Backend):
    held = job.using(key="held").enqueue(0)
    with closing(backend.connect()) as connection:
        connection.execute("BEGIN")
        mine = job.using(conn=connection)
        assert (mine.using(key="held").enqueue(1).id, mine.using(key="k").enqueue(1).is_new) == (
            held.id, True,
        )  # fmt: skip
        connection.execute("ROLLBACK")
    assert job.using(key="k").enqueue(2).is_new


@pytest.mark.embedded("using(conn=...) needs the database itself")
def test_a_refused_batch_leaves_nothing_in_the_callers_transaction(app, job, backend: Backend):
    job.using(key="held").enqueue(0)
    with closing(backend.connect()) as connection:
        connection.execute("BEGIN")
        mine = job.using(conn=connection, on_duplicate="raise")
        calls = [job.using(key=key, on_duplicate="raise").bind(1) for key in ("a", "held", "z")]
        with pytest.raises(DuplicateKey):
            job.using(conn=connection).enqueue_many(calls)
        assert mine.using(key="a").enqueue(1).is_new
        connection.execute("COMMIT")
    assert {each.key for each in app.jobs.list()} == {"held", "a"}


# -- schedules ------------------------------------------------------------------------------------


def test_a_schedule_gives_its_jobs_a_key(app, job):
    app.schedules.put("sums", job.bind(1), every=60, key="nightly")
    first = app.schedules.run_now("sums")
    assert (first.key, first.is_new) == ("nightly", True)
    with pytest.raises(DuplicateKey, match="holds the key 'nightly'") as caught:
        app.schedules.run_now("sums")
    assert caught.value.job_id == first.id
    assert len(app.schedules.fires("sums")) == 1


@pytest.mark.parametrize(
    "options", [{"on_duplicate": "raise"}, {"on_duplicate": "replace", "key_for": "end"}]
)
def test_a_schedule_has_no_caller_to_raise_to(app, job, options):
    with pytest.raises(InvalidOption, match="no caller to raise DuplicateKey to"):
        app.schedules.put("sums", job.bind(1), every=timedelta(minutes=1), key="k", **options)

"""A submit says for each job whether it is new, or was stored before under its id."""

import asyncio
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from pulsed import Pulse
from pulsed.errors import TransientStorageError
from pulsed.model.outcome import Succeeded
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.results import submitted_message, submitted_of
from pulsed.store.results import Submitted
from tests.support.backends import Backend
from tests.support.faults import Fault
from tests.support.guards import check
from tests.support.jobs import a_job, running, settle, submitted
from tests.support.performed import Performed
from tests.support.statements import sql_of


def positions(*found: int) -> frozenset[int]:
    return frozenset(found)


# -- a store --------------------------------------------------------------------------------------


async def test_a_single_job_is_new_once(store):
    job = a_job()
    assert await store.submit([job]) == Submitted(1)
    assert await store.submit([job]) == Submitted(1, existing=positions(0))


async def test_jobs_of_a_batch_that_exist_are_named_by_their_positions(store):
    jobs = [a_job() for _ in range(6)]
    assert await store.submit(jobs) == Submitted(6)
    mixed = [a_job(), jobs[4], a_job(), jobs[1], jobs[0], a_job()]
    answer = await store.submit(mixed)
    assert answer == Submitted(6, existing=positions(1, 3, 4))
    assert [answer.is_new(n) for n in range(6)] == [True, False, True, False, False, True]
    assert answer.new == 3
    assert await store.submit(jobs) == Submitted(6, existing=frozenset(range(6)))


async def test_one_known_job_is_found_among_thousands(store):
    known = await submitted(store)
    jobs = [a_job(payload=f'{{"n":{n}}}') for n in range(3_000)]
    jobs[1_234] = a_job(id=known)
    assert await store.submit(jobs) == Submitted(3_000, existing=positions(1_234))


async def test_of_an_id_twice_in_a_batch_the_first_is_new(store):
    job, other = a_job(), a_job()
    assert await store.submit([job, other, job]) == Submitted(3, existing=positions(2))
    assert await store.submit([other, a_job(), other]) == Submitted(3, existing=positions(0, 2))


async def test_a_job_that_has_moved_on_exists(store):
    run = await running(store)
    await settle(store, run, Succeeded())
    assert not (await store.submit([a_job(id=run.job_id)])).is_new(0)
    assert (await store.submit([a_job(id=run.job_id), a_job()])).existing == positions(0)


async def test_a_job_that_was_removed_is_new_again(store):
    first, last = a_job(), a_job()
    await store.submit([first, last])
    await store.delete([last.id])  # its row was the newest of the table
    assert await store.submit([first, last]) == Submitted(2, existing=positions(0))


async def test_of_two_submits_at_once_one_has_stored_the_job(store):
    jobs = [a_job() for _ in range(20)]
    answers = await asyncio.gather(*(store.submit(jobs) for _ in range(4)))
    assert sum(answer.new for answer in answers) == len(jobs)
    assert not any(answer.unknown for answer in answers)


async def test_no_jobs_have_no_answers(store):
    assert await store.submit([]) == Submitted(0)


@pytest.mark.embedded("counts a database's statements")
async def test_only_a_batch_with_known_jobs_may_need_a_second_statement(store, backend):
    await store.now()
    performed = Performed(store)
    jobs = [a_job() for _ in range(50)]
    await store.submit(jobs)
    await store.submit(jobs[:1])
    assert performed.statements["submit"] == 2
    await store.submit([a_job(), jobs[0]])
    assert performed.statements["submit"] == 2 + (2 if backend.engine == "sqlite" else 1)


@pytest.mark.embedded("takes guards out of the statements")
@pytest.mark.parametrize("guard", ["DESC", "LIMIT :inserted"])
async def test_on_sqlite_new_jobs_are_the_last_rows_and_no_others(backend, guard):
    if backend.engine != "sqlite":
        pytest.skip("PostgreSQL answers with the statement itself")

    async def scenario(store, backend):
        known = [a_job() for _ in range(3)]
        await store.submit(known)
        assert (await store.submit([known[0], a_job()])).existing == positions(0)
        assert (await store.submit([known[1], known[2]])).new == 0

    await check(backend, scenario, "last_inserted", guard)


@pytest.mark.embedded("looks at a plan")
async def test_on_sqlite_they_are_read_from_the_end_of_the_table(store, backend):
    if backend.engine != "sqlite":
        pytest.skip("PostgreSQL answers with the statement itself")
    await submitted(store)
    with closing(backend.connect()) as connection:
        connection.execute("ANALYZE")  # of an almost empty table
        text = sql_of(store.engine, "last_inserted").text
        plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", {"inserted": 1}).fetchall()
    assert [step for *_, step in plan] == ["SCAN pulse_jobs"]  # up to its LIMIT, without a sort


# -- answers that get lost ------------------------------------------------------------------------


async def test_a_retry_tells_what_existed_from_what_it_may_have_stored_itself(store, when, times):
    known = await submitted(store)
    jobs = [a_job(), a_job(id=known), a_job()]
    fault = Fault(store, "submit", when, times)
    answer = await store.submit(jobs)
    assert fault.hits == times
    if when == "before":
        assert answer == Submitted(3, existing=positions(1))
    else:
        assert answer == Submitted(3, existing=positions(1), unknown=positions(0, 2))
        assert [answer.is_new(n) for n in range(3)] == [None, False, None]
        assert answer.new == 0


# -- the wire -------------------------------------------------------------------------------------


async def test_a_client_that_has_to_ask_again_knows_only_what_it_has_stored_now(
    server, far, monkeypatch
):
    """The server's answer to the first request got lost, and the server cannot know that."""
    submit, lost = server.store.submit, list[Submitted]()

    async def once_lost(jobs):
        answer = await submit(jobs)
        if not lost:
            lost.append(answer)
            raise TransientStorageError("the connection was lost.")
        return answer

    known = await submitted(far)
    monkeypatch.setattr(server.store, "submit", once_lost)
    answer = await far.submit([a_job(id=known), a_job()])
    assert lost == [Submitted(2, existing=positions(0))]
    assert answer == Submitted(2, unknown=positions(0, 1))
    assert await far.submit([a_job(id=known), a_job()]) == Submitted(2, existing=positions(0))


def test_an_answer_crosses_the_wire_as_it_is():
    for answer in (
        Submitted(3),
        Submitted(3, existing=positions(0, 2)),
        Submitted(3, unknown=positions(1)),
        Submitted(3, existing=positions(0), unknown=positions(1, 2)),
    ):
        assert submitted_of(submitted_message(answer), 3) == answer


def test_a_server_that_only_counts_says_what_a_count_says():
    assert submitted_of(pb.SubmitJobsResponse(inserted=3), 3) == Submitted(3)
    none = submitted_of(pb.SubmitJobsResponse(inserted=0), 3)
    assert [none.is_new(n) for n in range(3)] == [False] * 3
    some = submitted_of(pb.SubmitJobsResponse(inserted=2), 3)
    assert [some.is_new(n) for n in range(3)] == [None] * 3


# -- a handle -------------------------------------------------------------------------------------


@pytest.fixture
def add(app: Pulse) -> Any:
    @app.job
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


def test_a_job_with_an_id_of_the_callers_own_is_new_the_first_time(app: Pulse, add: Any):
    call = add.using(id=uuid4())
    assert [call.enqueue(1).is_new, call.enqueue(1).is_new] == [True, False]
    own = uuid4()
    assert app.enqueue("add", {"a": 1}, id=own).is_new
    job = app.enqueue("add", {"a": 2}, id=own)
    assert job.is_new is False
    assert job.refresh().payload == {"a": 1}  # what is stored stays as it is
    assert job.is_new is False


async def test_so_it_is_for_the_async_twins(app: Pulse, add: Any):
    own = uuid4()
    assert (await add.using(id=own).aenqueue(1)).is_new
    assert (await add.using(id=own).aenqueue(1)).is_new is False
    assert (await app.aenqueue("add", {"a": 1}, id=own)).is_new is False


def test_a_job_with_an_id_that_was_made_for_it_is_new(app: Pulse, add: Any):
    jobs = [add.enqueue(1), app.enqueue("add", {"a": 1}), *add.enqueue_many([(1,), (2,)])]
    assert [job.is_new for job in jobs] == [True] * 4
    app.schedules.put("daily", add.bind(1), every=86_400)
    assert app.schedules.run_now("daily").is_new


def test_a_job_that_was_looked_up_is_not(app: Pulse, add: Any):
    job = add.enqueue(1)
    assert app.jobs.get(job.id).is_new is False
    assert [each.is_new for each in app.jobs.list()] == [False]


@pytest.mark.embedded("a server's own store is not at hand here")
def test_after_a_lost_answer_only_an_id_that_was_made_for_the_job_is_known_to_be_new(
    app: Pulse, add: Any
):
    add.enqueue(0)
    Fault(app.store, "submit", "after")  # type: ignore[arg-type]
    assert add.enqueue(1).is_new
    Fault(app.store, "submit", "after")  # type: ignore[arg-type]
    assert [job.is_new for job in add.enqueue_many([(1,), (2,)])] == [True, True]
    Fault(app.store, "submit", "after")  # type: ignore[arg-type]
    assert add.using(id=uuid4()).enqueue(1).is_new is None
    own = uuid4()
    add.using(id=own).enqueue(1)
    Fault(app.store, "submit", "after")  # type: ignore[arg-type]
    assert add.using(id=own).enqueue(1).is_new is False


@pytest.mark.embedded("a transaction cannot reach through a server")
def test_in_the_callers_own_transaction_a_rollback_makes_it_new_again(
    app: Pulse, add: Any, backend: Backend
):
    own = uuid4()
    app.jobs.counts()  # makes the tables

    def enqueued(connection: Any) -> bool | None:
        new: bool | None = add.using(conn=connection, id=own).enqueue(1).is_new
        return new

    for end, expected in (("ROLLBACK", True), ("COMMIT", True), ("COMMIT", False)):
        with closing(backend.connect()) as connection:
            connection.execute("BEGIN")
            assert enqueued(connection) is expected
            assert enqueued(connection) is False
            connection.execute(end)
    assert [job.id for job in app.jobs.list()] == [own]

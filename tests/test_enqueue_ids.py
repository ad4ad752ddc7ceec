"""A job whose id the caller brings: enqueued again, it is the same job."""

from contextlib import closing
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest

from pulsed import Pulse
from pulsed.errors import InvalidOption, TransientStorageError
from tests.support.backends import Backend


@pytest.fixture
def add(app: Pulse) -> Any:
    @app.job
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


def stored(app: Pulse) -> list[UUID]:
    return [job.id for job in app.jobs.list()]


OWN = [UUID("0191e6c4-273b-4547-bdc8-e29cae7a5166"), uuid5(UUID(int=1), "order 17"), f"{17:032x}"]


@pytest.mark.parametrize("own", OWN, ids=["random", "of a name", "text"])
def test_a_job_with_an_id_of_the_callers_own_is_stored_once(app: Pulse, add: Any, own: Any):
    call = add.using(id=own, queue="mail")
    jobs = [call.enqueue(1), call.enqueue(1), call.using(priority=5).enqueue(1)]
    assert {job.id for job in jobs} == {UUID(str(own))}
    assert stored(app) == [UUID(str(own))]
    assert jobs[0].refresh().priority == 0  # what is stored stays as it is


async def test_the_async_twin_and_the_topic_by_name_take_one_too(app: Pulse, add: Any):
    own = uuid4()
    assert (await add.using(id=own).aenqueue(1)).id == own
    assert (await app.aenqueue("add", {"a": 1}, id=str(own))).id == own
    assert [job.id for job in await app.jobs.alist()] == [own]


def test_every_enqueue_without_one_is_a_job_of_its_own(app: Pulse, add: Any):
    assert add.enqueue(1).id != add.enqueue(1).id


@pytest.mark.parametrize("bad", ["17", 17, b"x" * 16, UUID(int=0)], ids=repr)
def test_what_is_no_id_is_refused(app: Pulse, add: Any, bad: Any):
    with pytest.raises(InvalidOption, match="id must"):
        add.using(id=bad)
    with pytest.raises(InvalidOption, match="id must"):
        app.enqueue("add", {"a": 1}, id=bad)


def test_an_id_is_for_one_job(app: Pulse, add: Any):
    call = add.using(id=uuid4())
    for refused in (
        lambda: call.enqueue_many([(1,), (2,)]),
        lambda: list(call.enqueue_iter([(1,)])),
        lambda: call.bind(1),
        lambda: app.schedules.put("s", call, every=60),
        lambda: app.schedules.put("s", add.bind(1), every=60, id=uuid4()),  # type: ignore[call-arg]
    ):
        with pytest.raises(InvalidOption, match="id="):
            refused()
    assert stored(app) == []


@pytest.mark.embedded("a transaction cannot reach through a server")
def test_it_holds_in_the_callers_own_transaction(app: Pulse, add: Any, backend: Backend):
    own = uuid4()
    app.jobs.counts()  # makes the tables
    for _ in range(2):
        with closing(backend.connect()) as connection:
            connection.execute("BEGIN")
            assert add.using(conn=connection, id=own).enqueue(1).id == own
            connection.execute("COMMIT")
    assert stored(app) == [own]


def test_an_enqueue_that_failed_says_that_it_may_be_stored(
    app: Pulse, add: Any, monkeypatch: pytest.MonkeyPatch
):
    """Its commit went through every time, and the answer was lost."""
    fails = [True]

    async def lost(jobs: Any) -> Any:
        answer = await submit(jobs)
        if fails:
            raise TransientStorageError("the connection was lost.")
        return answer

    submit = app.store.submit
    monkeypatch.setattr(app.store, "submit", lost)
    with pytest.raises(TransientStorageError, match="may be stored all the same") as failed:
        add.enqueue(1)
    [own] = stored(app)
    assert f"id='{own}'" in str(failed.value)
    fails.clear()
    assert add.using(id=own).enqueue(1).id == own
    assert stored(app) == [own]


def test_so_does_a_batch(app: Pulse, add: Any, monkeypatch: pytest.MonkeyPatch):
    async def away(_: Any) -> Any:
        raise TransientStorageError("it is away.")

    monkeypatch.setattr(app.store, "submit", away)
    with pytest.raises(TransientStorageError, match="2 jobs may be stored"):
        add.enqueue_many([(1,), (2,)])

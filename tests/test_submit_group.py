"""Concurrent enqueues of one event loop share a commit, and each is answered by itself."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from pulsed import Pulse
from pulsed.errors import PulsedError, TransientStorageError
from pulsed.model.job import NewJob
from pulsed.store.base import Store
from pulsed.store.results import Submitted
from pulsed.store.submit_group import MOST_IN_FLIGHT, WORTH_HALVING, SubmitGroup
from tests.support.jobs import a_job

CALLERS = 40


@pytest.fixture
def add(app: Pulse) -> Any:
    @app.job
    def add(a: int) -> int:
        return a

    return add


@pytest.fixture
def sizes(app: Pulse, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each submit of the app's store had."""
    sizes: list[int] = []
    submit = app.store.submit

    async def counted(jobs: Sequence[NewJob]) -> Submitted:
        sizes.append(len(jobs))
        return await submit(jobs)

    monkeypatch.setattr(app.store, "submit", counted)
    return sizes


async def test_concurrent_enqueues_are_stored_together(app: Pulse, add: Any, sizes: list[int]):
    jobs = await asyncio.gather(*(add.aenqueue(n) for n in range(CALLERS)))
    assert sizes[:MOST_IN_FLIGHT] == [1] * MOST_IN_FLIGHT
    assert sum(sizes) == CALLERS
    assert len(sizes) <= 2 * MOST_IN_FLIGHT  # one more, or two if both were answered at once
    assert all(job.is_new for job in jobs)
    stored = {job.id: job.row.payload for job in await app.jobs.alist(limit=CALLERS + 1)}
    assert stored == {job.id: f'{{"a":{n}}}' for n, job in enumerate(jobs)}


async def test_a_single_caller_waits_for_no_other(add: Any, sizes: list[int]):
    for n in range(3):
        await add.aenqueue(n)
    assert sizes == [1, 1, 1]
    names = [str(task.get_coro()) for task in asyncio.all_tasks()]
    assert not any("SubmitGroup" in name for name in names)


async def test_jobs_with_keys_and_batches_are_stored_apart(add: Any, sizes: list[int]):
    keyed = (add.using(key="same").aenqueue(n) for n in range(5))
    many = (add.aenqueue_many([(n,), (n,)]) for n in range(5))
    jobs = (await asyncio.gather(*keyed, *many))[:5]
    assert sorted(sizes) == [1] * 5 + [2] * 5
    assert len({job.id for job in jobs}) == 1


async def test_a_bad_job_fails_alone(store: Store):
    jobs = [a_job() for _ in range(CALLERS)]
    bad = {17, 23}
    for place in bad:  # the options of an app would have refused it
        jobs[place] = a_job(priority=1000)
    done = await asyncio.gather(
        *(store.submit_together([job]) for job in jobs), return_exceptions=True
    )
    for place, answer in enumerate(done):
        if place in bad:
            assert isinstance(answer, PulsedError)
            assert "priority" in str(answer)
        else:
            assert answer == Submitted(1)
    assert len(await store.get([job.id for job in jobs])) == CALLERS - len(bad)


async def test_of_two_callers_with_one_id_the_first_stores_the_job(store: Store):
    await store.now()
    job = a_job()
    before = [a_job() for _ in range(MOST_IN_FLIGHT)]
    done = await asyncio.gather(*(store.submit_together([each]) for each in [*before, job, job]))
    assert [answer.new for answer in done] == [1] * MOST_IN_FLIGHT + [1, 0]


class Line:
    """A submit that ends when it is told to, with an error for some of the jobs."""

    def __init__(self) -> None:
        self.sent: list[list[NewJob]] = []
        self.free = asyncio.Event()
        self.error: Exception | None = None

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        self.sent.append(list(jobs))
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return Submitted(len(jobs))


async def gathered(line: Line, number: int) -> list[asyncio.Task[Submitted]]:
    group = SubmitGroup(line.submit)
    tasks = [asyncio.create_task(group.submit([a_job()])) for _ in range(MOST_IN_FLIGHT + number)]
    await asyncio.sleep(0)
    assert list(map(len, line.sent)) == [1] * MOST_IN_FLIGHT
    return tasks


async def test_a_caller_that_is_cancelled_while_it_gathers_stores_nothing():
    line = Line()
    tasks = await gathered(line, 3)
    tasks[-1].cancel()
    line.free.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert list(map(len, line.sent)) == [1] * MOST_IN_FLIGHT + [2]
    assert done[:-1] == [Submitted(1)] * (MOST_IN_FLIGHT + 2)
    assert isinstance(done[-1], asyncio.CancelledError)


async def turns() -> None:
    """Let tasks start, and what they start in turn."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_crowd_is_halved_so_that_one_half_is_served_while_the_other_is_stored():
    line = Line()
    tasks = await gathered(line, 2 * WORTH_HALVING)
    line.free.set()  # both of those in flight are answered in the same turn
    line.free = asyncio.Event()
    await turns()
    assert list(map(len, line.sent)) == [1] * MOST_IN_FLIGHT + [WORTH_HALVING] * 2
    line.free.set()
    await asyncio.gather(*tasks)


async def test_beside_a_large_submit_a_few_callers_gather_and_more_do_not():
    line = Line()
    group = SubmitGroup(line.submit)
    crowd = [asyncio.create_task(group.submit([a_job()])) for _ in range(MOST_IN_FLIGHT + 12)]
    await turns()
    line.free.set()
    line.free = asyncio.Event()  # holds the rest of the crowd
    await asyncio.wait(crowd[:MOST_IN_FLIGHT])
    await turns()
    assert list(map(len, line.sent[MOST_IN_FLIGHT:])) == [12]
    few = [asyncio.create_task(group.submit([a_job()])) for _ in range(2)]
    await turns()
    assert len(line.sent) == MOST_IN_FLIGHT + 1
    more = asyncio.create_task(group.submit([a_job()]))  # a quarter of what is in flight
    await turns()
    assert len(line.sent[-1]) == 3
    line.free.set()
    assert await asyncio.gather(*crowd, *few, more) == [Submitted(1)] * (MOST_IN_FLIGHT + 15)


async def test_a_few_that_gathered_beside_a_large_submit_are_sent_after_it():
    line = Line()
    group = SubmitGroup(line.submit)
    crowd = [asyncio.create_task(group.submit([a_job()])) for _ in range(MOST_IN_FLIGHT + 12)]
    await turns()
    line.free.set()
    line.free = asyncio.Event()
    await asyncio.wait(crowd[:MOST_IN_FLIGHT])
    await turns()
    one = asyncio.create_task(group.submit([a_job()]))
    await turns()
    line.free.set()
    assert await one == Submitted(1)
    assert list(map(len, line.sent[MOST_IN_FLIGHT:])) == [12, 1]


async def test_gathered_jobs_are_sent_even_if_the_task_that_was_to_send_them_is_cancelled():
    line = Line()
    tasks = await gathered(line, 3)
    line.free.set()
    sending: set[asyncio.Task[Any]] = set()
    while not sending:
        await asyncio.sleep(0)
        sending = {each for each in asyncio.all_tasks() if "SubmitGroup._send" in repr(each)}
        if not line.sent[MOST_IN_FLIGHT:]:  # it has not started yet
            for each in sending:
                each.cancel()
    assert await asyncio.gather(*tasks) == [Submitted(1)] * (MOST_IN_FLIGHT + 3)


async def test_a_caller_that_is_cancelled_in_flight_fails_no_other():
    line = Line()
    tasks = await gathered(line, 0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    line.free.set()
    assert await tasks[1] == Submitted(1)


async def test_each_caller_gets_the_error_of_an_outage_as_its_own():
    line = Line()
    line.error = TransientStorageError("the database is away.")
    tasks = await gathered(line, 3)
    line.free.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert len({id(error) for error in errors[MOST_IN_FLIGHT:]}) == 3
    assert {str(error) for error in errors} == {"the database is away."}
    assert all(type(error) is TransientStorageError for error in errors)


async def test_each_error_names_the_id_of_its_own_job(
    app: Pulse, add: Any, monkeypatch: pytest.MonkeyPatch
):
    async def submit(jobs: Sequence[NewJob]) -> Submitted:
        await asyncio.sleep(0)
        raise TransientStorageError(f"{len(jobs)} not stored.")

    monkeypatch.setattr(app.store, "submit", submit)
    ids = [uuid4() for _ in range(5)]
    calls = (add.using(id=each).aenqueue(1) for each in ids)
    errors = await asyncio.gather(*calls, return_exceptions=True)
    for each, error in zip(ids, errors, strict=True):
        assert str(error).count("id=") == 1
        assert str(each) in str(error)


def test_a_loop_that_ends_leaves_no_caller_waiting():
    ended: list[str] = []

    async def main() -> None:
        async def caller(group: SubmitGroup) -> None:
            try:
                await group.submit([a_job()])
            finally:
                ended.append("caller")

        group = SubmitGroup(Line().submit)
        callers = range(MOST_IN_FLIGHT + 3)
        keep.extend([asyncio.create_task(caller(group)) for _ in callers])
        await asyncio.sleep(0)

    keep: list[asyncio.Task[None]] = []
    with suppress(asyncio.CancelledError):
        asyncio.run(main())
    assert len(ended) == MOST_IN_FLIGHT + 3

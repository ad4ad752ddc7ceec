"""Jobs that wait alone for transactions of others, each key in a line of its own."""

import asyncio
from collections.abc import Sequence

from pulsed.errors import StorageBusy
from pulsed.model.job import NewJob
from pulsed.model.job_batch import GatheredJobs
from pulsed.store.lone_submits import MOST_TRIED, MOST_WAITING, LoneSubmits
from pulsed.store.results import Submitted
from pulsed.store.submit_group import MOST_IN_FLIGHT, WORTH_HALVING, SubmitGroup
from tests.support.jobs import a_job
from tests.support.waiting import turns


class LockedKeys:
    """A store in which a transaction that is not over has stored some keys."""

    def __init__(self, *keys: str) -> None:
        self.over = {key: asyncio.Event() for key in keys}
        self.tried = list[str]()
        self.waited = list[str]()
        self.waiting = 0
        self.most_waiting = 0
        self.trying = 0
        self.most_tried = 0
        self.batches = list[int]()

    def is_locked(self, job: NewJob) -> bool:
        over = self.over.get(job.key or "")
        return over is not None and not over.is_set()

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        self.waited += [job.key or "" for job in jobs]
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        for job in jobs:
            if self.is_locked(job):
                await self.over[job.key or ""].wait()
        self.waiting -= 1
        return Submitted(len(jobs))

    async def submit_unless_locked(self, jobs: Sequence[NewJob]) -> Submitted:
        self.tried += [job.key or "" for job in jobs]
        self.batches.append(len(jobs))
        self.trying += 1
        self.most_tried = max(self.most_tried, self.trying)
        await asyncio.sleep(0)
        self.trying -= 1
        if any(map(self.is_locked, jobs)):
            raise StorageBusy("A key is locked.")
        return Submitted(len(jobs))


async def test_of_jobs_with_one_key_one_waits_on_a_connection():
    store = LockedKeys("a", "b")
    lone = LoneSubmits(store.submit, store.submit_unless_locked)
    of_a = [asyncio.create_task(lone.submit([a_job(key="a")])) for _ in range(9)]
    await turns(200)
    assert store.waited == ["a"]
    assert store.tried == ["a"] * MOST_TRIED  # the others know from them that it is locked
    of_b = asyncio.create_task(lone.submit([a_job(key="b")]))
    await turns(200)
    assert sorted(store.waited) == ["a", "b"]
    store.over["b"].set()
    assert await of_b == Submitted(1)
    assert not any(task.done() for task in of_a)
    store.over["a"].set()
    assert await asyncio.gather(*of_a) == [Submitted(1)] * 9
    assert not lone.is_blocked(a_job(key="a"))


async def test_only_a_few_wait_or_are_tried_at_a_time():
    names = [f"k{n}" for n in range(20)]
    store = LockedKeys(*names)
    lone = LoneSubmits(store.submit, store.submit_unless_locked)
    tasks = [asyncio.create_task(lone.submit([a_job(key=name)])) for name in names]
    await turns(200)
    free = [asyncio.create_task(lone.submit([a_job(key=f"free {n}")])) for n in range(20)]
    assert await asyncio.gather(*free) == [Submitted(1)] * 20
    assert (store.most_waiting, store.most_tried) == (MOST_WAITING, MOST_TRIED)
    for over in store.over.values():
        over.set()
    assert await asyncio.gather(*tasks) == [Submitted(1)] * 20


async def test_a_job_whose_key_is_known_to_be_locked_is_in_no_batch():
    store = LockedKeys("a")
    group = SubmitGroup(store.submit, store.submit_unless_locked)
    tasks = [asyncio.create_task(group.submit([a_job(key="a")])) for _ in range(MOST_IN_FLIGHT + 1)]
    await turns(200)
    store.tried.clear()
    late = [asyncio.create_task(group.submit([a_job(key="a")])) for _ in range(3)]
    await turns(200)
    assert store.tried == []
    for task in late[:2]:
        task.cancel()
    store.over["a"].set()
    assert await asyncio.gather(*tasks, late[2]) == [Submitted(1)] * (MOST_IN_FLIGHT + 2)


async def test_the_same_key_of_another_topic_does_not_wait():
    store = LockedKeys("a")
    lone = LoneSubmits(store.submit, store.submit_unless_locked)
    task = asyncio.create_task(lone.submit([a_job(topic="one", key="a")]))
    await turns(200)
    assert lone.is_blocked(a_job(topic="one", key="a"))
    assert not lone.is_blocked(a_job(topic="other", key="a"))
    assert not lone.is_blocked(a_job(topic="one"))
    store.over["a"].set()
    await task


async def test_a_crowd_is_halved_also_while_others_wait_alone():
    store = LockedKeys("a")
    group = SubmitGroup(store.submit, store.submit_unless_locked)
    waiting = [asyncio.create_task(group.submit([a_job(key="a")])) for _ in range(MOST_IN_FLIGHT)]
    await turns(200)
    crowd = [group.submit([a_job(key=f"k{n}")]) for n in range(2 * WORTH_HALVING)]
    assert await asyncio.gather(*crowd) == [Submitted(1)] * len(crowd)
    assert store.batches == [WORTH_HALVING, WORTH_HALVING]
    store.over["a"].set()
    await asyncio.gather(*waiting)


async def test_an_attempt_whose_answer_was_lost_may_have_stored_the_job():
    async def unless_locked(jobs: GatheredJobs) -> Submitted:
        jobs.may_be_stored = True
        raise StorageBusy("A key is locked.")

    async def submit(_: Sequence[NewJob]) -> Submitted:
        return Submitted(1, existing=frozenset([0]))

    submitted = await LoneSubmits(submit, unless_locked).submit([a_job(key="a")])
    assert submitted == Submitted(1, unknown=frozenset([0]))

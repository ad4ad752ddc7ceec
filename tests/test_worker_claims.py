"""Which jobs a worker takes, when, and how many."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast
from uuid import UUID

import pytest

from pulsed.engine.worker import worker as worker_module
from pulsed.engine.worker.claimer import Claimer, SlotGroup
from pulsed.engine.worker.leases import Leases
from pulsed.errors import StorageFull
from pulsed.model.backoff import Backoff
from pulsed.model.job import Assignment, Lease, Status
from pulsed.store.listener import Listener
from pulsed.store.results import Assignments
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend
from tests.support.clock import Clock
from tests.support.faults import Fault
from tests.support.jobs import ALICE, BOB, a_policy
from tests.support.workers import (
    NEVER,
    all_finished,
    finished,
    handler,
    in_status,
    row,
    submit,
    submit_many,
    submit_with,
    until,
    working,
)


class Claims:
    """Records how much a worker asks for, and what it gets."""

    def __init__(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.got: list[list[Assignment]] = []
        self.under_way = 0
        for name in ("claim", "await_jobs"):
            monkeypatch.setattr(store, name, partial(self._recorded, getattr(store, name)))

    async def _recorded(self, claim: Any, *asked: Any, **options: Any) -> list[Assignment]:
        self.asked.append(asked[-1])
        self.under_way += 1
        try:
            claimed: list[Assignment] = await claim(*asked, **options)
        finally:
            self.under_way -= 1
        self.got.append(claimed)
        return claimed


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_no_more_jobs_run_than_there_are_slots(store: SqlStore, plain: bool):
    lock = threading.Lock()
    now = most = 0

    def count(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    async def coroutine(n: int) -> None:
        count(+1)
        await asyncio.sleep(0.001)
        count(-1)

    def function(n: int) -> None:
        count(+1)
        threading.Event().wait(0.001)
        count(-1)

    fn = function if plain else coroutine
    ids = await submit_many(store, fn.__name__, 60)
    async with working(store, fn, concurrency=4):
        await all_finished(store, ids)
    assert 2 <= most <= 4


async def test_no_job_is_leased_ahead_of_its_slot(store: SqlStore, backend: Backend):
    """What is leased has a slot, or its report is on the way: a crash costs no other an attempt."""
    ahead: list[int] = []
    leased = "SELECT count(*) FROM pulse_jobs WHERE status = 'RUNNING'"

    async def look(n: int) -> None:
        ahead.append(backend.execute(leased)[0][0] - 4 - it.worker._settler.backlog)

    ids = await submit_many(store, "look", 40)
    async with working(store, look, concurrency=4) as it:
        await all_finished(store, ids)
    assert len(ahead) == 40
    assert max(ahead) <= 0


async def test_a_worker_asks_for_its_free_slots_only(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    claims = Claims(store, monkeypatch)
    release = asyncio.Event()

    async def slow(n: int) -> None:
        await release.wait()

    first = await submit_many(store, "slow", 3)
    async with working(store, slow, concurrency=5) as it:
        await until(lambda: it.worker.describe().running == 3)
        await until(lambda: claims.asked[-1] == 2)
        more = await submit_many(store, "slow", 9)
        await until(lambda: it.worker.describe().running == 5)
        asked = len(claims.asked)
        release.set()
        await all_finished(store, [*first, *more])
    assert claims.asked[0] == 5
    assert max(claims.asked[1:asked]) == 2


async def test_many_jobs_are_claimed_at_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    claims = Claims(store, monkeypatch)

    async def quick(n: int) -> None:
        pass

    ids = await submit_many(store, "quick", 300)
    async with working(store, quick, concurrency=100):
        await all_finished(store, ids)
    assert sum(len(claimed) for claimed in claims.got) == 300
    assert len([claimed for claimed in claims.got if claimed]) < 30


async def test_the_highest_priority_runs_first_then_the_oldest(store: SqlStore, clock: Clock):
    ran: list[int] = []

    async def note(n: int) -> None:
        ran.append(n)

    ids = []
    for n, priority in enumerate([0, -5, 9, 0, 9]):
        ids.append(await submit_with(store, "note", {"priority": priority}, n=n))
        clock.advance(1)
    async with working(store, note, concurrency=1):
        await all_finished(store, ids)
    assert ran == [2, 4, 0, 3, 1]


async def test_queues_are_served_in_the_order_given(store: SqlStore):
    ran: list[str] = []

    async def note(queue: str) -> None:
        ran.append(queue)

    ids = [
        await submit_with(store, "note", {"queue": queue}, queue=queue)
        for queue in ("slow", "fast", "other", "slow", "fast")
    ]
    other = ids.pop(2)
    async with working(store, note, concurrency=1, queues=["fast", "slow"]):
        await all_finished(store, ids)
    assert ran == ["fast", "fast", "slow", "slow"]
    assert (await row(store, other)).status is Status.PENDING


async def test_weighted_queues_share_by_their_weights(store: SqlStore):
    async def quick() -> None:
        pass

    async with working(store, quick, queues={"a": 9, "b": 1}, poll=NEVER) as it:
        await until(lambda: it.worker._listener is not None)
        orders = [it.worker._claimer._order() for _ in range(2_000)]
    first = Counter(order[0] for order in orders)
    assert all(sorted(order) == ["a", "b"] for order in orders), "nobody starves"
    assert 1_600 < first["a"] < 1_980


async def test_jobs_of_topics_without_a_handler_are_left_alone(store: SqlStore):
    async def known() -> None:
        pass

    unknown = await submit_with(store, "deployed_tomorrow", {"priority": 100})
    mine = await submit(store, "known")
    async with working(store, known):
        await finished(store, mine)
    job = await row(store, unknown)
    assert (job.status, job.attempts, job.max_attempts) == (Status.PENDING, 0, None)


async def test_what_a_job_left_unset_is_filled_from_its_handler(store: SqlStore):
    async def quick() -> None:
        pass

    unset = await submit(store, "quick")
    own = await submit_with(store, "quick", {"max_attempts": 2, "timeout": 5.0, "lease": 10.0})
    function = handler(quick, max_attempts=7, timeout=60, lease=90, backoff=Backoff.fixed(3))
    async with working(store, function):
        filled, kept = await all_finished(store, [unset, own])
    assert (filled.max_attempts, filled.timeout, filled.lease_seconds) == (7, 60, 90)
    assert (kept.max_attempts, kept.timeout, kept.lease_seconds) == (2, 5, 10)


# -- when to poll ---------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same store", "another process"])
async def test_a_hint_starts_a_job_long_before_the_next_poll(backend: Backend, elsewhere: bool):
    async def quick() -> None:
        pass

    store = backend.open()
    producer = backend.open() if elsewhere else store
    async with working(store, quick, poll=60) as it:
        worker = it.worker
        await until(lambda: worker._listener is not None and worker._listener.healthy)
        for _ in range(3):
            job_id = await submit(producer, "quick")
            assert (await finished(store, job_id)).status is Status.SUCCEEDED
    await producer.aclose()
    await store.aclose()


class Deaf(Listener):
    healthy = False


@asynccontextmanager
async def no_hints(queues: Any, wake: Any) -> AsyncIterator[Listener]:
    yield Deaf()


async def test_without_hints_the_poll_starts_the_job(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    async def quick() -> None:
        pass

    monkeypatch.setattr(store, "listen", no_hints)
    async with working(store, quick, poll=0.05) as it:
        await until(lambda: it.worker._listener is not None)
        for _ in range(3):
            job_id = await submit(store, "quick")
            await finished(store, job_id)


async def test_a_freed_slot_is_filled_at_once(store: SqlStore):
    async def quick(n: int) -> None:
        pass

    ids = await submit_many(store, "quick", 20)
    async with working(store, quick, concurrency=1, poll=60):
        await all_finished(store, ids)


# -- claims without an answer ---------------------------------------------------------------------


async def test_a_slot_that_is_freed_during_a_full_claim_does_not_look_like_an_empty_queue(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    proceed = asyncio.Event()

    async def first() -> None:
        await proceed.wait()

    async def quick(n: int) -> None:
        pass

    claim = store.claim

    async def claim_while_a_run_ends(*asked: Any) -> list[Assignment]:
        claimed = await claim(*asked)
        if claimed and asked[3] == 1:  # for the one free slot, while the other becomes free
            proceed.set()
            await until(lambda: not it.worker._runner.runs)
        return claimed

    monkeypatch.setattr(store, "listen", no_hints)
    monkeypatch.setattr(store, "claim", claim_while_a_run_ends)
    blocked = await submit(store, "first")
    async with working(store, first, quick, concurrency=2, poll=NEVER) as it:
        await in_status(store, blocked, Status.RUNNING)
        waiting = await submit_many(store, "quick", 3)
        it.worker._claimer.wake()

        await all_finished(store, [blocked, *waiting])


async def test_jobs_of_a_claim_whose_answer_was_lost_are_given_back_and_run(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    ran: list[int] = []

    async def note(n: int) -> None:
        ran.append(n)

    ids = await submit_many(store, "note", 5)
    fault = Fault(store, "claim", "after")
    claims = Claims(store, monkeypatch)
    looked: list[int] = []
    held = store.held

    async def watched(worker_id: UUID) -> list[Lease]:
        looked.append(claims.under_way)
        return await held(worker_id)

    monkeypatch.setattr(store, "held", watched)
    async with working(store, note):
        jobs = await all_finished(store, ids)
    assert fault.hits == 1
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}
    assert looked, "the worker never looked for what it had claimed"
    assert set(looked) == {0}, "a row that is just being claimed was looked at"


async def test_lost_claims_are_found_while_every_slot_is_busy(store: SqlStore):
    release = asyncio.Event()

    async def slow(n: int) -> None:
        await release.wait()

    first = await submit_many(store, "slow", 1)
    async with working(store, slow, concurrency=2) as it:
        await until(lambda: it.worker.describe().running == 1)
        fault = Fault(store, "claim", "after")
        lost, other = await submit_many(store, "slow", 2)
        # One of the two has no slot when it is claimed, the other one takes the last slot.
        await until(lambda: it.worker.describe().running == 2)

        async def given_back() -> bool:
            jobs = [await row(store, job_id) for job_id in (lost, other)]
            return sorted(job.status for job in jobs) == [Status.PENDING, Status.RUNNING]

        await until(given_back)
        release.set()
        jobs = await all_finished(store, [*first, lost, other])
    assert fault.hits == 1
    assert {job.attempts for job in jobs} == {1}


async def test_lost_claims_are_given_back_by_a_worker_that_is_told_to_stop(store: SqlStore):
    async def quick() -> None:
        pass

    fault = Fault(store, "claim", "after", times=10**9)
    job_id = await submit(store, "quick")
    async with working(store, quick) as it:
        await until(lambda: fault.hits > 0)
        await in_status(store, job_id, Status.RUNNING, Status.PENDING)
        await it.stop()
    job = await row(store, job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)


async def test_the_jobs_of_others_are_never_given_back(store: SqlStore):
    async def note(n: int) -> None:
        pass

    taken = await submit_with(store, "note", {"priority": 9}, n=9)
    (theirs,) = await store.claim(BOB, "default", [a_policy("note")], 1)
    assert theirs.job_id == taken
    ids = await submit_many(store, "note", 3)
    Fault(store, "claim", "after")
    async with working(store, note):
        await all_finished(store, ids)
    assert (await row(store, taken)).locked_by == BOB


# -- a database that takes no reports -------------------------------------------------------------


async def test_a_worker_whose_reports_pile_up_stops_claiming_and_recovers(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_module, "MOST_UNREPORTED", 2)
    settle = store.settle
    full = True

    async def refused(reports: Any, **options: Any) -> set[Lease]:
        if full:
            raise StorageFull("no room")
        return await settle(reports, **options)

    async def quick(n: int) -> None:
        pass

    monkeypatch.setattr(store, "settle", refused)
    ids = await submit_many(store, "quick", 40)
    async with working(store, quick, concurrency=3) as it:
        await until(lambda: it.worker._listener is not None)
        await until(lambda: it.worker._free_slots() == 0 and not it.worker._runner.runs)
        claimed = [job for job in (await store.get(ids)).values() if job.attempts]
        assert 5 < len(claimed) <= 8
        full = False
        jobs = await all_finished(store, ids)
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}


async def test_the_earliest_time_to_come_back_counts_of_all_queues(store: SqlStore, monkeypatch):
    again_in = {"now": 0.0, "later": 5.0, "whenever": None}

    async def claim(_: Any, queue: str, *__: Any) -> Assignments:
        return Assignments(again_in=again_in[queue])

    monkeypatch.setattr(store, "claim", claim)
    claimer = Claimer(
        store,
        ALICE,
        cast("Leases", None),
        queues=list(again_in),
        groups=[SlotGroup([a_policy()], 1, lambda _: 1)],
        poll=1.0,
        start=lambda *_: None,
    )
    assert await claimer.tick()
    assert claimer.again_in == 0.0


async def test_the_next_claim_is_sent_before_the_jobs_of_the_last_one_start(store, monkeypatch):
    """The database works while Python starts them."""
    heard: list[str] = []
    taken = 2

    async def claim(_: Any, __: str, ___: Any, limit: int) -> Assignments:
        nonlocal taken
        heard.append(f"claim {limit}")
        taken = 0
        await asyncio.sleep(0)
        if len(heard) > 1:
            claimer.stop()
            return Assignments()
        return Assignments(cast("list[Assignment]", [object()] * limit))

    def start(jobs: list[Assignment], _: float) -> None:
        heard.append(f"start {len(jobs)}")

    monkeypatch.setattr(store, "claim", claim)
    claimer = Claimer(
        store,
        ALICE,
        cast("Leases", None),
        queues=["default"],
        groups=[SlotGroup([a_policy()], 4, lambda unstarted: 4 - taken - unstarted)],
        poll=1.0,
        start=start,
    )
    await asyncio.wait_for(claimer.run(), 30)
    assert heard == ["claim 2", "claim 2", "start 2"]


@pytest.mark.parametrize(
    "pushed, then", [(1, ["start 1", "claim"]), (2, ["claim", "start 2"])], ids=["all", "more"]
)
async def test_pushed_jobs_start_at_once_unless_there_may_be_more(store, monkeypatch, pushed, then):
    """The server has said so with fewer than it was asked for."""
    heard: list[str] = []

    async def claim(*_: Any) -> Assignments:
        heard.append("claim")
        if len(heard) > 1:
            claimer.stop()
        return Assignments()

    async def await_jobs(*_: Any, seconds: float) -> list[Assignment]:
        return cast("list[Assignment]", [object()] * pushed)

    def start(jobs: list[Assignment], _: float) -> None:
        heard.append(f"start {len(jobs)}")

    monkeypatch.setattr(store, "claim", claim)
    monkeypatch.setattr(store, "await_jobs", await_jobs)
    claimer = Claimer(
        store,
        ALICE,
        cast("Leases", None),
        queues=["default"],
        groups=[SlotGroup([a_policy()], 4, lambda _: 4)],
        poll=1.0,
        start=start,
    )
    claimer._was_busy = True
    await asyncio.wait_for(claimer.run(), 30)
    await asyncio.sleep(0)
    assert heard == ["claim", *then]

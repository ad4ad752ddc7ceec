"""Keeping leases, losing them, and recovering the jobs of the silent."""

import asyncio
import logging
import threading
import time
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest

from pulsed.engine.context import Context
from pulsed.engine.worker import leases as lease_keeping
from pulsed.engine.worker import loop_watch
from pulsed.engine.worker.leases import Fence, Leases
from pulsed.errors import LeaseLost, ServerUnreachable, TransientStorageError
from pulsed.model.job import Assignment, Lease, Status
from pulsed.model.outcome import Beat, Succeeded
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend
from tests.support.clock import Clock
from tests.support.jobs import ALICE, BOB, NO_WAIT, a_policy, claim, reap, settle
from tests.support.workers import (
    Working,
    beat,
    finished,
    first_tick,
    handler,
    in_status,
    result,
    row,
    submit,
    submit_many,
    submit_with,
    until,
    working,
)

LEASE = 30.0


async def stolen(backend: Backend, store: SqlStore, job_id: UUID, topic: str) -> Assignment:
    """Let a running job's lease expire, have it reaped, and give it to Bob."""
    await first_tick(backend)
    clock = backend.clock
    clock.advance(LEASE + 1)
    assert await reap(store) == [job_id]
    (assignment,) = await claim(store, BOB, topics=[a_policy(topic)])
    assert assignment.job_id == job_id
    return assignment


# -- heartbeats -----------------------------------------------------------------------------------


async def test_one_beat_extends_every_lease(
    store: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    beats: list[int] = []
    real = store.beat

    async def counted(leases: Any, **options: Any) -> dict[Lease, Beat]:
        beats.append(len(leases))
        return await real(leases, **options)

    release = asyncio.Event()

    async def slow(n: int) -> None:
        await release.wait()

    ids = await submit_many(store, "slow", 20)
    monkeypatch.setattr(store, "beat", counted)
    async with working(store, slow, concurrency=20) as it:
        await until(lambda: it.worker.describe().running == 20)
        clock.advance(20)
        answers = await beat(it)
        assert beats == [20]
        assert set(answers.values()) == {Beat.OK}
        for job in (await store.get(ids)).values():
            assert job.lease_until == clock.after(LEASE)
        release.set()


def an_assignment(number: int, lease: float) -> Assignment:
    now = Clock().now
    held = Lease(UUID(int=number), 1, ALICE)
    return Assignment(held, "t", "default", 0, "{}", 1, 3, lease, None, {}, now, now)


class Answering:
    """A store that only takes heartbeats."""

    def __init__(self) -> None:
        self.broken = False
        self.beats: list[float] = []

    async def beat(self, leases: Any, **_: Any) -> dict[Lease, Beat]:
        self.beats.append(time.monotonic())
        if self.broken:
            raise TransientStorageError("away")
        return dict.fromkeys(leases, Beat.OK)

    def thread_ends(self) -> None:
        """Has no connection."""


def some_leases(store: Any) -> Leases:
    return Leases(store, lambda _: None, lambda *_: None)


def test_the_shortest_lease_sets_the_pace():
    leases = some_leases(Answering())
    for added, pace in [([an_assignment(1, 60)], 20), ([*map(an_assignment, (2, 3), (6, 30))], 2)]:
        before = time.monotonic()
        leases.add(added, before)
        assert leases._next_beat == before + pace


def test_a_lease_counts_from_when_it_was_asked_for():
    """It may have been granted then: an answer can be in flight for long, or a process frozen."""
    given_up: list[Any] = []
    store: Any = Answering()
    leases = Leases(store, given_up.extend, lambda *_: None, fence=Fence.UNCONFIRMED)
    store.broken = True
    asked_at = time.monotonic() - 29
    leases.add([an_assignment(1, 30)], asked_at)
    leases.add([an_assignment(2, 60)], asked_at)
    assert leases._next_beat <= time.monotonic()
    leases.attempt()
    assert given_up == [an_assignment(1, 30).lease]


def test_a_job_that_was_long_on_its_way_is_no_late_beat():
    late: list[Any] = []
    store: Any = Answering()
    leases = Leases(store, lambda _: None, lambda *args: late.append(args))
    leases.add([an_assignment(1, 30)], time.monotonic() - 29)
    assert leases._wait_for_next_beat()
    assert late == []


class SlowDatabase:
    """A database that takes its time to answer, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.takes = 0.0
        self.answer = Beat.OK

    def monotonic(self) -> float:
        return self.now

    async def beat(self, leases: Any, **_: Any) -> dict[Lease, Beat]:
        self.now += self.takes
        return dict.fromkeys(leases, self.answer)


@pytest.fixture
def slow_database(monkeypatch: pytest.MonkeyPatch) -> Any:
    database = SlowDatabase()
    monkeypatch.setattr("pulsed.engine.worker.leases.time", database)
    return database


def test_a_database_that_stood_still_is_not_taken_for_a_held_interpreter(
    slow_database: Any, caplog: pytest.LogCaptureFixture
):
    late: list[Any] = []
    leases = Leases(slow_database, lambda _: None, lambda *args: late.append(args))
    leases.add([an_assignment(1, 30)], slow_database.now)
    slow_database.now += 10
    slow_database.takes = 34
    leases.attempt()
    assert leases._wait_for_next_beat()
    assert late == []
    assert "took 34.0 s" in caplog.text
    slow_database.takes = 0
    leases.attempt()
    slow_database.now += 25  # the thread was not woken in time
    assert leases._wait_for_next_beat()
    assert [seconds for seconds, _ in late] == [15.0]


@pytest.mark.parametrize("answer", [Beat.OK, Beat.CANCEL, Beat.UNKNOWN])
def test_only_an_extended_lease_makes_a_worker_sure_of_it(slow_database: Any, answer: Beat):
    """A row locked by another session was not extended; its lease still expires."""
    given_up: list[Lease] = []

    def answers(found: dict[Lease, Beat]) -> None:
        given_up.extend(lease for lease, said in found.items() if said is Beat.LOST)

    leases = Leases(slow_database, answers, lambda *_: None, fence=Fence.UNHEARD)
    run = an_assignment(1, 30)
    leases.add([run], slow_database.now)
    slow_database.answer = answer
    for _ in range(2):
        slow_database.now += 13
        leases.attempt()
    assert given_up == ([run.lease] if answer is Beat.UNKNOWN else [])


def test_a_lease_that_could_not_be_extended_is_tried_again_soon(slow_database: Any):
    leases = some_leases(slow_database)
    leases.add([an_assignment(1, 30)], slow_database.now)
    slow_database.answer = Beat.UNKNOWN
    leases.attempt()
    assert leases._next_beat == slow_database.now + 2.5


async def test_beats_come_a_third_of_a_lease_apart_and_sooner_after_a_failure():
    store = Answering()
    leases = some_leases(store)
    leases.start()
    try:
        leases.add([an_assignment(1, 1.2)], time.monotonic())
        await until(lambda: len(store.beats) >= 3)
        gaps = [b - a for a, b in pairwise(store.beats)]
        assert min(gaps) > 0.3
        store.broken = True
        good = len(store.beats)
        await until(lambda: len(store.beats) >= good + 4)
        # By itself a fourth of the usual gap; a busy machine may stretch some of them.
        await until(lambda: min(b - a for a, b in pairwise(store.beats[good:])) < 0.3)
    finally:
        leases.stop()


def test_a_newer_lease_on_the_same_job_supersedes_the_older_one():
    leases = some_leases(Answering())
    first = an_assignment(1, 30)
    newer = first.lease._replace(token=first.lease_token + 1)
    second = msgspec.structs.replace(first, lease=newer)
    assert leases.add([first], 0.0) == []
    assert leases.add([second], 0.0) == [first.lease]
    leases.drop([first.lease])
    assert leases.holds(second.lease)
    assert not leases.holds(first.lease)


# -- losing a lease -------------------------------------------------------------------------------


async def test_what_took_longer_to_arrive_than_its_lease_lasts_is_given_back_not_begun(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    """Another worker may run it by now; this one may have been frozen when the answer came."""
    lease = 0.5
    ran: list[Lease] = []
    claim = store.claim

    async def claim_and_freeze(*asked: Any) -> list[Assignment]:
        claimed = await claim(*asked)
        if claimed and not frozen:
            frozen.append(claimed[0].lease)
            await asyncio.sleep(1.2 * lease)
        return claimed

    async def job() -> None:
        ran.append(frozen[0])

    frozen: list[Lease] = []
    monkeypatch.setattr(store, "claim", claim_and_freeze)
    async with working(store, handler(job, lease=lease)):
        done = await finished(store, await submit(store, "job"))
    assert len(ran) == 1
    assert done.attempts == 1  # the first one was given back, and does not count
    assert done.lease_token > frozen[0].token


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_run_that_lost_its_lease_is_stopped_and_reports_nothing(
    store: SqlStore, backend: Backend, plain: bool
):
    release = threading.Event()
    stopped: list[bool] = []

    async def coroutine(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.cancelled)
        return "mine"

    def function(ctx: Context) -> str:
        release.wait(60)
        stopped.append(ctx.cancelled)
        return "mine"

    fn = function if plain else coroutine
    job_id = await submit_with(store, fn.__name__, {"backoff": NO_WAIT})
    async with working(store, fn, concurrency=1) as it:
        await in_status(store, job_id, Status.RUNNING)
        it.worker._claimer.stopping = True  # leave the job to Bob
        theirs = await stolen(backend, store, job_id, fn.__name__)
        assert set((await beat(it)).values()) == {Beat.LOST}
        await until(lambda: it.worker.describe().stuck == 1 if plain else stopped)
        release.set()
        await until(lambda: it.worker.describe().running == 0)
        assert stopped == [True]
        assert it.worker._leases.tick() == {}
    job = await row(store, job_id)
    assert (job.status, job.locked_by) == (Status.RUNNING, BOB)
    assert await settle(store, theirs, Succeeded('"theirs"'))


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_job_that_was_fenced_is_not_given_back(
    store: SqlStore, backend: Backend, clock: Clock, monkeypatch: pytest.MonkeyPatch, plain: bool
):
    """Its handler may still run, and has used its attempt: only the watchdog ends such a run."""
    release = threading.Event()

    async def coroutine() -> None:
        await asyncio.Event().wait()

    def function() -> None:
        release.wait(60)

    async def unreachable(*_: Any, **__: Any) -> dict[Lease, Beat]:
        raise ServerUnreachable("no server answers")

    fn = function if plain else coroutine
    job_id = await submit_with(store, fn.__name__, {"backoff": NO_WAIT})
    async with working(store, fn, concurrency=1, fence=True) as it:
        await in_status(store, job_id, Status.RUNNING)
        await first_tick(backend)
        leases, claimer = it.worker._leases, it.worker._claimer
        await until(leases.shortest)  # the worker may not have heard of its claim yet
        claimer.stopping = True
        with monkeypatch.context() as silenced:
            silenced.setattr(store, "beat", unreachable)
            leases._sure_until = dict.fromkeys(leases._sure_until, time.monotonic() - 1)
            await asyncio.to_thread(leases.attempt)
            await until(lambda: it.worker.describe().stuck == plain and leases.shortest() is None)
        assert await claimer.release_unknown() == []  # as after a claim without an answer
        job = await row(store, job_id)
        assert (job.status, job.locked_by, job.attempts) == (Status.RUNNING, it.worker.id, 1)
        clock.advance(LEASE + 1)
        assert await reap(store) == [job_id]
        assert (await row(store, job_id)).attempts == 1
        assert await claimer.release_unknown() == []
        assert leases._given_up == {}  # nothing is remembered for longer than it is stored
        release.set()


def test_leases_that_were_given_up_are_not_remembered_without_bound(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(lease_keeping, "MOST_GIVEN_UP", 2)
    leases = some_leases(Answering())
    three = [an_assignment(n, 30).lease for n in (1, 2, 3)]
    leases.give_up(three)
    assert leases.unknown(three) == three[:1]


async def test_a_report_under_a_lost_lease_is_refused(
    store: SqlStore, backend: Backend, caplog: pytest.LogCaptureFixture
):
    proceed = asyncio.Event()

    async def slow() -> str:
        await proceed.wait()
        return "mine"

    job_id = await submit_with(store, "slow", {"backoff": NO_WAIT})
    async with working(store, slow, concurrency=1) as it:
        await in_status(store, job_id, Status.RUNNING)
        it.worker._claimer.stopping = True
        theirs = await stolen(backend, store, job_id, "slow")
        proceed.set()  # before any heartbeat could report it
        await until(lambda: "came too late" in caplog.text)
    assert (await row(store, job_id)).locked_by == BOB
    assert await settle(store, theirs, Succeeded('"theirs"'))
    assert result(await row(store, job_id)) == "theirs"


async def test_a_worker_that_reclaims_its_own_job_stops_the_older_run(
    store: SqlStore, backend: Backend, clock: Clock
):
    proceed = asyncio.Event()
    stopped: list[int] = []

    async def slow(ctx: Context) -> int:
        try:
            await proceed.wait()
        except asyncio.CancelledError:
            stopped.append(ctx.attempt)
            raise
        return ctx.attempt

    job_id = await submit_with(store, "slow", {"backoff": NO_WAIT})
    async with working(store, slow) as it:
        await in_status(store, job_id, Status.RUNNING)
        await first_tick(backend)
        clock.advance(LEASE + 1)
        assert await reap(store) == [job_id]
        await until(lambda: stopped)
        assert it.worker.describe().running == 1
        assert set((await beat(it)).values()) == {Beat.OK}
        proceed.set()
        job = await finished(store, job_id)
    assert stopped == [1]
    assert (result(job), job.attempts) == (2, 2)


async def test_a_lost_beat_is_ignored_while_the_report_is_on_its_way(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    committed, answer = asyncio.Event(), asyncio.Event()
    real = store.settle

    async def slow_to_answer(reports: Any, **options: Any) -> set[Lease]:
        accepted = await real(reports, **options)
        committed.set()
        await answer.wait()
        return accepted

    async def quick() -> int:
        return 7

    monkeypatch.setattr(store, "settle", slow_to_answer)
    job_id = await submit(store, "quick")
    async with working(store, quick) as it:
        await committed.wait()
        assert set((await beat(it)).values()) == {Beat.LOST}
        answer.set()
    assert result(await row(store, job_id)) == 7
    assert "lost" not in caplog.text


async def test_progress_under_a_lost_lease_is_refused(store: SqlStore, backend: Backend):
    proceed = asyncio.Event()
    refused: list[str] = []

    async def slow(ctx: Context) -> None:
        await proceed.wait()
        try:
            await ctx.aprogress(1)
        except LeaseLost as error:
            refused.append(str(error))

    job_id = await submit_with(store, "slow", {"backoff": NO_WAIT})
    async with working(store, slow, concurrency=1) as it:
        await in_status(store, job_id, Status.RUNNING)
        it.worker._claimer.stopping = True
        await stolen(backend, store, job_id, "slow")
        proceed.set()
        await until(lambda: refused)
    assert (await row(store, job_id)).progress is None


# -- a blocked event loop -------------------------------------------------------------------------


def beat_is_due(it: Working) -> None:
    """Let the heartbeat thread find that its time has come."""
    leases = it.worker._leases
    with leases._changed:
        leases._next_beat = time.monotonic()
        leases._changed.notify()


async def test_a_blocked_event_loop_keeps_its_leases_and_the_handler_is_named(
    store: SqlStore,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    caplog.set_level(logging.WARNING, "pulsed.worker")
    monkeypatch.setattr(loop_watch, "PING_EVERY", 0.01)
    monkeypatch.setattr(loop_watch, "BLOCKED_AFTER", 0.02)
    beats: dict[datetime, set[UUID]] = {}
    real = store.beat

    async def noted(leases: Any, **options: Any) -> dict[Lease, Beat]:
        began = clock.now
        answers = await real(leases, **options)
        beats[began] = {lease.job_id for lease, answer in answers.items() if answer is Beat.OK}
        return answers

    monkeypatch.setattr(store, "beat", noted)
    sibling_runs, over, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def selfish() -> None:
        await sibling_runs.wait()
        give_up_at = time.monotonic() + 60
        for _ in range(3):
            clock.advance(LEASE - 1)
            while clock.now not in beats and time.monotonic() < give_up_at:
                beat_is_due(it)
                time.sleep(0.001)  # noqa: ASYNC251 - the fault that is injected here
        while " by selfish (" not in caplog.text and time.monotonic() < give_up_at:
            time.sleep(0.001)  # noqa: ASYNC251
        over.set()
        await release.wait()

    async def sibling() -> None:
        sibling_runs.set()
        await release.wait()

    async with working(store, selfish, sibling) as it:
        ids = {await submit(store, "selfish"), await submit(store, "sibling")}
        await over.wait()
        assert {(await row(store, job_id)).lease_until for job_id in ids} == {clock.after(LEASE)}
        assert list(beats.values())[-3:] == [ids] * 3
        release.set()
        jobs = [await finished(store, job_id) for job_id in ids]
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}
    assert " by selfish (" in caplog.text

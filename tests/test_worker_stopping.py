"""Runs that must end before they want to: timeouts, cancellation, draining, aborting."""

import asyncio
import contextlib
import logging
import re
import threading
import time
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.context import Context
from pulsed.engine.worker import runs as runner
from pulsed.engine.worker.run import StopReason
from pulsed.engine.worker.worker import Exit
from pulsed.errors import RunStopped, StorageError
from pulsed.model.job import Assignment, Status
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend
from tests.support.faults import Fault
from tests.support.workers import (
    NEVER,
    Working,
    beat,
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


@pytest.fixture
def quick_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "UNSTOPPABLE_AFTER", 0.05)


@pytest.fixture
def quick_to_leave_the_database(quick_to_give_up: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsed.engine.worker.drain.LAST_WRITES", 0.05)


# -- timeouts -------------------------------------------------------------------------------------


async def test_an_async_handler_is_cancelled_at_its_timeout(store: SqlStore):
    seen: list[bool] = []

    async def wedged(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled)

    job_id = await submit_with(store, "wedged", {"max_attempts": 1})
    async with working(store, handler(wedged, timeout=0.05)) as it:
        job = await finished(store, job_id)
        assert it.worker.describe().stuck == 0
    assert (job.status, job.last_error) == (Status.DEAD_LETTERED, "timed out after 0.05 s")
    assert seen == [True]


async def test_a_workflow_that_waits_on_after_its_timeout_has_failed(store: SqlStore):
    async def stubborn(ctx: Context) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await ctx.sleep(3600)

    job_id = await submit_with(store, "stubborn", {"max_attempts": 1})
    async with working(store, handler(stubborn, timeout=0.05)):
        job = await finished(store, job_id)
    assert (job.status, job.last_error) == (Status.DEAD_LETTERED, "timed out after 0.05 s")


@pytest.mark.usefixtures("quick_to_give_up")
async def test_a_handler_that_ignores_its_cancellation_keeps_its_slot_not_its_job(store: SqlStore):
    release = asyncio.Event()

    async def deaf() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    job_id = await submit_with(store, "deaf", {"max_attempts": 1, "timeout": 0.05})
    async with working(store, deaf) as it:
        job = await finished(store, job_id)
        assert (job.last_error, job.result) == ("timed out after 0.05 s", None)
        await until(lambda: it.worker.describe().stuck == 1)
        assert it.worker.describe().running == 1
        release.set()
        await until(lambda: it.worker.describe().running == 0)
        assert it.worker.describe().stuck == 0
    assert (await row(store, job_id)).status is Status.DEAD_LETTERED


async def test_a_thread_that_overstays_keeps_its_slot_not_its_job(store: SqlStore):
    release = threading.Event()
    told: list[bool] = []

    def wedged(ctx: Context) -> str:
        release.wait(60)
        told.append(ctx.cancelled)
        return "too late"

    async def quick() -> None:
        pass

    first = await submit_with(store, "wedged", {"max_attempts": 1, "timeout": 0.05})
    async with working(store, wedged, quick, concurrency=3, tick=0.02) as it:
        job = await finished(store, first)
        assert job.last_error == "timed out after 0.05 s"

        async def shown() -> bool:
            (presence,) = await store.workers()
            return (presence.running, presence.stuck) == (1, 1)

        await until(shown)
        second = await submit(store, "quick")
        assert (await finished(store, second)).status is Status.SUCCEEDED
        release.set()
        await until(lambda: it.worker.describe().running == 0)
        assert it.worker.describe().stuck == 0
    assert told == [True]
    assert (await row(store, first)).result is None


async def test_a_plain_handler_that_checks_ends_soon_after_its_job_is_cancelled(store: SqlStore):
    begun = threading.Event()
    cleaned: list[str] = []

    def long(ctx: Context) -> None:
        try:
            while True:
                begun.set()
                ctx.check()
                with contextlib.suppress(Exception):
                    ctx.check()  # what survives any error must not survive this
                time.sleep(0.001)
        except RunStopped as stopped:
            cleaned.append(str(stopped))
            raise

    job_id = await submit(store, "long")
    async with working(store, long) as it:
        await until(begun.is_set)
        await store.cancel([job_id])
        job = await finished(store, job_id)
        await until(lambda: it.worker.describe().running == 0)
    assert job.status is Status.CANCELLED
    assert cleaned == [f"job {job_id} (long): the job was cancelled"]


async def test_an_async_handler_may_check_between_two_awaits(store: SqlStore):
    async def computing(ctx: Context) -> None:
        while True:
            ctx.check()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    job_id = await submit_with(store, "computing", {"max_attempts": 1, "timeout": 0.05})
    async with working(store, computing):
        job = await finished(store, job_id)
    assert (job.status, job.last_error) == (Status.DEAD_LETTERED, "timed out after 0.05 s")


async def test_a_worker_with_half_its_slots_stuck_drains_and_exits(store: SqlStore):
    release = threading.Event()
    proceed = asyncio.Event()

    def wedged() -> None:
        release.wait(60)

    async def honest() -> int:
        await proceed.wait()
        return 1

    honest_id = await submit(store, "honest")
    stuck_id = await submit_with(store, "wedged", {"max_attempts": 1, "timeout": 0.05})
    async with working(store, wedged, honest, concurrency=2) as it:
        await in_status(store, honest_id, Status.RUNNING)
        await finished(store, stuck_id)
        await until(lambda: it.worker.describe().state == "draining")
        left = await submit(store, "honest")
        assert not it.task.done(), "it still has honest work to finish"
        proceed.set()
        assert await it.ended() is Exit.STUCK
    release.set()
    assert (await row(store, honest_id)).status is Status.SUCCEEDED
    assert (await row(store, left)).status is Status.PENDING


# -- cancelling -----------------------------------------------------------------------------------


async def test_cancelling_a_running_job_cancels_its_async_handler(store: SqlStore):
    async def slow() -> None:
        await asyncio.Event().wait()

    job_id = await submit(store, "slow")
    async with working(store, handler(slow, lease=NEVER)):  # no heartbeat will say so
        await in_status(store, job_id, Status.RUNNING)
        assert await store.cancel([job_id]) == {job_id: Status.RUNNING}
        job = await finished(store, job_id)
    assert (job.status, job.last_error) == (Status.CANCELLED, "cancelled on request")


@pytest.mark.embedded("a remote worker asks at every poll")
async def test_a_cancelled_job_is_noticed_at_once_and_not_only_by_the_next_poll(
    backend, store: SqlStore
):
    async def slow() -> None:
        await asyncio.Event().wait()

    elsewhere = backend.open()  # as another process has it
    job_id = await submit(store, "slow")
    async with working(store, handler(slow, lease=NEVER), poll=NEVER):
        await in_status(store, job_id, Status.RUNNING)
        await elsewhere.cancel([job_id])
        assert (await finished(store, job_id)).status is Status.CANCELLED
    await elsewhere.aclose()


async def test_a_heartbeat_tells_of_a_cancellation_if_nothing_else_does(
    store: SqlStore, monkeypatch
):
    async def slow() -> None:
        await asyncio.Event().wait()

    async def fails(*_: Any, **__: Any) -> Any:
        raise StorageError("cannot be asked")

    monkeypatch.setattr(store, "held", fails)
    job_id = await submit(store, "slow")
    async with working(store, slow) as it:
        await in_status(store, job_id, Status.RUNNING)
        await store.cancel([job_id])
        await beat(it)
        assert (await finished(store, job_id)).status is Status.CANCELLED


@pytest.mark.parametrize(
    "obeys, status",
    [(True, Status.CANCELLED), (False, Status.SUCCEEDED)],
    ids=["obeys", "finishes"],
)
async def test_a_plain_function_sees_that_it_is_cancelled(
    store: SqlStore, obeys: bool, status: Status
):
    def slow(ctx: Context) -> None:
        pause = threading.Event()
        while not ctx.cancelled:
            pause.wait(0.002)
        if obeys:
            raise InterruptedError("stopped on request")

    job_id = await submit(store, "slow")
    async with working(store, slow) as it:
        await in_status(store, job_id, Status.RUNNING)
        await store.cancel([job_id])
        await beat(it)
        assert (await finished(store, job_id)).status is status


async def test_a_run_that_is_stopped_before_it_began_still_ends(store: SqlStore):
    async def slow() -> None:
        await asyncio.Event().wait()

    async with working(store, slow, queues=["other"]) as it:
        worker = it.worker
        await until(lambda: worker._listener is not None)
        job_id = await submit(store, "slow")
        await store.cancel([])
        claimed = await store.claim(worker.id, "default", worker.registry.policies(), 1)
        worker._start(claimed, time.monotonic())
        worker._runner.by_lease()[claimed[0].lease].tell_to_stop(StopReason.CANCELLED)
        assert (await finished(store, job_id)).status is Status.CANCELLED
        assert worker.describe().running == 0


# -- draining -------------------------------------------------------------------------------------


async def test_a_drain_finishes_what_runs_and_claims_nothing_more(store: SqlStore):
    started, proceed = asyncio.Event(), asyncio.Event()

    async def slow(n: int) -> int:
        started.set()
        await proceed.wait()
        return n

    running, waiting = await submit_many(store, "slow", 2)
    async with working(store, slow, concurrency=1) as it:
        await started.wait()
        it.worker.stop()
        assert it.worker.describe().state == "draining"
        proceed.set()  # the slot becomes free before anything else can happen
        assert await it.ended() is Exit.DRAINED
    assert (await row(store, running)).status is Status.SUCCEEDED
    left = await row(store, waiting)
    assert (left.status, left.attempts) == (Status.PENDING, 0)


async def test_a_drain_says_what_it_waits_for_and_that_it_is_over(
    store: SqlStore, caplog, monkeypatch
):
    caplog.set_level(logging.INFO, logger="pulsed.worker")
    monkeypatch.setattr("pulsed.engine.worker.drain.LOG_EVERY", 0.01)
    proceed = asyncio.Event()

    async def slow(n: int) -> None:
        await proceed.wait()

    async def slower() -> None:
        await proceed.wait()

    await submit_many(store, "slow", 2)
    job_id = await submit(store, "slower")
    async with working(store, slow, slower) as it:
        await in_status(store, job_id, Status.RUNNING)
        await until(lambda: it.worker.describe().running == 3)
        it.worker.stop()
        await until(lambda: "still draining 3 running jobs (2 slow, 1 slower)" in caplog.messages)
        proceed.set()
        assert await it.ended() is Exit.DRAINED
    assert "draining 3 running jobs (2 slow, 1 slower)" in caplog.messages
    assert any(re.match("drained in .+: every job has ended", line) for line in caplog.messages)


async def test_a_drain_goes_on_beating_for_jobs_longer_than_their_lease(backend: Backend):
    store = backend.open(own_clock=False)
    lease = 0.3
    proceed = threading.Event()

    def slow() -> None:
        proceed.wait(60)

    job_id = await submit(store, "slow")
    async with working(store, handler(slow, lease=lease)) as it:
        await in_status(store, job_id, Status.RUNNING)
        it.worker.stop()
        first = (await row(store, job_id)).lease_until
        assert first is not None

        async def extended_by_three_leases() -> bool:
            until_then = (await row(store, job_id)).lease_until
            assert until_then is not None
            return (until_then - first).total_seconds() > 3 * lease

        await until(extended_by_three_leases)
        proceed.set()
        assert await it.ended() is Exit.DRAINED
    job = await row(store, job_id)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)
    await store.aclose()


async def test_outcomes_the_database_could_not_take_yet_are_flushed_before_the_end(store: SqlStore):
    async def quick(n: int) -> int:
        return n

    fault = Fault(store, "settle", "before", times=8)  # more than one storage retry survives
    ids = await submit_many(store, "quick", 5)
    async with working(store, quick) as it:
        await until(lambda: fault.hits > 0)
        assert await it.stop() is Exit.DRAINED
    assert fault.hits == 8
    assert {(await row(store, job_id)).status for job_id in ids} == {Status.SUCCEEDED}


# -- aborting -------------------------------------------------------------------------------------


async def handed_back(store: SqlStore, it: Working, ids: list[UUID]) -> None:
    for job_id in ids:
        await in_status(store, job_id, Status.RUNNING)
    assert await it.stop(abort=True) is Exit.ABORTED
    for job_id in ids:
        job = await row(store, job_id)
        assert (job.status, job.attempts, job.last_outcome) == (Status.PENDING, 0, "RELEASED")


@pytest.mark.usefixtures("quick_to_give_up")
async def test_an_abort_hands_everything_back_with_its_attempt(store: SqlStore):
    release, deaf_ends = threading.Event(), asyncio.Event()

    async def slow() -> None:
        await asyncio.Event().wait()

    async def converting() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("read error") from None

    async def deaf() -> None:
        while not deaf_ends.is_set():
            try:
                await deaf_ends.wait()
            except asyncio.CancelledError:
                continue

    def plain() -> None:
        release.wait(60)

    topics = ("slow", "converting", "deaf", "plain")
    ids = [await submit(store, topic) for topic in topics]
    async with working(store, slow, converting, deaf, plain) as it:
        await handed_back(store, it, ids)
    release.set()
    deaf_ends.set()


async def test_a_drain_that_takes_too_long_becomes_an_abort(store: SqlStore):
    async def slow() -> None:
        await asyncio.Event().wait()

    job_id = await submit(store, "slow")
    async with working(store, slow, drain_timeout=0.05) as it:
        await in_status(store, job_id, Status.RUNNING)
        assert await it.stop() is Exit.ABORTED
    job = await row(store, job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)


async def test_cancelling_the_workers_task_hands_everything_back(store: SqlStore):
    async def slow() -> None:
        await asyncio.Event().wait()

    job_id = await submit(store, "slow")
    before = asyncio.all_tasks()
    async with working(store, slow) as it:
        await in_status(store, job_id, Status.RUNNING)
        it.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await it.ended()
        await until(lambda: asyncio.all_tasks() <= before)  # drivers take leave in tasks
    job = await row(store, job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)


async def test_what_a_claim_brings_during_an_abort_is_handed_back_and_not_begun(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    ran: list[bool] = []
    leased, answered = asyncio.Event(), asyncio.Event()
    claim = store.claim

    async def slowly(*args: Any) -> list[Assignment]:
        claimed = await claim(*args)
        if claimed:
            leased.set()
            await answered.wait()
        return claimed

    async def quick() -> None:
        ran.append(True)

    monkeypatch.setattr(store, "claim", slowly)
    job_id = await submit(store, "quick")
    async with working(store, quick) as it:
        await leased.wait()
        it.worker.stop(abort=True)
        await until(lambda: it.worker._exit is Exit.ABORTED)
        answered.set()
        assert await it.ended() is Exit.ABORTED
    job = await row(store, job_id)
    assert (job.status, job.attempts, ran) == (Status.PENDING, 0, [])


@pytest.mark.usefixtures("quick_to_leave_the_database")
async def test_an_abort_does_not_wait_for_a_database_that_is_away(store: SqlStore):
    async def slow() -> None:
        await asyncio.Event().wait()

    job_id = await submit(store, "slow")
    async with working(store, slow) as it:
        await in_status(store, job_id, Status.RUNNING)
        fault = Fault(store, "settle", "before", times=10**9)
        assert await it.stop(abort=True) is Exit.ABORTED
        assert fault.hits


@pytest.mark.usefixtures("quick_to_leave_the_database")
async def test_an_abort_also_ends_a_drain_that_only_waits_for_the_database(store: SqlStore):
    async def quick() -> None:
        pass

    fault = Fault(store, "settle", "before", times=10**9)
    await submit(store, "quick")
    async with working(store, quick) as it:
        await until(lambda: fault.hits > 0)
        it.worker.stop()
        await until(lambda: it.worker.describe().state == "draining")
        assert await it.stop(abort=True) is Exit.ABORTED


async def test_an_abort_lets_a_plain_function_stop_before_its_job_is_handed_back(store: SqlStore):
    """If it were released earlier, the next run would overlap with this one."""
    seen: list[Status] = []
    started = threading.Event()

    def obedient(ctx: Context) -> None:
        started.set()
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        seen.append(run_blocking(store.get([ctx.job_id]))[ctx.job_id].status)

    job_id = await submit(store, "obedient")
    async with working(store, obedient) as it:
        await until(started.is_set)
        await it.stop(abort=True)
    assert seen == [Status.RUNNING]
    assert (await row(store, job_id)).status in (Status.PENDING, Status.SUCCEEDED)


@pytest.mark.usefixtures("quick_to_leave_the_database")
async def test_an_abort_does_not_wait_for_ever_for_a_claim_without_an_answer(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    async def quick() -> None:
        pass

    asked = asyncio.Event()

    async def no_answer(*claim: Any) -> list[Any]:
        asked.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(store, "claim", no_answer)
    async with working(store, quick) as it:
        await asked.wait()
        assert await it.stop(abort=True) is Exit.ABORTED


async def test_a_driver_that_swallows_a_cancellation_does_not_keep_the_worker(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    async def quick() -> None:
        pass

    connecting = asyncio.Event()

    async def swallow_one(worker: Any) -> None:
        connecting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    monkeypatch.setattr(store, "announce", swallow_one)
    async with working(store, quick) as it:
        await connecting.wait()
        assert await it.stop() is Exit.DRAINED


async def test_a_worker_can_be_stopped_from_another_thread(store: SqlStore):
    async def quick() -> None:
        pass

    async with working(store, quick, poll=NEVER) as it:
        await until(lambda: it.worker._listener is not None)
        threading.Thread(target=it.worker.stop).start()
        assert await it.ended() is Exit.DRAINED

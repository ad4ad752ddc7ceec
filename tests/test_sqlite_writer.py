"""One connection writes: its lock's holder commits for all that wait, each fails alone."""

import asyncio
import sqlite3
import threading
from collections.abc import Coroutine
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from pulsed.errors import StorageError, TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Status
from pulsed.model.outcome import Beat, Succeeded
from pulsed.store.blocking import run_blocking
from pulsed.store.results import Submitted
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.sqlite.writer import LARGEST_GROUP, QueuedVerb
from pulsed.store.verbs.submit import submit
from tests.support.backends import close_blocking, only_sqlite
from tests.support.jobs import (
    EVERYTHING,
    a_job,
    a_policy,
    claim,
    claim_one,
    row,
    running,
    settle,
    submitted,
)
from tests.support.performed import Performed
from tests.support.waiting import until

backend = only_sqlite

# -- locks ----------------------------------------------------------------------------------------


async def test_a_write_lock_held_elsewhere_is_waited_for(backend):
    store = backend.open(busy_timeout=10)
    await store.counts(EVERYTHING)
    other = backend.connect()
    other.execute("BEGIN IMMEDIATE")
    task = asyncio.create_task(store.submit([a_job()]))
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 0  # readers do not wait
    assert not task.done()
    other.execute("COMMIT")
    assert (await task).new == 1
    other.close()
    await store.aclose()


async def test_a_write_lock_held_too_long_is_transient_and_retried(backend):
    store = backend.open(busy_timeout=0, retry=RetryPolicy(max_attempts=3, initial=0, max=0))
    await store.counts(EVERYTHING)
    asked = Performed(store)
    with closing(backend.connect()) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransientStorageError, match=r"This process, .* holds its write lock"):
            await store.submit([a_job()])
        other.execute("COMMIT")
    assert asked.verbs == {"submit": 3}
    assert (await store.submit([a_job()])).new == 1
    await store.aclose()


async def test_a_busy_database_is_ridden_out_by_the_storage_retry(backend):
    store = backend.open(busy_timeout=0, retry=RetryPolicy(max_attempts=1_000, initial=0.001))
    await store.counts(EVERYTHING)
    other = backend.connect()
    other.execute("BEGIN IMMEDIATE")
    perform, tries = store.perform, 0

    async def counted(verb: Any) -> Any:
        nonlocal tries
        tries += verb.name == "submit"
        if tries == 3 and other.in_transaction:
            other.execute("COMMIT")
        return await perform(verb)

    setattr(store, "perform", counted)  # noqa: B010
    assert (await store.submit([a_job()])).new == 1
    assert tries == 3
    other.close()
    await store.aclose()


# -- group commit ---------------------------------------------------------------------------------


async def in_one_group(store: SqliteStore, *verbs: Coroutine[Any, Any, Any]) -> list[Any]:
    """Let all be asked for while the disk is busy; returns their answers and errors."""
    with store._writer._lock:
        tasks = [asyncio.create_task(verb) for verb in verbs]
        await until(lambda: len(store._writer._waiting) == len(tasks))
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_threads_that_wait_share_a_commit(backend):
    store = backend.open()
    run_blocking(store.counts(EVERYTHING))
    commits = 0
    after = store._writer._after_commit

    def counted(connection: sqlite3.Connection) -> None:
        nonlocal commits
        commits += 1
        after(connection)

    store._writer._after_commit = counted
    jobs = [a_job() for _ in range(12)]
    threads = [
        threading.Thread(target=lambda job=job: run_blocking(store.submit([job]))) for job in jobs
    ]
    with store._writer._lock:  # the disk is busy
        for thread in threads:
            thread.start()
        while len(store._writer._waiting) < len(jobs):
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert set(run_blocking(store.get([job.id for job in jobs]))) == {job.id for job in jobs}
    assert commits == 1
    close_blocking(store)


async def test_one_failing_verb_of_a_group_fails_alone(backend):
    store = backend.open()
    await store.counts(EVERYTHING)
    good, bad = [a_job() for _ in range(5)], a_job(priority=1_000)
    jobs = [*good[:2], bad, *good[2:]]
    answers = await in_one_group(store, *(store.submit([job]) for job in jobs))
    assert isinstance(answers.pop(2), StorageError)
    assert answers == [Submitted(1)] * 5
    assert set(await store.get([job.id for job in (*good, bad)])) == {job.id for job in good}
    await store.aclose()


async def test_a_failed_member_leaves_nothing_half_done(backend):
    """A batch whose second job is refused, in the middle of a group."""
    store = backend.open()
    await store.counts(EVERYTHING)
    before, after = a_job(), a_job()
    half = [a_job(), a_job(priority=-1_000)]
    answers = await in_one_group(store, *(store.submit(jobs) for jobs in ([before], half, [after])))
    assert isinstance(answers.pop(1), StorageError)
    assert answers == [Submitted(1)] * 2
    everything = await store.list_jobs(EVERYTHING)
    assert {job.id for job in everything} == {before.id, after.id}
    await store.aclose()


def order_of(store: SqliteStore) -> list[str]:
    """Return the names of the verbs that the writer runs from now on, in their order."""
    order: list[str] = []
    drive = store._writer._drive

    def noted(connection, verb):
        order.append(verb.name)
        return drive(connection, verb)

    setattr(store._writer, "_drive", noted)  # noqa: B010
    return order


async def test_a_heartbeat_goes_before_everything_that_waits(backend):
    store = backend.open()
    run = await running(store)
    order = order_of(store)
    submits = [store.submit([a_job()]) for _ in range(3)]
    answers = await in_one_group(store, *submits, store.beat([run.lease]))
    assert answers == [*[Submitted(1)] * 3, {run.lease: Beat.OK}]
    assert order == ["beat", "submit", "submit", "submit"]
    await store.aclose()


async def test_claims_come_last_in_their_group(backend):
    """So they find what the other members have stored, and the room that ended runs have made."""
    store = backend.open()
    run = await running(store)
    order = order_of(store)
    job = a_job()
    claimed, _, ended = await in_one_group(
        store, claim(store), store.submit([job]), settle(store, run, Succeeded())
    )
    assert order == ["submit", "settle", "claim"]
    assert [each.job_id for each in claimed] == [job.id]
    assert ended
    await store.aclose()


async def test_more_verbs_than_fit_into_one_group(backend):
    store = backend.open()
    await store.counts(EVERYTHING)
    jobs = [a_job() for _ in range(200)]
    answers = await asyncio.gather(*(store.submit([job]) for job in jobs))
    assert [answer.new for answer in answers] == [1] * 200
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 200
    await store.aclose()


async def test_a_caller_that_gave_up_does_not_hold_up_the_others(backend):
    store = backend.open()
    await store.counts(EVERYTHING)
    with store._writer._lock:
        given_up, patient = (asyncio.create_task(store.submit([a_job()])) for _ in range(2))
        await until(lambda: len(store._writer._waiting) == 2)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
    assert (await patient).new == 1
    await store.aclose()


def test_blocking_and_async_callers_share_the_writer(backend):
    store = backend.open()
    jobs = [a_job() for _ in range(40)]

    def block() -> None:
        for job in jobs[:20]:
            run_blocking(store.submit([job]))

    async def main() -> None:
        thread = threading.Thread(target=block)
        thread.start()
        await asyncio.gather(*(store.submit([job]) for job in jobs[20:]))
        await asyncio.to_thread(thread.join)
        assert (await store.counts(EVERYTHING))[Status.PENDING] == 40
        await store.aclose()

    asyncio.run(main())


async def test_an_async_write_behind_a_full_group_of_blocking_ones_is_not_left_behind(store):
    await submitted(store)
    writer = store._writer
    ahead = [QueuedVerb(submit(store.engine, [a_job()])) for _ in range(LARGEST_GROUP)]
    for request in ahead:  # threads that have asked, and have not got the lock yet
        writer._enqueue(request)
    async with asyncio.timeout(60):
        await store.submit([a_job()])
    assert all(request.done for request in ahead)


def test_an_interrupted_thread_does_not_interrupt_those_who_wait(store, monkeypatch):
    writer = store._writer
    run_blocking(store.submit([a_job()]))
    monkeypatch.setattr(writer, "_run_group", raise_interrupt)
    waiting = QueuedVerb(submit(store.engine, [a_job()]))
    writer._enqueue(waiting)
    with pytest.raises(KeyboardInterrupt):
        writer.run(submit(store.engine, [a_job()]))
    assert waiting.done
    assert isinstance(waiting.error, TransientStorageError)


def raise_interrupt(group: Any) -> None:
    raise KeyboardInterrupt


async def test_a_claim_that_was_undone_with_its_group_is_made_again(store):
    """The second try must scan again where the first one has just been."""
    job_id = await submitted(store)
    refused = store.submit([a_job(priority=1_000)])
    (run,), error = await in_one_group(store, claim(store), refused)
    assert run.job_id == job_id
    assert isinstance(error, StorageError)
    assert await settle(store, run, Succeeded())


# -- what waits for the disk ----------------------------------------------------------------------


async def test_every_acknowledged_write_waits_for_the_disk_unless_told_otherwise(backend):
    for option, expected in (("FULL", 2), ("NORMAL", 1)):
        store = backend.open(synchronous=option)
        await store.counts(EVERYTHING)
        await submitted(store)
        assert store._writer._connection.execute("PRAGMA synchronous").fetchone() == (expected,)
        await store.aclose()


async def test_a_claim_waits_for_the_disk_like_every_write(backend):
    """Workers of another machine, behind a server, outlive a crash of this one."""
    store = backend.open()
    await store.counts(EVERYTHING)
    levels: list[int] = []
    store._writer._after_commit = lambda connection: levels.append(
        connection.execute("PRAGMA synchronous").fetchone()[0]
    )
    full = 2
    await submitted(store)
    run = await claim_one(store)
    await store.beat([run.lease])
    await settle(store, run, Succeeded())
    assert levels == [full] * 4
    await store.aclose()


async def test_a_lease_begins_after_the_scan_that_found_its_job(backend, clock):
    """It may have passed millions of jobs of other topics, and the worker has not run it yet."""
    store = backend.open()
    job_id = await submitted(store)
    execute = store._writer._execute

    def slow_pick(connection, statement, *instants):
        rows = execute(connection, statement, *instants)
        if statement.sql is store.engine.claiming.pick:
            clock.advance(3)
        return rows

    store._writer._execute = slow_pick
    before = clock()
    run = await claim_one(store)
    claimed = await row(store, job_id)
    assert claimed.started_at == clock() == before + timedelta(seconds=3)
    assert claimed.lease_until == clock() + timedelta(seconds=a_policy().lease)
    store._writer._execute = execute
    assert await settle(store, run, Succeeded())
    await store.aclose()

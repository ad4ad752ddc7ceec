"""What is special about one file: its locks, its size, its neighbours, forks and copies."""

import asyncio
import os
import random
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsed.backoff import RetryPolicy
from pulsed.errors import (
    ConfigError,
    NotADatabase,
    StorageError,
    StorageFull,
    StorageReadOnly,
    TransientStorageError,
)
from pulsed.job import Beat, Failed, Report, Status, Succeeded
from pulsed.step import StepKind
from pulsed.store import sqlite as module
from pulsed.store import verbs
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite import SqliteOptions, SqliteStore
from pulsed.store.sqlite_values import execute
from pulsed.store.sqlite_writer import LARGEST_GROUP, Request
from pulsed.store.verb import Statement, named
from tests.support.backends import SqliteBackend, close_blocking
from tests.support.checkpoints import a_family, suspended
from tests.support.jobs import (
    ALICE,
    EVERYTHING,
    a_job,
    claim,
    claim_one,
    row,
    running,
    settle,
    submitted,
)
from tests.support.processes import submit_and_drain, together
from tests.support.waiting import until

ROOT = Path(__file__).parents[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def backend(path, clock) -> SqliteBackend:
    """Only this one."""
    return SqliteBackend(path, clock)


# -- several processes ----------------------------------------------------------------------------


def test_processes_on_one_file_run_every_job_once(path):
    """They also create it at the same moment; nobody ever hears "database is locked"."""
    answers = together(4, submit_and_drain, str(path), 20, 80)
    assert [answer for answer in answers if isinstance(answer, str)] == []
    submitted_ids = [job_id for mine, _ in answers for job_id in mine]
    ran = [job_id for _, mine in answers for job_id in mine]
    assert len(submitted_ids) == 80
    assert sorted(ran) == sorted(submitted_ids)


async def test_a_job_from_another_process_wakes_the_worker(path):
    store = SqliteStore(path)
    await store.counts(EVERYTHING)
    woken = asyncio.Event()
    async with store.listen(["default"], woken.set) as listener:
        assert listener.healthy
        code = f"from tests.support.processes import *; print(first_use({str(path)!r}))"
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT)
        async with asyncio.timeout(60):
            while (await store.counts(EVERYTHING))[Status.PENDING] == 0:
                await woken.wait()
                woken.clear()
            assert await other.wait() == 0
    await store.aclose()


async def test_a_job_from_this_process_wakes_the_worker(store):
    woken = asyncio.Event()
    async with store.listen(["default"], woken.set):
        await submitted(store)
        async with asyncio.timeout(60):
            await woken.wait()


async def test_only_commits_of_others_are_news(store, path):
    """A worker that was told of its own would claim after every one of them."""
    await submitted(store)
    seen = store._writer.version_of_others()
    run = await claim_one(store)
    await settle(store, run, Succeeded())
    assert store._writer.version_of_others() == seen
    other = SqliteStore(path)
    await submitted(other)
    await other.aclose()
    assert store._writer.version_of_others() != seen


async def test_whoever_has_not_written_yet_hears_of_others_too(store, path):
    await submitted(store)
    reader = SqliteStore(path)
    assert reader._writer.version_of_others() is None
    woken = asyncio.Event()
    async with reader.listen(["default"], woken.set):
        async with asyncio.timeout(60):
            while not woken.is_set():
                await submitted(store)
                await asyncio.sleep(0)
    await reader.aclose()


async def test_a_job_from_elsewhere_is_noticed_among_commits_of_our_own(store, path):
    await submitted(store)
    run = await claim_one(store)
    woken = asyncio.Event()

    async def commit_all_the_time() -> None:
        while True:
            await store.beat([run.lease])

    async with store.listen(["default"], woken.set), asyncio.timeout(60):
        busy = asyncio.create_task(commit_all_the_time())
        await woken.wait()  # the first commit that is seen may be anybody's
        woken.clear()
        other = SqliteStore(path)
        await submitted(other)
        await other.aclose()
        await woken.wait()
        busy.cancel()


async def test_after_listening_nobody_is_woken_any_more(store):
    woken = asyncio.Event()
    async with store.listen(["default"], woken.set):
        pass
    await submitted(store)
    await asyncio.sleep(0)
    assert not woken.is_set()
    assert not [t for t in threading.enumerate() if t.name == "pulsed-wake"]


async def test_a_worker_with_many_open_files_is_woken_too(path):
    """``select`` knows no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    store = SqliteStore(path)
    try:
        await store.counts(EVERYTHING)
        woken = asyncio.Event()
        async with store.listen(["default"], woken.set) as listener:
            other = SqliteStore(path)
            await submitted(other)
            async with asyncio.timeout(60):
                await woken.wait()
            assert listener.healthy
            await other.aclose()
        await store.aclose()
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_behind_a_symbolic_link_the_log_is_written_back_as_well(tmp_path, monkeypatch):
    """SQLite names the log after the file itself, not after the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "jobs.db")
    store = SqliteStore(tmp_path / "link.db")
    run_blocking(store.submit([a_job()]))
    monkeypatch.setattr(module, "CHECKPOINT_AT", 1)
    store._checkpoint_at = 1
    run_blocking(store.submit([a_job()]))
    shutil.copy(tmp_path / "real" / "jobs.db", tmp_path / "without_its_log.db")
    with closing(sqlite3.connect(tmp_path / "without_its_log.db")) as copy:
        assert copy.execute("SELECT count(*) FROM pulse_jobs").fetchone() == (2,)
    close_blocking(store)


async def test_reads_do_not_queue_behind_what_handlers_gave_to_threads(store):
    release = threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, release.wait, 600) for _ in range(64)]
    try:
        async with asyncio.timeout(60):
            await store.counts(EVERYTHING)
    finally:
        release.set()
        await asyncio.gather(*busy)


async def test_an_async_write_behind_a_full_group_of_blocking_ones_is_not_left_behind(store):
    await submitted(store)
    writer = store._writer
    ahead = [Request(verbs.submit(store._statements, [a_job()])) for _ in range(LARGEST_GROUP)]
    for request in ahead:  # threads that have asked, and have not got the lock yet
        writer._enqueue(request)
    async with asyncio.timeout(60):
        await store.submit([a_job()])
    assert all(request.done for request in ahead)


def test_an_interrupted_thread_does_not_interrupt_those_who_wait(store, monkeypatch):
    writer = store._writer
    run_blocking(store.submit([a_job()]))
    monkeypatch.setattr(writer, "_run_group", raise_interrupt)
    waiting = Request(verbs.submit(store._statements, [a_job()]))
    writer._enqueue(waiting)
    with pytest.raises(KeyboardInterrupt):
        writer.run(verbs.submit(store._statements, [a_job()]))
    assert waiting.done
    assert isinstance(waiting.error, TransientStorageError)


def raise_interrupt(group: Any) -> None:
    raise KeyboardInterrupt


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
    assert await task == 1
    other.close()
    await store.aclose()


async def test_a_write_lock_held_too_long_is_transient_and_retried(backend):
    store = backend.open(busy_timeout=0, retry=RetryPolicy(max_attempts=3, initial=0, max=0))
    await store.counts(EVERYTHING)
    with closing(backend.connect()) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransientStorageError, match="Another process holds its write lock"):
            await store.submit([a_job()])
        other.execute("COMMIT")
    assert await store.submit([a_job()]) == 1
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
    assert await store.submit([a_job()]) == 1
    assert tries == 3
    other.close()
    await store.aclose()


# -- group commit ---------------------------------------------------------------------------------


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
    assert commits < len(jobs)
    close_blocking(store)


async def test_one_failing_verb_of_a_group_fails_alone(backend):
    store = backend.open()
    await store.counts(EVERYTHING)
    good, bad = [a_job() for _ in range(5)], a_job(priority=1_000)
    store._writer._lock.acquire()
    tasks = [asyncio.create_task(store.submit([job])) for job in (*good[:2], bad, *good[2:])]
    await until(lambda: len(store._writer._waiting) == len(tasks))
    store._writer._lock.release()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answer for answer in answers if answer == 1] == [1] * 5
    assert isinstance(answers[2], StorageError)
    assert set(await store.get([job.id for job in (*good, bad)])) == {job.id for job in good}
    await store.aclose()


async def test_a_failed_member_leaves_nothing_half_done(backend):
    """A batch whose second job is refused, in the middle of a group."""
    store = backend.open()
    await store.counts(EVERYTHING)
    before, after = a_job(), a_job()
    half = [a_job(), a_job(priority=-1_000)]
    store._writer._lock.acquire()
    tasks = [asyncio.create_task(store.submit(jobs)) for jobs in ([before], half, [after])]
    await until(lambda: len(store._writer._waiting) == len(tasks))
    store._writer._lock.release()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert (answers[0], answers[2]) == (1, 1)
    everything = await store.list_jobs(EVERYTHING)
    assert {job.id for job in everything} == {before.id, after.id}
    await store.aclose()


async def test_a_heartbeat_goes_before_everything_that_waits(backend):
    store = backend.open()
    run = await running(store)
    order: list[str] = []
    drive = store._writer._drive

    def noted(connection, verb):
        order.append(verb.name)
        return drive(connection, verb)

    setattr(store._writer, "_drive", noted)  # noqa: B010
    store._writer._lock.acquire()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(store.submit([a_job()])) for _ in range(3)
    ]
    tasks.append(asyncio.create_task(store.beat([run.lease])))
    await until(lambda: len(store._writer._waiting) == len(tasks))
    store._writer._lock.release()
    assert (await asyncio.gather(*tasks))[-1] == {run.job_id: Beat.OK}
    assert order == ["beat", "submit", "submit", "submit"]
    await store.aclose()


async def test_more_verbs_than_fit_into_one_group(backend):
    store = backend.open()
    await store.counts(EVERYTHING)
    jobs = [a_job() for _ in range(200)]
    assert await asyncio.gather(*(store.submit([job]) for job in jobs)) == [1] * 200
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 200
    await store.aclose()


async def test_a_caller_that_gave_up_does_not_hold_up_the_others(backend):
    store = backend.open()
    await store.counts(EVERYTHING)
    store._writer._lock.acquire()
    given_up, patient = (asyncio.create_task(store.submit([a_job()])) for _ in range(2))
    await until(lambda: len(store._writer._waiting) == 2)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    store._writer._lock.release()
    assert await patient == 1
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


# -- a full disk ----------------------------------------------------------------------------------


async def test_a_full_disk_refuses_cleanly_and_recovers(path, clock):
    small = SqliteStore(path, SqliteOptions(max_pages=60, retry=RetryPolicy.disabled()))
    stored: list[UUID] = []
    with pytest.raises(StorageFull, match="Nothing was stored"):  # noqa: PT012 - which of them
        while True:
            batch = [a_job(payload='{"x":"' + "x" * 2_000 + '"}') for _ in range(5)]
            await small.submit(batch)
            stored += [job.id for job in batch]
    assert stored
    assert {job.id for job in await small.list_jobs(EVERYTHING, limit=1_000)} == set(stored)
    with pytest.raises(StorageFull):
        await small.submit(batch)
    await small.aclose()

    roomy = SqliteStore(path)
    assert await roomy.submit(batch) == 5
    runs = await claim(roomy, limit=1_000)
    assert {run.job_id for run in runs} == {*stored, *(job.id for job in batch)}
    await roomy.aclose()


async def test_a_full_disk_in_a_group_acknowledges_nothing_that_is_not_there(path):
    store = SqliteStore(path, SqliteOptions(max_pages=60, retry=RetryPolicy.disabled()))
    await store.counts(EVERYTHING)
    jobs = [a_job(payload='{"x":"' + "x" * 20_000 + '"}') for _ in range(60)]
    answers = await asyncio.gather(*(store.submit([job]) for job in jobs), return_exceptions=True)
    accepted = {job.id for job, answer in zip(jobs, answers, strict=True) if answer == 1}
    refused = [answer for answer in answers if answer != 1]
    assert refused
    assert {type(answer) for answer in refused} == {StorageFull}
    assert {job.id for job in await store.list_jobs(EVERYTHING, limit=1_000)} == accepted
    await store.aclose()


# -- files that cannot be used --------------------------------------------------------------------


async def test_a_file_that_is_not_a_database_is_left_alone(path):
    path.write_bytes(b"Dear diary, " * 500)
    store = SqliteStore(path)
    with pytest.raises(NotADatabase, match="not an SQLite database"):
        await store.submit([a_job()])
    await store.aclose()
    assert path.read_bytes() == b"Dear diary, " * 500


async def test_a_folder_that_does_not_exist_is_named(tmp_path):
    store = SqliteStore(tmp_path / "nowhere" / "jobs.db")
    with pytest.raises(StorageError, match=r"nowhere.*folder exists"):
        await store.submit([a_job()])
    await store.aclose()


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    store = SqliteStore(tmp_path)
    with pytest.raises(StorageError, match="cannot be opened"):
        await store.submit([a_job()])
    await store.aclose()


async def test_a_database_opened_read_only_can_be_read_and_says_why_not_written(
    backend, monkeypatch
):
    store = backend.open()
    job_id = await submitted(store)
    await store.aclose()
    keep = backend.connect()  # keeps the log's shared memory, which a read-only opener cannot make
    keep.execute("SELECT * FROM pulse_jobs").fetchall()

    def read_only(path: Any, **options: Any) -> sqlite3.Connection:
        return sqlite3.Connection(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr("pulsed.store.sqlite.sqlite3.connect", read_only)
    assert (await row(store, job_id)).status is Status.PENDING
    with pytest.raises(StorageReadOnly, match="permissions"):
        await store.submit([a_job()])
    await store.aclose()
    keep.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter."""
    folder = Path(tempfile.mkdtemp(prefix="pulsed-sqlite-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("where", ["file", "folder"])
def test_missing_permissions_are_named(open_folder, where):
    """In a process that is not root, whom no permission binds."""
    path = open_folder / "jobs.db"
    store = SqliteStore(path)
    run_blocking(submitted(store))
    close_blocking(store)
    path.chmod(0o444 if where == "file" else 0o666)
    open_folder.chmod(0o755 if where == "file" else 0o555)
    code = f"""
import os
import pulsed.store.sqlite
from pulsed.errors import StorageError
from tests.support.processes import first_use
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    first_use({str(path)!r})
except StorageError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(("StorageReadOnly", "StorageError"))
    assert str(path) in done.stdout
    assert "ermission" in done.stdout or "folder" in done.stdout


# -- copies ---------------------------------------------------------------------------------------


def test_a_copy_of_the_files_at_any_moment_has_every_acknowledged_job(
    backend, tmp_path, monkeypatch
):
    """In the middle of transactions, with part of them in the log, and around checkpoints."""
    monkeypatch.setattr(module, "CHECKPOINT_AT", 60_000)
    chance = random.Random(7)
    store = backend.open()
    store._checkpoint_at = 60_000
    run_blocking(store.counts(EVERYTHING))
    assert store._writer._connection is not None
    store._writer._connection.execute("PRAGMA cache_size = 5")  # spill what is not committed
    acknowledged: list[UUID] = []
    copies: list[tuple[Path, set[UUID]]] = []
    execute = store._writer._execute

    def copying(connection, statement, now):
        rows = execute(connection, statement, now)
        if chance.random() < 0.2:
            copy = tmp_path / f"copy-{len(copies)}.db"
            for suffix in ("", "-wal"):
                source = Path(f"{backend.path}{suffix}")
                if source.exists():
                    shutil.copy(source, f"{copy}{suffix}")
            copies.append((copy, set(acknowledged)))
        return rows

    store._writer._execute = copying
    while len(copies) < 12:
        batch = [a_job(payload='{"x":"' + "x" * 300 + '"}') for _ in range(chance.randint(1, 60))]
        run_blocking(store.submit(batch))
        acknowledged += [job.id for job in batch]
    close_blocking(store)
    assert len(acknowledged) > 100

    for copy, expected in copies:
        opened = SqliteStore(copy)
        found = {job.id for job in run_blocking(opened.list_jobs(EVERYTHING, limit=100_000))}
        assert found == expected
        close_blocking(opened)
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_the_log_is_written_back_and_does_not_grow_for_ever(backend, monkeypatch):
    monkeypatch.setattr(module, "CHECKPOINT_AT", 100_000)
    store = backend.open()
    store._checkpoint_at = 100_000
    log = Path(f"{backend.path}-wal")
    for _ in range(30):
        await store.submit([a_job(payload='{"x":"' + "x" * 1_000 + '"}') for _ in range(30)])
        assert log.stat().st_size < 500_000  # noqa: ASYNC240 - a test
    # The file is kept and written over: to extend it would cost every commit an update of its size.
    assert log.stat().st_size >= 100_000  # noqa: ASYNC240
    await store.aclose()


async def test_every_acknowledged_write_waits_for_the_disk_unless_told_otherwise(backend):
    for option, expected in (("FULL", 2), ("NORMAL", 1)):
        store = backend.open(synchronous=option)
        await store.counts(EVERYTHING)
        await submitted(store)
        assert store._writer._connection.execute("PRAGMA synchronous").fetchone() == (expected,)
        await store.aclose()


# -- forks ----------------------------------------------------------------------------------------

FORK = """
import os, sys
from pulsed.job import Status
from pulsed.store.blocking import run_blocking
from tests.support.jobs import EVERYTHING, a_job
from tests.support.processes import open_store

store = open_store(sys.argv[1])
for _ in range(3):
    run_blocking(store.submit([a_job()]))
    run_blocking(store.counts(EVERYTHING))
child = os.fork()
for _ in range(5):
    run_blocking(store.submit([a_job()]))
    run_blocking(store.counts(EVERYTHING))
if child == 0:
    run_blocking(store.aclose())
    os._exit(0)
_, status = os.waitpid(child, 0)
run_blocking(store.submit([a_job()]))
assert status == 0, status
print(run_blocking(store.counts(EVERYTHING))[Status.PENDING])
"""


def test_a_forked_child_opens_its_own_and_leaves_the_parents_alone(path):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "14"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_fork_while_another_thread_writes_does_not_hang_the_child(path):
    code = FORK.replace(
        "child = os.fork()", "store._writer._lock.acquire()\nchild = os.fork()"
    ).replace(
        "for _ in range(5):", "if child:\n    store._writer._lock.release()\nfor _ in range(5):"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "14"


# -- the caller's own connection ------------------------------------------------------------------


async def test_a_job_in_the_callers_transaction_exists_if_that_commits(backend, store):
    await store.counts(EVERYTHING)
    with closing(backend.connect()) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        kept, dropped = a_job(), a_job()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO orders VALUES (1)")
        assert await store.joined(connection).submit([kept]) == 1
        assert connection.in_transaction
        assert await store.get([kept.id]) == {}
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO orders VALUES (2)")
        assert await store.joined(connection).submit([dropped]) == 1
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]
    assert set(await store.get([kept.id, dropped.id])) == {kept.id}


async def test_the_callers_row_factory_and_isolation_are_respected(backend, store):
    await store.counts(EVERYTHING)
    with closing(sqlite3.connect(backend.path)) as connection:  # the driver begins by itself
        connection.row_factory = sqlite3.Row
        assert await store.joined(connection).submit([a_job(), a_job()]) == 2
        assert connection.in_transaction
        connection.rollback()
    assert await store.list_jobs(EVERYTHING) == []


async def test_inside_a_callers_transaction_only_submit_is_possible(backend, store):
    await store.counts(EVERYTHING)
    with closing(backend.connect()) as connection:
        joined = store.joined(connection)
        with pytest.raises(StorageError, match="only submit"):
            await joined.counts(EVERYTHING)
        with pytest.raises(StorageError, match="only submit"):
            await joined.cancel([a_job().id])


async def test_inside_a_callers_transaction_nothing_is_retried(backend):
    store = backend.open(retry=RetryPolicy(max_attempts=50, initial=0, max=0))
    await store.counts(EVERYTHING)
    holder, caller = backend.connect(), backend.connect()
    holder.execute("BEGIN IMMEDIATE")
    caller.execute("PRAGMA busy_timeout = 0")
    tries = 0

    def count(statement: str) -> None:
        nonlocal tries
        tries += statement.startswith("INSERT")

    caller.set_trace_callback(count)
    with pytest.raises(TransientStorageError):
        await store.joined(caller).submit([a_job()])
    assert tries <= 1
    for connection in (holder, caller):
        connection.close()
    await store.aclose()


async def test_a_callers_connection_to_a_file_without_tables_says_so(tmp_path, store):
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as connection,
        pytest.raises(StorageError, match=r"pulsed migrate up"),
    ):
        await store.joined(connection).submit([a_job()])


def test_a_connection_of_another_kind_is_refused(backend):
    with pytest.raises(ConfigError, match=r"sqlite3\.Connection"):
        backend.open().joined(object())


# -- in memory ------------------------------------------------------------------------------------


async def test_a_database_in_memory_does_all_the_same(clock):
    store = SqliteStore(None, clock=clock)
    run = await running(store, max_attempts=1)
    assert await settle(store, run, Failed("x"))
    assert (await row(store, run.job_id)).status is Status.DEAD_LETTERED
    await store.replay([run.job_id])
    again = await claim_one(store, ALICE)
    assert await store.settle([Report(again.lease, Succeeded("1"))]) == {run.job_id}
    assert len(await store.failures(run.job_id)) == 1
    await store.aclose()


async def test_a_database_in_memory_begins_anew_after_closing(clock):
    store = SqliteStore(None, clock=clock)
    await submitted(store)
    await store.aclose()
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 0
    await submitted(store)
    await store.aclose()


async def test_no_thread_is_left_after_closing(path):
    before = set(threading.enumerate())
    store = SqliteStore(path)
    await row(store, await submitted(store))
    ours = set(threading.enumerate()) - before
    assert len(ours) > 1
    await store.aclose()
    for each in ours:
        await asyncio.to_thread(each.join, 60)
    assert not any(each.is_alive() for each in ours)


async def test_a_store_can_be_used_again_after_closing(store):
    job_id = await submitted(store)
    await store.aclose()
    assert (await row(store, job_id)).status is Status.PENDING
    assert (await claim_one(store)).job_id == job_id


async def test_the_hosts_clock_decides_without_a_clock_of_the_tests(path):
    store = SqliteStore(path)
    job_id = await submitted(store)
    now = datetime.now(UTC)
    assert abs((await row(store, job_id)).submitted_at - now) < timedelta(minutes=1)
    assert abs(await store.now() - now) < timedelta(minutes=1)
    await store.aclose()


async def test_readers_beside_each_other_use_connections_of_their_own(store):
    job_id = await submitted(store)
    found = await asyncio.gather(*(store.get([job_id]) for _ in range(30)))
    assert all(set(one) == {job_id} for one in found)
    assert len(store._idle_readers) <= module.MOST_IDLE_READERS


# -- batches --------------------------------------------------------------------------------------


async def test_long_payloads_and_headers_come_with_their_claim(store):
    """Short ones come in one text; the longest would make it too large."""
    texts = ['{"x":"\\u00e9\\n\\"quoted\\""}', '{"x":"' + "é" * 50_000 + '"}', '{"x":null}']
    jobs = [a_job(payload=text, headers={"of": str(n)}) for n, text in enumerate(texts)]
    long_headers = a_job(headers={"long": "h" * 10_000})
    await store.submit([*jobs, long_headers])
    runs = await claim(store)
    assert [run.payload for run in runs[:3]] == texts
    assert [run.headers for run in runs] == [
        *({"of": str(n)} for n in range(3)),
        {"long": "h" * 10_000},
    ]


async def test_a_batch_of_large_results_goes_in_by_pieces(store, monkeypatch):
    monkeypatch.setattr("pulsed.store.sqlite_values.MOST_TEXT", 50)
    await store.submit([a_job() for _ in range(9)])
    runs = await claim(store)
    results = {run.job_id: f'"{n}{"x" * 20}"' for n, run in enumerate(runs)}
    reports = [Report(run.lease, Succeeded(results[run.job_id])) for run in runs]
    lost = reports[4].lease.job_id
    reports[4] = reports[4]._replace(lease=reports[4].lease._replace(token=1))
    assert await store.settle(reports) == set(results) - {lost}
    rows = await store.get(list(results))
    assert {job_id: row.result for job_id, row in rows.items()} == {**results, lost: None}


async def test_a_claim_that_was_undone_with_its_group_is_made_again(store):
    """The second try must look again where the first one has just been."""
    job_id = await submitted(store)
    store._writer._lock.acquire()
    claiming = asyncio.create_task(claim(store))
    failing = asyncio.create_task(store.submit([a_job(priority=1_000)]))
    await until(lambda: len(store._writer._waiting) == 2)
    store._writer._lock.release()
    (run,) = await claiming
    assert run.job_id == job_id
    with pytest.raises(StorageError):
        await failing
    assert await settle(store, run, Succeeded())


async def test_only_a_claim_does_not_wait_for_the_disk(backend):
    """If the machine goes down, so do its workers: a claim that is lost is only a re-run."""
    store = backend.open()
    await store.counts(EVERYTHING)
    levels: list[int] = []
    store._writer._after_commit = lambda connection: levels.append(
        connection.execute("PRAGMA synchronous").fetchone()[0]
    )
    full, normal = 2, 1
    await submitted(store)
    run = await claim_one(store)
    await store.beat([run.lease])
    await settle(store, run, Succeeded())
    assert levels == [full, normal, full, full]
    levels.clear()
    store._writer._lock.acquire()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(claim(store)),
        asyncio.create_task(store.submit([a_job()])),
    ]
    await until(lambda: len(store._writer._waiting) == 2)
    store._writer._lock.release()
    await asyncio.gather(*tasks)
    assert levels == [full]
    await store.aclose()


HOT = [
    *("others_first", "pick", "claim", "long_texts", "beat", "still_held", "set_progress"),
    *("settle_succeeded", "settle", "settled_before", "get", "standing", "cancel", "replay"),
    *("settle_children", "parents", "wake"),
]


@pytest.mark.parametrize("rows", [None, 1, 5, 50, 1_000, 10_000_000])
@pytest.mark.parametrize("statement", HOT)
async def test_no_hot_statement_walks_the_table_whatever_the_statistics_say(
    backend, store, statement, rows
):
    await submitted(store)
    with closing(backend.connect()) as connection:
        connection.create_function("pulse_backoff", 6, lambda *_: 0.0)
        if rows is not None:
            connection.execute("ANALYZE")
            connection.execute("DELETE FROM sqlite_stat1")
            indexes = (
                "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'pulse_jobs'"
            )
            for (index,) in connection.execute(indexes).fetchall():
                connection.execute(
                    "INSERT INTO sqlite_stat1 VALUES ('pulse_jobs', ?, ?)",
                    (index, f"{rows} 1 1 1 1"),
                )
            connection.execute("ANALYZE sqlite_schema")  # makes this connection read them
        owner = store._statements if hasattr(store._statements, statement) else store.workflows
        sql = getattr(owner, statement)
        plans = [
            connection.execute(f"EXPLAIN QUERY PLAN {text}", dict.fromkeys(named(text).names))
            for text in (sql.text, sql.alone)
            if text
        ]
        found = [[step for *_, step in plan] for plan in plans]
    for plan in found:
        steps = [step for step in plan if re.search(r"\b(j|pulse_jobs)\b", step)]
        assert steps
        assert all(step.startswith("SEARCH") for step in steps), plan


async def test_a_look_at_a_fan_out_costs_the_same_whatever_the_number_of_its_children(
    backend, store
):
    """It is taken with every batch that ends: a walk over all children would be one over n²."""

    async def steps_of_a_look(children: int) -> int:
        parent, runs = await a_family(store, children, parent={"topic": f"of {children}"})
        await suspended(store, parent, StepKind.FAN_OUT, too_many=1)
        await store.settle([Report(run.lease, Succeeded()) for run in runs[1:]])
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 1

        look = Statement(store.workflows.wake, {}, [(parent.job_id,)])
        with closing(backend.connect()) as connection:
            connection.set_progress_handler(count, 1)
            assert execute(connection.cursor(), look, 0) == []
        return steps

    assert await steps_of_a_look(500) < 2 * await steps_of_a_look(5)

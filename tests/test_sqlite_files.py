"""Files that are full, copied, linked, of another kind, or read only."""

import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.doctor.examine import examine
from pulsed.engine.doctor.finding import Severity
from pulsed.errors import NotADatabase, StorageError, StorageFull, StorageReadOnly
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Status
from pulsed.store.blocking import run_blocking
from pulsed.store.results import Submitted
from pulsed.store.sqlite import checkpoint
from pulsed.store.sqlite.connections import SqliteOptions
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import close_blocking, file_with_tables, only_sqlite
from tests.support.jobs import EVERYTHING, a_job, claim, row, submitted
from tests.support.programs import python

backend = only_sqlite

PAGE = 4_096
"""Bytes, unless a file is made with another size."""

# -- a full disk ----------------------------------------------------------------------------------


def little_room() -> SqliteOptions:
    """Room for some jobs beside the tables, however many of these there are; one try."""
    tables = len(file_with_tables()) // PAGE
    return SqliteOptions(max_pages=tables + 30, retry=RetryPolicy.disabled())


async def test_a_full_disk_refuses_cleanly_and_recovers(database, clock):
    small = SqliteStore(database, little_room())
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

    roomy = SqliteStore(database)
    assert (await roomy.submit(batch)).new == 5
    runs = await claim(roomy, limit=1_000)
    assert {run.job_id for run in runs} == {*stored, *(job.id for job in batch)}
    await roomy.aclose()


async def test_a_full_disk_in_a_group_acknowledges_nothing_that_is_not_there(database):
    store = SqliteStore(database, little_room())
    await store.counts(EVERYTHING)
    jobs = [a_job(payload='{"x":"' + "x" * 20_000 + '"}') for _ in range(60)]
    answers = await asyncio.gather(*(store.submit([job]) for job in jobs), return_exceptions=True)
    accepted = {job.id for job, answer in zip(jobs, answers, strict=True) if answer == Submitted(1)}
    refused = [answer for answer in answers if answer != Submitted(1)]
    assert refused
    assert {type(answer) for answer in refused} == {StorageFull}
    assert {job.id for job in await store.list_jobs(EVERYTHING, limit=1_000)} == accepted
    await store.aclose()


# -- files that cannot be used --------------------------------------------------------------------


async def test_a_file_that_is_not_a_database_is_left_alone(database):
    database.write_bytes(b"Dear diary, " * 500)
    store = SqliteStore(database)
    with pytest.raises(NotADatabase, match="not an SQLite database"):
        await store.submit([a_job()])
    await store.aclose()
    assert database.read_bytes() == b"Dear diary, " * 500


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

    monkeypatch.setattr("pulsed.store.sqlite.store.sqlite3.connect", read_only)
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
    """In a process that is not root: root ignores permissions."""
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
    said = python("-c", code).stdout
    assert said.startswith(("StorageReadOnly", "StorageError"))
    assert str(path) in said
    assert "ermission" in said or "folder" in said


# -- copies, and the log --------------------------------------------------------------------------


def test_a_copy_of_the_files_at_any_moment_has_every_acknowledged_job(
    backend, tmp_path, monkeypatch
):
    """In the middle of transactions, with part of them in the log, and around checkpoints."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_AT", 60_000)
    chance = random.Random(7)
    store = backend.open()
    store._checkpointer.at = 60_000
    run_blocking(store.counts(EVERYTHING))
    assert store._writer._connection is not None
    store._writer._connection.execute("PRAGMA cache_size = 5")  # spill what is not committed
    acknowledged: list[UUID] = []
    copies: list[tuple[Path, set[UUID]]] = []
    execute = store._writer._execute

    def copying(*args):
        rows = execute(*args)
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
    monkeypatch.setattr(checkpoint, "CHECKPOINT_AT", 100_000)
    store = backend.open()
    store._checkpointer.at = 100_000
    log = Path(f"{backend.path}-wal")
    for _ in range(30):
        await store.submit([a_job(payload='{"x":"' + "x" * 1_000 + '"}') for _ in range(30)])
        assert log.stat().st_size < 500_000  # noqa: ASYNC240 - a test
    # The file is kept and written over: to extend it would cost every commit an update of its size.
    assert log.stat().st_size >= 100_000  # noqa: ASYNC240
    await store.aclose()


def test_behind_a_symbolic_link_the_log_is_written_back_as_well(tmp_path, monkeypatch):
    """SQLite names the log after the file itself, not after the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "jobs.db")
    store = SqliteStore(tmp_path / "link.db")
    run_blocking(store.submit([a_job()]))
    monkeypatch.setattr(checkpoint, "CHECKPOINT_AT", 1)
    store._checkpointer.at = 1
    run_blocking(store.submit([a_job()]))
    shutil.copy(tmp_path / "real" / "jobs.db", tmp_path / "without_its_log.db")
    with closing(sqlite3.connect(tmp_path / "without_its_log.db")) as copy:
        assert copy.execute("SELECT count(*) FROM pulse_jobs").fetchone() == (2,)
    close_blocking(store)


def test_a_commit_does_not_ask_for_the_time_of_the_log(backend, monkeypatch):
    """Linux would store a new one with the next write: a transaction of the file system."""
    store = backend.open()
    run_blocking(store.submit([a_job()]))
    asked: list[str] = []
    stat = os.stat

    def recorded(path, *args, **options):
        asked.append(str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", recorded)
    run_blocking(store.submit([a_job()]))
    assert asked == [str(backend.path)]  # whether it was replaced
    close_blocking(store)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not list them")
def test_a_closed_store_leaves_no_file_open(backend):
    def open_files() -> set[str]:
        found = set()
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                found.add(str(descriptor.readlink()))
        return {name for name in found if str(backend.path) in name}

    store = backend.open()
    run_blocking(store.submit([a_job()]))
    assert f"{backend.path}-wal" in open_files()
    close_blocking(store)
    assert open_files() == set()


# -- who may read it ------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.skipif(os.name != "posix", reason="files have no modes")
class TestModes:
    @pytest.fixture(autouse=True)
    def generous(self) -> Iterator[None]:
        before = os.umask(0o022)
        yield
        os.umask(before)

    async def test_only_its_owner_can_read_a_new_file(self, tmp_path):
        path = tmp_path / "new.db"
        store = SqliteStore(path)
        await store.submit([a_job()])
        files = {each.name: mode(each) for each in tmp_path.iterdir()}
        assert files == dict.fromkeys(["new.db", "new.db-wal", "new.db-shm"], 0o600)
        await store.aclose()

    async def test_also_through_a_link_that_leads_nowhere_yet(self, tmp_path):
        link = tmp_path / "link.db"
        link.symlink_to(tmp_path / "there.db")
        store = SqliteStore(link)
        await store.submit([a_job()])
        assert mode(tmp_path / "there.db") == 0o600
        await store.aclose()

    async def test_a_file_that_is_there_keeps_its_mode_and_the_doctor_warns(self, tmp_path):
        path = tmp_path / "old.db"
        path.touch(0o644)
        store = SqliteStore(path)
        await store.submit([a_job()])
        assert mode(path) == 0o644
        (found,) = [each for each in await examine(store) if each.check == "file mode"]
        assert (found.level, "0644" in found.detail) == (Severity.WARN, True)
        assert "chmod 600" in found.advice
        path.chmod(0o660)  # a file that a group shares was made so on purpose
        (found,) = [each for each in await examine(store) if each.check == "file mode"]
        assert found.level is Severity.OK
        await store.aclose()


LEFT_OPEN = """
import gc, sys
from pulsed.store.results import Submitted
from pulsed import Pulse

def use(url):
    app = Pulse(url)
    app.enqueue("greet", {"name": "x"})
    app.jobs.counts()
    return app

use(sys.argv[1])
gc.collect()
left = [use(sys.argv[1]), use("sqlite://")]
"""


def test_a_program_that_closes_nothing_leaves_no_connection_open(database):
    """Python warns of those from 3.13 on."""
    done = python("-X", "dev", "-W", "error", "-c", LEFT_OPEN, f"sqlite:///{database}")
    assert done.stderr == ""
    assert not Path(f"{database}-wal").exists()

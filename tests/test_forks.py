"""Forks of a process that uses an app: what was acknowledged is stored, and no process hangs."""

import asyncio
import json
import os
import sqlite3
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import copy_context
from pathlib import Path
from uuid import UUID

import pytest

from pulsed.model.job import Status
from pulsed.store import fork
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.file import _open_files
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import Backend, close_blocking
from tests.support.forking import CHILDREN, ENDS, MOMENTS
from tests.support.jobs import EVERYTHING, a_job, claim_one
from tests.support.programs import python
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_parent_and_children_were_told_is_stored(backend: Backend, moment: str):
    done = python("-m", "tests.support.forking", backend.app_url, moment, seconds=240)
    played = json.loads(done.stdout)
    assert len(played) == len(ENDS)
    stored = {
        str(UUID(bytes=found) if isinstance(found, bytes) else found)
        for (found,) in backend.execute("SELECT id FROM pulse_jobs")
    }
    for scenario, seen in played.items():
        assert not seen["hung"], (scenario, done.stderr)
        assert seen["ended"] == CHILDREN + 1, (scenario, done.stderr)
        assert len(seen["ids"]) >= CHILDREN * 6 + 2, scenario
        assert set(seen["ids"]) <= stored, (scenario, done.stderr)


# -- SQLite: its locks do not survive a fork ------------------------------------------------------


@contextmanager
def forking() -> Iterator[None]:
    """What a fork does in the parent, without one."""
    fork._before()
    try:
        yield
    finally:
        fork._in_parent()


def identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


@pytest.fixture
def file_store(database: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(database)
    run_blocking(store.submit([a_job()]))
    run_blocking(store.counts(EVERYTHING))
    yield store
    close_blocking(store)


def test_no_connection_is_open_at_the_moment_of_a_fork(file_store, database):
    assert identity(database) in _open_files()
    with forking():
        assert identity(database) not in _open_files()
    run_blocking(file_store.submit([a_job()]))
    assert run_blocking(file_store.counts(EVERYTHING))[Status.PENDING] == 2


def test_whoever_comes_during_a_fork_waits_for_its_end(file_store, database):
    done = []

    def write_and_read() -> None:
        run_blocking(file_store.submit([a_job()]))
        done.append(run_blocking(file_store.counts(EVERYTHING))[Status.PENDING])

    with forking():
        threads = [threading.Thread(target=write_and_read) for _ in range(2)]
        for thread in threads:
            thread.start()
        while file_store._writer._waiting:
            assert identity(database) not in _open_files()
            if len(file_store._writer._waiting) == len(threads):
                break
        assert done == []
    for thread in threads:
        thread.join()
    assert max(done) == 3


def test_a_database_in_memory_stays_with_the_parent():
    store = SqliteStore(None)
    run_blocking(store.submit([a_job()]))
    with forking():
        pass
    assert run_blocking(store.counts(EVERYTHING))[Status.PENDING] == 1
    close_blocking(store)


async def test_a_fork_waits_for_a_step_to_commit(file_store, database):
    lease = (await claim_one(file_store)).lease
    open_at_fork = []

    def fork_elsewhere() -> None:
        with forking():
            open_at_fork.append(identity(database) in _open_files())

    async with file_store.workflows.transaction(lease, plain=False):
        forker = asyncio.get_running_loop().run_in_executor(None, fork_elsewhere)
        await until(lambda: file_store.steps._is_shut)
        assert (await file_store.counts(EVERYTHING))[Status.RUNNING] == 1  # others go on
        assert open_at_fork == []
    await forker
    assert open_at_fork == [False]


@pytest.mark.parametrize("where", ["in its task", "in its thread", "in its loop"])
async def test_a_fork_does_not_wait_for_a_step_that_waits_for_it(
    file_store, database, monkeypatch, where
):
    monkeypatch.setattr(fork, "DRAIN_TIMEOUT", 10_000)
    lease = (await claim_one(file_store)).lease

    def fork_here() -> bool:
        with forking():
            return identity(database) in _open_files()

    async def fork_in_loop() -> bool:
        return fork_here()

    outside = copy_context()
    async with file_store.workflows.transaction(lease, plain=False):
        match where:
            case "in its task":
                assert fork_here()
            case "in its thread":
                assert await asyncio.to_thread(fork_here)
            case _:
                assert await asyncio.create_task(fork_in_loop(), context=outside)


def test_two_threads_may_fork_at_once(file_store, database):
    seen = []

    def fork_here() -> None:
        for _ in range(20):
            with forking():
                seen.append(identity(database) in _open_files())
            run_blocking(file_store.submit([a_job()]))

    threads = [threading.Thread(target=fork_here) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [False] * 60
    assert run_blocking(file_store.counts(EVERYTHING))[Status.PENDING] == 61


class Interrupted(fork.ForkAware):
    """A signal handler runs while this pauses, or resumes."""

    def __init__(self, moment: str, handler: Callable[[], object]) -> None:
        self._handlers = {moment: [handler]}
        fork.watch_forks(self)

    def pause(self, give_up_at: float) -> None:
        self._handle("pause")

    def resume(self) -> None:
        self._handle("resume")

    def _handle(self, moment: str) -> None:
        for handler in (handlers := self._handlers.get(moment, [])):
            handlers.remove(handler)
            handler()

    def forget_inherited(self) -> list[object]:
        return []


def fork_in_a_signal_handler() -> None:
    with forking():
        pass


@pytest.mark.parametrize("moment", ["pause", "resume"])
def test_a_signal_handler_may_fork_while_the_hooks_of_a_fork_run(file_store, database, moment):
    """Everything stays stopped until the outer fork is over; then all threads continue."""
    others = [SqliteStore(database) for _ in range(5)]  # which comes first is not known
    interrupted = Interrupted(moment, fork_in_a_signal_handler)
    stores = [file_store, *others]
    with forking():
        assert all(store._uses._is_shut and store.steps._is_shut for store in stores)
    assert not any(store._uses._is_shut or store.steps._is_shut for store in stores)
    registering = threading.Thread(target=fork.watch_forks, args=[interrupted], daemon=True)
    registering.start()
    registering.join(10)
    assert not registering.is_alive(), "the lock is still held"
    for store in others:
        close_blocking(store)


def test_the_child_of_a_signal_handlers_fork_goes_through_with_the_outer_fork(file_store):
    """It returns from the handler into hooks that began in its parent."""

    def fork_and_go_on_in_the_child() -> None:
        fork._before()
        fork._in_child()

    forked = Interrupted("pause", fork_and_go_on_in_the_child)
    with forking():
        pass
    assert not file_store._uses._is_shut
    assert run_blocking(file_store.counts(EVERYTHING))[Status.PENDING] == 1
    assert forked._handlers == {"pause": []}


REFUSED = """
    import os, sqlite3, sys
    from pulsed import Pulse
    from pulsed.errors import StorageError
    from pulsed.model.job import Status

    app = Pulse(f"sqlite:///{sys.argv[1]}")

    @app.job
    def greet(name: str) -> None: ...

    greet.enqueue("before")
    own = sqlite3.connect(sys.argv[1])  # the program's own connection to the same file
    own.execute("SELECT count(*) FROM pulse_jobs").fetchall()
    pid = os.fork()
    if pid == 0:
        other = Pulse(f"sqlite:///{sys.argv[1]}")
        ways = [
            lambda: greet.enqueue("child"),
            lambda: greet.using(conn=own).enqueue("child"),
            lambda: other.enqueue("greet", {"name": "child"}),
        ]
        for way in ways:
            try:
                way()
            except StorageError as error:
                print(error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    greet.enqueue("parent")
    print(app.jobs.counts()[Status.PENDING])
"""


def test_a_file_that_was_open_at_the_fork_is_refused_in_the_child(database):
    *refused, stored = python("-c", textwrap.dedent(REFUSED), str(database)).stdout.splitlines()
    assert stored == "2"
    assert len(refused) == 3
    assert all("was open when this process was forked" in line for line in refused)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

"""Steps with tx=True hold SQLite's only write lock; everything else gets its turn between them."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pulsed.errors import TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite import step_transaction as sqlite_step
from pulsed.store.sqlite.place import lock_holder
from pulsed.store.sqlite.step_transaction import rest_after
from tests.support.backends import close_blocking, only_sqlite
from tests.support.jobs import a_job, running
from tests.support.waiting import until

backend = only_sqlite


async def test_a_write_that_waits_goes_before_the_next_step(backend):
    store = backend.open()
    lease = (await running(store)).lease
    order: list[str] = []

    async def step(name: str, until_then: asyncio.Event) -> None:
        async with store.workflows.transaction(lease, plain=False):
            order.append(name)
            await until_then.wait()

    async def write() -> None:
        await store.submit([a_job()])
        order.append("write")

    end = asyncio.Event()
    steps = [asyncio.create_task(step(f"step {n}", end)) for n in range(2)]
    await until(lambda: order)
    written = asyncio.create_task(write())
    await until(store._writer._lock.locked)  # it asks for the file
    end.set()
    await asyncio.gather(*steps, written)
    assert order == ["step 0", "write", "step 1"]
    await store.aclose()


async def test_another_process_gets_the_file_between_two_steps(backend, monkeypatch):
    """It asks every 0.1 s, as SQLite does."""
    monkeypatch.setattr(sqlite_step, "SHARE_OF_OTHERS", 10_000)  # as after a step of seconds
    assert sqlite_step.LONGEST_PAUSE > 0.1
    monkeypatch.setattr(sqlite_step, "LONGEST_PAUSE", 2.0)  # the machine may be slow
    store = backend.open()
    lease = (await running(store)).lease
    other = sqlite3.connect(backend.path, timeout=60, isolation_level=None, check_same_thread=False)
    order: list[str] = []

    def write_elsewhere() -> None:
        other.execute("BEGIN IMMEDIATE")
        order.append("other")
        other.execute("COMMIT")

    async with store.workflows.transaction(lease, plain=False):
        order.append("step")
        thread = threading.Thread(target=write_elsewhere)
        thread.start()
        await asyncio.sleep(0.5)  # until SQLite asks no more often than that
    async with store.workflows.transaction(lease, plain=False):
        order.append("step")
    thread.join()
    assert order == ["step", "other", "step"]
    other.close()
    await store.aclose()


def test_the_rest_between_steps_is_a_small_part_of_what_they_take():
    assert rest_after(0.001) == pytest.approx(0.0001)
    assert rest_after(4) == 0.12


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells")
def test_an_error_says_which_process_holds_the_file(backend):
    store = backend.open(busy_timeout=0, retry=RetryPolicy.disabled())
    run_blocking(store.submit([a_job()]))
    command = [sys.executable, "-c", HOLDER, str(backend.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(TransientStorageError, match=rf"Process {process.pid} \(.*python"):
            run_blocking(store.submit([a_job()]))
        assert str(process.pid) in lock_holder(backend.path)
        process.communicate()
    close_blocking(store)


def test_where_nobody_tells_who_holds_the_file_it_is_another_process(tmp_path):
    assert lock_holder(tmp_path / "jobs.db", tmp_path / "none") == "Another process"

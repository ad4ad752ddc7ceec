"""Handlers with ``executor="process"``: killed for certain, and crashing alone."""

import asyncio
import json
import logging
import os
import signal
import sys
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsed import Pulse
from pulsed.engine.worker.options import WorkerOptions
from pulsed.engine.worker.processes.child import ChildProcess
from pulsed.engine.worker.processes.main import _answer
from pulsed.engine.worker.processes.messages import Origin, Reply
from pulsed.engine.worker.processes.origin import load, locate
from pulsed.engine.worker.processes.pool import ProcessPool
from pulsed.engine.worker.worker import Exit, Worker
from pulsed.errors import ConfigError, InvalidHandler, InvalidOption
from pulsed.model.job import Status
from pulsed.model.outcome import Beat
from pulsed.store.base import Store
from tests.support.process_app import app
from tests.support.workers import (
    NEVER,
    Working,
    finished,
    handler,
    result,
    row,
    running_worker,
    submit,
    submit_with,
    until,
)


def working(store: Store, **options: Any) -> AbstractAsyncContextManager[Working]:
    """A worker of the app's handlers; drained at the end of the block."""
    given = {"poll": 0.5, "tick": NEVER, "concurrency": 10, "job_processes": 1} | options
    origin = locate(app, "sqlite:///:memory:")
    worker = Worker(
        store,
        app.registry,
        WorkerOptions(**given),
        arounds=app._arounds,
        origin=lambda: origin,
    )
    return running_worker(worker)


async def returned(store: Store, job_id: UUID) -> Any:
    """Wait for a job's result."""
    return result(await finished(store, job_id))


def pool_of(it: Working) -> ProcessPool:
    pool = it.worker._runner.processes
    assert pool is not None
    return pool


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between opening and reading
        return False


async def pids_in(file: Path) -> list[int]:
    """Wait for the ids of processes that a handler has written."""
    await until(lambda: pids(file))
    return pids(file)


def pids(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


async def test_a_handler_runs_in_another_process_with_its_context(
    store: Store, caplog: pytest.LogCaptureFixture
):
    async with working(store) as it:
        with caplog.at_level(logging.INFO):
            job_id = await submit_with(store, "describe", {"headers": {"tenant": "a"}}, name="x")
            job = await finished(store, job_id)
        again = await returned(store, await submit(store, "describe", name="y"))
        async_text = await returned(store, await submit(store, "describe_async", name="z"))
        (pid,) = pool_of(it).pids
    found = json.loads(job.result or "")
    assert found == {
        "pid": pid,
        "session": pid,
        "job": str(job_id),
        "attempt": 1,
        "headers": {"tenant": "a"},
        "surrounded": ["enter describe"],
    }
    assert pid != os.getpid()
    assert job.progress == json.dumps({"half": "x"}, separators=(",", ":"))
    emitted = (await store.streams.read(job_id, limit=10)).items
    assert [item.value for item in emitted] == ['{"describing":"x"}']
    assert (again["pid"], again["surrounded"]) == (pid, ["leave", "enter describe"])
    assert async_text == f"z {pid}"
    line, _ = [record for record in caplog.records if record.name == "shop"]
    assert (line.getMessage(), line.levelname) == ("describing x", "WARNING")
    assert (line.__dict__["job_id"], line.__dict__["shop"]) == (str(job_id), 7)
    assert not is_alive(pid)


CRASHES = {
    "segfault": "its process was killed by signal 11 (SIGSEGV)",
    "exit": "its process exited with code 3",
    "kill": "its process was killed by signal 9 (SIGKILL); the system may have run out of memory",
    "raise": "ValueError: wrong",
    "system-exit": "SystemExit: 4",
}


async def test_a_crash_fails_its_own_job_and_no_other(near: Store, tmp_path: Path):
    store, file = near, tmp_path / "pids"
    async with working(store, job_processes=2) as it:
        neighbour = await submit(store, "obedient", file=str(file))
        (pid,) = await pids_in(file)
        for how, error in CRASHES.items():
            job = await finished(store, await submit(store, "crash", how=how))
            assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
            assert job.last_error == error
        snoozed = await submit(store, "crash", how="snooze")

        async def has_snoozed() -> bool:
            job = await row(store, snoozed)
            return job.attempts == 0 and job.next_run_at > job.submitted_at + timedelta(seconds=30)

        await until(has_snoozed)
        job = await finished(store, await submit(store, "workflow"))
        assert (job.last_error or "").startswith("CannotSuspend: ")
        assert 'ctx.sleep() is for workflows, and a handler with executor="process"' in (
            job.last_error or ""
        )
        assert (await row(store, neighbour)).status is Status.RUNNING
        assert is_alive(pid)
        await store.cancel([neighbour])
        await finished(store, neighbour)
        assert await it.stop() is Exit.DRAINED
    assert not is_alive(pid)


async def test_memory_beyond_the_limit_fails_the_job_and_spends_the_process(near: Store):
    store = near
    async with working(store) as it:
        assert await returned(store, await submit(store, "hoard", megabytes=1)) == 2**20
        (first,) = pool_of(it).pids
        job = await finished(store, await submit(store, "hoard", megabytes=1_000))
        assert (job.status, job.last_error) == (Status.DEAD_LETTERED, "MemoryError")
        text = await returned(store, await submit(store, "describe_async", name="next"))
        assert text != f"next {first}"
        await until(lambda: not is_alive(first))


async def test_a_job_that_ignores_its_cancellation_is_killed_with_its_programs(
    near: Store, tmp_path: Path
):
    store, file = near, tmp_path / "pids"
    async with working(store, kill_after=0.05) as it:
        job_id = await submit(store, "deaf", file=str(file))
        both = await pids_in(file)
        await store.cancel([job_id])
        job = await finished(store, job_id)
        assert job.status is Status.CANCELLED
        await until(lambda: not any(map(is_alive, both)))
        assert it.worker.describe().stuck == 0

        file.unlink()
        job_id = await submit_with(store, "deaf", {"max_attempts": 1}, file=str(file))
        both = await pids_in(file)
        os.kill(both[0], signal.SIGKILL)  # as the system does that is out of memory
        assert (await finished(store, job_id)).last_error == CRASHES["kill"]
        await until(lambda: not any(map(is_alive, both)))


async def test_a_second_cancellation_while_a_process_dies_harms_no_other_job(
    near: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when the event loop's owner cancels all of its tasks."""
    store, kill = near, ChildProcess.kill
    async with working(store, kill_after=0.0, job_processes=1) as it:
        job_id = await submit(store, "deaf", file=str(tmp_path / "pids"))
        both = await pids_in(tmp_path / "pids")
        (run,) = it.worker._runner.in_processes

        def kill_and_cancel_again(child: ChildProcess) -> None:
            kill(child)
            if run.task is not None:
                run.task.cancel()

        monkeypatch.setattr(ChildProcess, "kill", kill_and_cancel_again)
        await store.cancel([job_id])
        assert (await finished(store, job_id)).status is Status.CANCELLED
        assert not is_alive(both[0])
        job = await finished(store, await submit(store, "describe_async", name="next"))
        assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)


async def test_jobs_that_obey_are_cancelled_and_their_process_is_reused(
    near: Store, tmp_path: Path
):
    used = set()
    async with working(near, kill_after=60.0):
        for topic in ("obedient", "obedient_async"):
            file = tmp_path / topic
            job_id = await submit(near, topic, file=str(file))
            used |= set(await pids_in(file))
            await near.cancel([job_id])
            assert (await finished(near, job_id)).status is Status.CANCELLED
    assert len(used) == 1


async def test_a_timeout_kills_and_counts_from_when_the_handler_began(near: Store, tmp_path: Path):
    async with working(near, kill_after=0.0) as it:
        options = {"timeout": 0.2, "max_attempts": 1}
        job_id = await submit_with(near, "deaf", options, file=str(tmp_path / "pids"))
        await until(lambda: it.worker._runner.in_processes)
        (run,) = it.worker._runner.in_processes
        assert run.began or run.timer is None  # while its process starts, no time is counted
        job = await finished(near, job_id)
        assert (job.status, job.last_error) == (Status.DEAD_LETTERED, "timed out after 0.2 s")
        await until(lambda: not pool_of(it).pids)


async def test_a_lost_lease_kills_at_once(near: Store, tmp_path: Path):
    store, file = near, tmp_path / "pids"
    async with working(store, kill_after=NEVER) as it:
        job_id = await submit(store, "deaf", file=str(file))
        both = await pids_in(file)
        (run,) = it.worker._runner.runs
        it.worker._act_on_answers({run.lease: Beat.LOST})
        await until(lambda: not any(map(is_alive, both)))
        await until(lambda: not it.worker._runner.runs)
        assert (await row(store, job_id)).status is Status.RUNNING  # another run decides


async def test_an_abort_hands_jobs_back_and_leaves_no_process(
    near: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pulsed.engine.worker.runs.UNSTOPPABLE_AFTER", 0.05)
    store, file = near, tmp_path / "pids"
    async with working(store, kill_after=NEVER) as it:
        job_id = await submit(store, "deaf", file=str(file))
        both = await pids_in(file)
        assert await it.stop(abort=True) is Exit.ABORTED
    job = await row(store, job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    assert not any(map(is_alive, both))


async def test_a_process_is_replaced_after_its_jobs_and_ended_when_idle(
    near: Store, monkeypatch: pytest.MonkeyPatch
):
    store = near

    async def described() -> Any:
        return await returned(store, await submit(store, "describe_async", name="n"))

    async with working(store, jobs_per_process=2) as it:
        texts = [await described() for _ in range(2)]
        # Not before: the next job may take longer to come than that.
        monkeypatch.setattr("pulsed.engine.worker.processes.pool.IDLE", 0.05)
        texts.append(await described())
        assert [text == texts[0] for text in texts] == [True, True, False]
        await until(lambda: not pool_of(it).pids)


async def test_no_more_jobs_are_claimed_than_processes_are_free(store: Store, tmp_path: Path):
    files = [tmp_path / str(number) for number in range(3)]
    poll = 0.5 if store.is_remote else NEVER  # a server does not notify workers of a cancel
    async with working(store, poll=poll) as it:
        ids = [await submit(store, "obedient", file=str(file)) for file in files]
        await pids_in(files[0])
        beside = await returned(store, await submit(store, "beside", name="b"))
        assert beside == f"b {os.getpid()}"
        assert await statuses(store, ids) == [Status.RUNNING, Status.PENDING, Status.PENDING]
        assert it.worker.describe().slots == 11
        await store.cancel(ids[:1])
        await pids_in(files[1])  # the freed process wakes the claimer
        await store.cancel(ids)
        await finished(store, ids[1])


async def statuses(store: Store, ids: list[UUID]) -> list[Status]:
    found = await store.get(ids)
    return [found[job_id].status for job_id in ids]


async def test_a_process_that_cannot_load_the_app_fails_the_job(
    near: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "tests.test_process_executor.locate",
        lambda *_: Origin("no.such", "app", None, [], ""),
    )
    async with working(near):
        job_id = await submit_with(near, "beside", {}, name="b")
        assert await returned(near, job_id)
        job_id = await submit_with(near, "describe", {"max_attempts": 1}, name="x")
        job = await finished(near, job_id)
    assert "its process could not load no.such: " in (job.last_error or "")
    assert "No module named 'no'" in (job.last_error or "")


SCRIPT = """
import ctypes
import os

from pulsed import Pulse

app = Pulse("sqlite:///jobs.db")


@app.job(executor="process")
def hold() -> None:
    print("pid", os.getpid(), flush=True)
    ctypes.PyDLL(None).sleep(600)  # and holds the GIL


if __name__ == "__main__":
    hold.enqueue()
    app.run()
"""


async def test_a_process_dies_with_its_worker_even_if_a_handler_holds_the_gil(tmp_path: Path):
    """Also: the app is in the script that was started."""
    (tmp_path / "script.py").write_text(SCRIPT)
    program = await asyncio.create_subprocess_exec(
        sys.executable, "script.py", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    async with asyncio.timeout(60):
        word, pid = (await program.stdout.readline()).split()
    assert word == b"pid"
    assert is_alive(int(pid))
    program.send_signal(signal.SIGKILL)
    await program.wait()
    await until(lambda: not is_alive(int(pid)))


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1"], ids=["too long", "no message"]
)
async def test_a_process_that_sends_nonsense_is_killed(
    near: Store, sent: bytes, caplog: pytest.LogCaptureFixture
):
    async with working(near):
        job_id = await submit_with(near, "babble", {"max_attempts": 1}, text=sent.hex())
        job = await finished(near, job_id)
    assert "killed by signal 9" in (job.last_error or "")
    assert "sent an invalid message" in caplog.text


def test_an_answer_that_is_no_longer_awaited_does_no_harm():
    future: Future[bool] = Future()
    future.cancel()
    _answer(future, Reply(1, is_held=True))


def test_an_app_that_no_other_process_can_import_is_refused():
    with pytest.raises(ConfigError, match="assign it to a global of a module"):
        locate(Pulse("sqlite:///jobs.db"), "sqlite:///jobs.db")


def test_a_module_that_starts_a_worker_when_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = "from pulsed import Pulse\napp = Pulse()\n@app.job\ndef f() -> None: ...\napp.run()\n"
    (tmp_path / "starts_a_worker.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path])
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("PULSED_URL", url)
    origin = Origin("starts_a_worker", "app", None, [str(tmp_path), *sys.path], url)
    with pytest.raises(ConfigError, match='Put that below `if __name__ == "__main__":`'):
        load(origin)


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"executor": "thread"}, "executor must be 'worker' or 'process'"),
        ({"memory_limit": 2**30}, "memory_limit= is for executor='process'"),
        ({"executor": "process", "memory_limit": 1_000}, "memory_limit must be between 33,554,432"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str):
    with pytest.raises(InvalidHandler, match=problem):
        handler(lambda: None, topic="t", **options)


@pytest.mark.parametrize(
    "options", [{"job_processes": 0}, {"jobs_per_process": 0}, {"kill_after": -1.0}]
)
def test_a_worker_refuses_numbers_that_make_no_sense(options: dict[str, Any]):
    with pytest.raises(InvalidOption):
        WorkerOptions(**options)

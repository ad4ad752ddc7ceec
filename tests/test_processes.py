"""Real worker processes, and the ways in which they die."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pulsed.engine.worker.worker import Exit
from pulsed.model.job import Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.sql_store.store import SqlStore
from tests.support import crashing_app
from tests.support.backends import Backend
from tests.support.crashing_app import TICK, Journal, hold_interpreter, sibling, slow_at_first, work
from tests.support.programs import ROOT
from tests.support.workers import (
    expire_leases,
    finished,
    in_status,
    result,
    row,
    submit,
    submit_with,
    until,
    working,
)


class Processes:
    """Starts workers; none of them outlives the test."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.journal = Journal(folder / "journal")
        self._url = backend.app_url
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, point: str = "", *, slots: int = 2) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.crashing_app"]
        process = subprocess.Popen(
            [*command, self._url, str(self.journal.path), point, str(slots)],
            cwd=ROOT,
            env={**os.environ, "PYTHONFAULTHANDLER": ""},
            stderr=subprocess.DEVNULL,
        )
        self._started.append(process)
        return process

    @property
    def log(self) -> str:
        path = Path(f"{self.journal.path}.log")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def end(self) -> None:
        for process in self._started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


@pytest.fixture
def processes(backend: Backend, tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(backend, tmp_path)
    yield processes
    processes.end()


@pytest.fixture
def live(backend: Backend) -> SqlStore:
    """A store on the clock that all processes share."""
    return backend.open(own_clock=False)


async def died(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process to end; returns its exit code."""
    await until(lambda: process.poll() is not None)
    return process.returncode


def freeze(process: subprocess.Popen[bytes], backend: Backend) -> None:
    """Stop a process as a suspended machine does, but not inside of a transaction.

    An SQLite writer that is frozen in one keeps the file locked for all others until it wakes up.
    """
    with closing(backend.connect()) as connection:
        connection.execute("BEGIN IMMEDIATE" if backend.engine == "sqlite" else "BEGIN")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("point", ["claimed", "running", "finished", "settling"])
async def test_a_job_survives_the_death_of_its_worker(
    backend: Backend, live: SqlStore, processes: Processes, point: str
):
    if point == "settling" and isinstance(live, RemoteStore):
        pytest.skip("the worker of a server is never inside a transaction")
    job_id = await submit(live, "work")
    process = processes.start(point)
    assert await died(process) == -signal.SIGKILL
    assert processes.journal.lines()[-1] == f"dying {point}"
    left = await row(live, job_id)
    committed = left.status is Status.SUCCEEDED
    # PostgreSQL commits a successful report with its only statement.
    assert committed == (point == "settling" and backend.engine == "postgres")
    assert left.attempts == 1

    await expire_leases(backend, live)
    async with working(live, work.handler, tick=TICK):
        job = await finished(live, job_id)
    attempts = 1 if committed else 2
    assert (job.status, job.attempts, result(job)) == (Status.SUCCEEDED, attempts, attempts)
    assert len(await live.failures(job_id)) == attempts - 1
    await live.aclose()


async def test_a_stopped_worker_wakes_up_as_a_zombie_and_knows_it(
    backend: Backend, live: SqlStore, processes: Processes
):
    job_id = await submit(live, "slow_at_first")
    process = processes.start()
    await until(lambda: "started 1" in processes.journal.lines())
    freeze(process, backend)
    async with working(live, slow_at_first.handler, tick=TICK):
        job = await finished(live, job_id)
    assert (result(job), job.attempts) == (2, 2)

    process.send_signal(signal.SIGCONT)
    await until(lambda: "cancelled" in processes.journal.lines())
    await until(lambda: "lost its lease" in processes.log)
    process.terminate()
    assert await died(process) == Exit.DRAINED.value
    after = await row(live, job_id)
    assert (after.result, after.last_worker, after.attempts) == (job.result, job.last_worker, 2)
    await live.aclose()


async def test_the_report_of_a_zombie_is_refused(
    backend: Backend, live: SqlStore, processes: Processes
):
    job_id = await submit(live, "late_report")
    process = processes.start()
    await until(lambda: "started 1" in processes.journal.lines())
    freeze(process, backend)
    processes.journal.let_go()
    async with working(live, crashing_app.late_report.handler, tick=TICK):
        job = await finished(live, job_id)
    assert result(job) == 2
    process.send_signal(signal.SIGCONT)
    await until(lambda: "came too late" in processes.log or "lost its lease" in processes.log)
    process.terminate()
    await died(process)
    assert (await row(live, job_id)).result == job.result
    await live.aclose()


@pytest.mark.parametrize(
    "backend, kind",
    [("sqlite", "exit"), ("sqlite", "segfault"), ("sqlite", "memory"), ("postgres", "exit")],
    indirect=["backend"],
)
async def test_a_job_that_kills_its_process_is_parked_and_its_siblings_run_again(
    backend: Backend, live: SqlStore, processes: Processes, kind: str, monkeypatch
):
    monkeypatch.setattr(crashing_app, "journal", processes.journal)
    innocent = await submit(live, "sibling")
    guilty = await submit(live, "poison", kind=kind)
    # It dies with its sibling, which costs neither an attempt; then alone.
    for expected in (Status.PENDING, Status.RETRYING, Status.DEAD_LETTERED):
        process = processes.start()
        assert await died(process) != 0
        await expire_leases(backend, live)
        # A worker that cannot run the poison recovers the jobs of dead ones.
        async with working(live, sibling.handler, tick=TICK):
            await in_status(live, guilty, expected)
            await finished(live, innocent)
    parked = await row(live, guilty)
    assert (parked.attempts, parked.last_error) == (2, "worker lease expired")
    job = await row(live, innocent)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)
    await live.aclose()


@pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
async def test_a_job_that_kills_its_process_costs_its_neighbours_no_attempt(
    backend: Backend, live: SqlStore, processes: Processes
):
    guilty = await submit(live, "poison", kind="exit")
    innocent = [await submit(live, "neighbour") for _ in range(20)]
    worker = None

    async def is_over() -> bool:
        found = await live.get([guilty, *innocent])
        return all(job.status in TERMINAL for job in found.values())

    # One worker recovers the jobs of dead ones all the time.
    async with working(live, sibling.handler, tick=TICK, queues=["nothing"]):
        while not await is_over():
            if worker is None or worker.poll() is not None:
                await expire_leases(backend, live)
                worker = processes.start(slots=21)
            await asyncio.sleep(0.02)
    parked = await row(live, guilty)
    assert (parked.status, parked.attempts) == (Status.DEAD_LETTERED, 2)
    assert processes.journal.deaths == 4  # max_attempts and two
    ended = (await live.get(innocent)).values()
    assert {(job.status, job.attempts) for job in ended} == {(Status.SUCCEEDED, 1)}
    await live.aclose()


async def test_a_held_interpreter_keeps_its_lease_for_a_while_but_not_for_long(
    live: SqlStore, processes: Processes
):
    process = processes.start()
    await until(lambda: "started" in processes.log)
    short = await submit_with(live, "hold_interpreter", {"lease": 10.0}, seconds=0.5)
    async with working(live, hold_interpreter.handler, tick=TICK, queues=["nothing"]):
        kept = await finished(live, short)
    assert (result(kept), kept.attempts) == (1, 1)

    os.mkfifo(processes.journal.pipe)
    too_long = await submit(live, "hold_interpreter")
    await until(lambda: processes.journal.lines().count("holding 1") == 2)
    async with working(live, hold_interpreter.handler, tick=TICK):
        job = await finished(live, too_long)
    assert (result(job), job.attempts) == (2, 2)
    os.close(os.open(processes.journal.pipe, os.O_WRONLY | os.O_NONBLOCK))
    await until(lambda: "heartbeats were" in processes.log)
    late = [line for line in processes.log.splitlines() if "heartbeats were" in line]
    assert "hold_interpreter" in late[-1]
    await until(lambda: "came too late" in processes.log or "lost its lease" in processes.log)
    process.terminate()
    assert await died(process) == Exit.DRAINED.value
    await live.aclose()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_process_whose_handlers_cannot_be_stopped_exits_all_the_same(
    live: SqlStore, processes: Processes
):
    job_id = await submit(live, "deaf")
    process = processes.start()
    assert await died(process) == Exit.STUCK.value
    job = await row(live, job_id)
    assert (job.status, job.last_error) == (Status.DEAD_LETTERED, "timed out after 0.05 s")
    await live.aclose()


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_sigterm_drains_and_a_second_one_hands_back(live: SqlStore, processes: Processes):
    job_id = await submit(live, "slow_at_first")
    process = processes.start()
    await until(lambda: "started 1" in processes.journal.lines())
    process.terminate()
    await until(lambda: "draining" in processes.log)
    assert process.poll() is None
    await asyncio.sleep(0.1)  # sooner it would be taken for the first one
    process.terminate()
    assert await died(process) == Exit.ABORTED.value
    job = await row(live, job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)
    await live.aclose()

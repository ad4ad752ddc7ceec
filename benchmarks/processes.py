"""Workers and servers as a user starts them, and what the system says about them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.databases import Batch, Database, Drained
from tests.support.scratch_postgres import free_port

ROOT = Path(__file__).resolve().parent.parent
SPAWN = multiprocessing.get_context("spawn")
POLL_INTERVAL = 0.05
START_WITHIN = 30.0
STOP_WITHIN = 30.0


class PulsedProcess:
    """A command of pulsed on one database or server."""

    def __init__(self, url: str, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pulsed", *command],
            cwd=ROOT,
            env={**os.environ, "PULSED_URL": url, "PULSED_LOG_LEVEL": "warning"},
            stdin=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    def must_live(self) -> None:
        """Raise if it has ended, with its stderr."""
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"a process ended with code {code} in the middle of a measurement")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Let it drain; kill it if that takes too long."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_WITHIN)
            except subprocess.TimeoutExpired:
                self.kill()

    def memory(self) -> float:
        """Return its resident memory in MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"the process with pid {self.pid} has ended")

    def cpu_seconds(self) -> float:
        """Return the processor time it has used."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


class WorkerProcess(PulsedProcess):
    """``pulsed worker`` on an app of the benchmarks, with its defaults except for what is given."""

    def __init__(self, url: str, *options: str, app: str = "benchmarks.app:app") -> None:
        super().__init__(url, "worker", app, *options)


class ListeningProcess(PulsedProcess):
    """A command that listens on a port."""

    def __init__(self, database: Database, *command: str) -> None:
        self.port = free_port()
        super().__init__(database.url, *command, "--listen", f"127.0.0.1:{self.port}")

    def __enter__(self) -> Self:
        """Wait until it can be connected to."""
        give_up = time.monotonic() + START_WITHIN
        while not self._listens():
            self.must_live()
            if time.monotonic() > give_up:
                self.kill()
                raise RuntimeError(f"a server did not listen within {START_WITHIN:g} s")
            time.sleep(POLL_INTERVAL)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class ServerProcess(ListeningProcess):
    """``pulsed server`` on a database, with its defaults."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "server")
        self.url = f"pulse://127.0.0.1:{self.port}"


class DashboardProcess(ListeningProcess):
    """``pulsed ui`` on a database, for visitors who may do everything."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "ui", "--role", "admin", "--log-level", "warning")


def drain(
    database: Database,
    batch: Batch,
    *,
    url: str | None = None,
    processes: int = 1,
    concurrency: int = 100,
    limit: float = 60.0,
) -> Drained:
    """Let worker processes drain a batch, and return how it went.

    They use the database's URL, or that of a server.
    Jobs that are not done after ``limit`` seconds are left: a rate near zero is a result too.
    """
    options = ("-c", str(concurrency))
    workers = [WorkerProcess(url or database.url, *options) for _ in range(processes)]
    try:
        wait_until_done(database, batch, limit, workers)
    finally:
        for worker in workers:
            worker.stop()
    return database.drained(batch)


def wait_until_done(
    database: Database, batch: Batch, limit: float, workers: Sequence[WorkerProcess] = ()
) -> bool:
    """Wait until all jobs have ended.

    Watching must not slow down what is watched, so the last job is read until it has ended. Then
    the few that ended after it are waited for, from where the previous poll stopped.
    """
    give_up = time.monotonic() + limit
    first: Any = batch.first
    while not database.is_finished(batch.last) or (
        (first := database.first_unfinished(batch, first)) is not None
    ):
        if time.monotonic() > give_up:
            return False
        for worker in workers:
            worker.must_live()
        time.sleep(POLL_INTERVAL)
    return True


def in_processes(task: Callable[..., Any], *calls: Sequence[Any]) -> list[Any]:
    """Run ``task(*call)`` for each call in its own process, all at once."""
    with ProcessPoolExecutor(len(calls), mp_context=SPAWN) as pool:
        return [running.result() for running in [pool.submit(task, *call) for call in calls]]

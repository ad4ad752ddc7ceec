"""``python3 dev.py recovery``: how soon a killed worker's job runs again, beside other queues.

A worker has taken one job and holds it, a second worker is up, and the first one is killed with all
its processes. The time runs from the kill to the first line of the handler elsewhere. Each queue
runs with its default settings, and with the shortest that it allows within reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.homes import python_with
from tests.chaos.checker import Check
from tests.chaos.report import Report
from tests.support.scratch_postgres import ScratchPostgres, free_port

PEERS = Path(__file__).parent / "peers"
START_WITHIN = 60.0
SETTLE = 5.0
"""Seconds for the second worker to start."""
LIMIT = 130.0
"""Seconds after which a job is taken for lost."""


@dataclass(frozen=True)
class Queue:
    """One queue with one set of settings."""

    title: str
    settings: str
    script: str
    packages: tuple[str, ...] = ()
    tuned: bool = False
    broker: str = "postgres"
    restarts: bool = False
    """Whether a new process recovers the job when it starts, not one that is up."""
    documented: float = 0.0
    """Seconds that its documentation names, where waiting for them is pointless."""


QUEUES = [
    Queue("pulsed", "defaults: lease 30 s, tick 10 s", "pulsed_recovery_worker.py"),
    Queue("pulsed", "lease 2 s, tick 1 s", "pulsed_recovery_worker.py", tuned=True),
    Queue(
        "Procrastinate",
        "defaults: stalled after 30 s; retried by a task of yours, each minute",
        "procrastinate_recovery_worker.py",
        ("procrastinate",),
    ),
    Queue(
        "Procrastinate",
        "heartbeat 1 s, stalled after 3 s, the task each second",
        "procrastinate_recovery_worker.py",
        ("procrastinate",),
        tuned=True,
    ),
    Queue(
        "Celery on Redis",
        "acks_late; default visibility timeout",
        "celery_recovery_worker.py",
        ("celery[redis]",),
        broker="redis",
        documented=3600.0,
    ),
    Queue(
        "Celery on Redis",
        "acks_late, visibility timeout 5 s",
        "celery_recovery_worker.py",
        ("celery[redis]",),
        tuned=True,
        broker="redis",
    ),
    Queue(
        "DBOS",
        "the process is started again at once, with the same executor id",
        "dbos_recovery_queue.py",
        ("dbos",),
        restarts=True,
    ),
]


@contextmanager
def redis() -> Iterator[str]:
    """Yield the URL of a Redis of our own, or raise if there is none."""
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed; apt-get install redis-server")
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def broker(kind: str, server: ScratchPostgres, number: int) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if kind == "redis":
        with redis() as url:
            yield url
        return
    import psycopg  # noqa: PLC0415 - heavy

    name = f"recovery_{number}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.database_url(name)


def measure(queue: Queue, server: ScratchPostgres, number: int) -> float:
    """Return the seconds from the kill to the next run; infinite if there was none."""
    python = _python(queue)
    with tempfile.TemporaryDirectory() as folder, broker(queue.broker, server, number) as url:
        record = Path(folder, "record")
        command = [python, str(PEERS / queue.script), url, str(record)]
        subprocess.run([*command, "enqueue"], check=True, cwd=folder, capture_output=True)
        work = [*command, "work", *(["tuned"] if queue.tuned else [])]
        workers = [_start(work, folder)]
        try:
            _lines(record, 1, START_WITHIN)
            if not queue.restarts:
                workers.append(_start(work, folder))
                time.sleep(SETTLE)
            killed = time.time_ns()
            _kill(workers[0])
            if queue.restarts:
                workers.append(_start(work, folder))
            lines = _lines(record, 2, LIMIT)
            return (int(lines[1].split()[0]) - killed) / 1e9
        except TimeoutError:
            return float("inf")
        finally:
            for worker in workers:
                _kill(worker)


def _python(queue: Queue) -> str:
    """Return a Python that has the queue."""
    if not queue.packages:
        return sys.executable
    return str(python_with(queue.packages[0].split("[")[0], queue.packages))


def _start(command: list[str], folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a worker with its processes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _lines(record: Path, number: int, patience: float) -> list[str]:
    give_up_at = time.monotonic() + patience
    while True:
        lines = record.read_text().splitlines() if record.exists() else []
        if len(lines) >= number:
            return lines
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{len(lines)} runs after {patience:g} s")
        time.sleep(0.02)


def said(queue: Queue, found: list[float]) -> str:
    """Return a line of the table."""
    if queue.documented and min(found, default=float("inf")) == float("inf"):
        time_taken = f"{queue.documented:,.0f} s, as documented"
    elif float("inf") in found:
        time_taken = f"not within {LIMIT:g} s"
    else:
        time_taken = f"{statistics.median(found):.1f} s ({min(found):.1f} to {max(found):.1f})"
    return f"{queue.title}; {queue.settings}: {time_taken}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev.py recovery", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="kills of each (3)")
    parser.add_argument("--only", help="part of a name, such as pulsed")
    parser.add_argument("--save", action="store_true", help="write docs/reliability/recovery.json")
    options = parser.parse_args()
    chosen = [each for each in QUEUES if (options.only or "").lower() in each.title.lower()]
    began, numbers = time.monotonic(), iter(range(1000))
    times: dict[Queue, list[float]] = {each: [] for each in chosen}
    with ScratchPostgres(fsync=True) as server:
        for _ in range(options.repeat):
            for queue in chosen:
                if not queue.documented:
                    times[queue].append(measure(queue, server, next(numbers)))
                    print(said(queue, times[queue][-1:]), flush=True)
    report = Report(
        "recovery",
        "recovery",
        "Recovery of a killed worker's job",
        "python3 dev.py recovery",
        "postgres",
        time.monotonic() - began,
        {"kills": sum(map(len, times.values()))},
        [_check(queue, found) for queue, found in times.items()],
        more={"times": [_row(queue, found) for queue, found in times.items()]},
    )
    print("\n".join(said(queue, found) for queue, found in times.items()))
    if options.save:
        report.save()
    return 0 if report.ok else 1


def _check(queue: Queue, found: list[float]) -> Check:
    """Only pulsed promises us anything: a lease and a tick, and more on a busy machine."""
    if queue.title != "pulsed":
        return Check("-", said(queue, found), 1, 0)
    within = (2.0 + 1.0 if queue.tuned else 30.0 + 10.0) * 3
    return Check("I6", said(queue, found), len(found), sum(each > within for each in found))


def _row(queue: Queue, found: list[float]) -> dict[str, object]:
    seconds = [round(each, 2) for each in found if each != float("inf")]
    return {"queue": queue.title, "settings": queue.settings, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())

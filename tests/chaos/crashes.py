"""Jobs that kill their process among many that do not, under a supervisor: who pays for it?

    python3 dev.py chaos --crashes --jobs 1000 --workers 4

Nine jobs in a thousand end their worker process. Plain SQL, and a file in which every run wrote a
line, then say whether the others lost attempts to them, and whether the load drained at all. The
first crash waits for a neighbour in its process, and no neighbour ends before it: whatever the
timing, at least one is interrupted.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from pulsed import Backoff, Pulse, Router
from tests.chaos.checker import Check
from tests.chaos.report import Progress, Report
from tests.chaos.tables import ENDED, Query, as_json, as_uuid, reading
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.waiting import until

LEASE, TICK = 1.5, 0.5
"""Long enough that no live worker loses a job, which would count against the neighbours."""
ONE_IN = 111
"""0.9 %."""
PATIENCE = 400.0
"""Seconds to drain: a supervisor waits longer and longer before it replaces who dies soon."""
BATCH = 500
FREE_CRASHES = 2
"""Runs that a job may lose with others before it has to pay."""

router = Router()
fragile: Any = {"lease": LEASE, "max_attempts": 3, "backoff": Backoff.fixed(0.05)}


def note(n: int) -> None:
    """Write down that a run began; lines of several processes do not mix."""
    with Path(os.environ["PULSED_RUNS"]).open("a") as runs:
        runs.write(f"{n}\n")


def first_crash() -> Path:
    """Return the file that exists once a process has crashed."""
    return Path(os.environ["PULSED_RUNS"] + ".crashed")


beside: set[int] = set()
"""The neighbours that run in this process."""


@router.job(**fragile)
async def neighbour(n: int) -> int:
    note(n)
    beside.add(n)
    await asyncio.sleep(random.uniform(0.02, 0.2))
    await until(first_crash().exists)
    beside.remove(n)
    return n


@router.job(**fragile | {"max_attempts": 1})
async def crash(n: int) -> int:
    note(n)
    await until(lambda: beside or first_crash().exists())
    first_crash().touch()
    os._exit(9)


app = Pulse(os.environ.get("PULSED_URL"))
app.include(router)


@contextmanager
def supervisor(url: str, runs: Path, processes: int) -> Iterator[None]:
    """Run one supervisor with so many workers; only the jobs kill processes."""
    options = ["--processes", str(processes), "--concurrency", "20", "--poll", "0.2s"]
    worker = [sys.executable, "-m", "pulsed", "worker", "tests.chaos.crashes:app", *options]
    process = subprocess.Popen(
        [*worker, "--tick", f"{TICK}s", "--log-level", "error"],
        env=os.environ | {"PULSED_URL": url, "PULSED_RUNS": str(runs)},
        stderr=subprocess.DEVNULL,  # what it says of dead letters
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def enqueue(url: str, jobs: int) -> list[UUID]:
    """Enqueue all; the first one crashes: it is claimed before neighbours fill all slots."""
    app.url = url
    calls = [crash.bind(n) if n % ONE_IN == 0 else neighbour.bind(n) for n in range(jobs)]
    ids: list[UUID] = []
    for start in range(0, jobs, BATCH):
        for kind in (crash, neighbour):
            some = [call for call in calls[start : start + BATCH] if call.topic == kind.topic]
            ids += [job.id for job in kind.enqueue_many(some)]
    app.close()
    return ids


def drain(url: str, show: Progress) -> None:
    """Wait until everything has ended."""
    give_up_at = time.monotonic() + PATIENCE
    living = f"SELECT count(*) FROM pulse_jobs WHERE status NOT IN {ENDED}"
    with reading(url) as query:
        while (left := query(living)[0][0]) and time.monotonic() < give_up_at:
            show(f"{left:,} to go")
            time.sleep(0.05)


def check(query: Query, acknowledged: list[UUID], runs: Counter[int]) -> list[Check]:
    """Return for each promise whether it was kept."""
    rows = query("SELECT id, topic, status, attempts, max_attempts, payload FROM pulse_jobs")
    crashing = [row for row in rows if row[1] == crash.topic]
    others = [row for row in rows if row[1] == neighbour.topic]
    interrupted = [row for row in others if _runs(row, runs) > 1]

    def made(invariant: str, what: str, of: Collection[Any], bad: Collection[Any]) -> Check:
        return Check(invariant, what, len(of), len(bad), str(next(iter(bad), "")))

    return [
        made(
            "I1",
            "acknowledged jobs are stored",
            acknowledged,
            set(acknowledged) - {as_uuid(row[0]) for row in rows},
        ),
        made("I11", "neighbours succeed", others, [row for row in others if row[2] != "SUCCEEDED"]),
        made(
            "I5",
            "interrupted neighbours lose no attempt to the first two crashes",
            interrupted,
            [row for row in others if row[3] - 1 > max(0, _runs(row, runs) - 1 - FREE_CRASHES)],
        ),
        made(
            "I11",
            "crashing jobs are dead letters",
            crashing,
            [row for row in crashing if row[2] != "DEAD_LETTERED"],
        ),
        made(
            "I5",
            "crashing jobs run at most twice more than their attempts",
            crashing,
            [row for row in crashing if _runs(row, runs) > (row[4] or 0) + FREE_CRASHES],
        ),
    ]


def _runs(row: Any, runs: Counter[int]) -> int:
    return runs[as_json(row[5])["n"]]


@contextmanager
def scratch_database(engine: str, folder: str) -> Iterator[str]:
    """Yield the URL of a new database with its tables."""
    if engine == "sqlite":
        yield _with_tables(f"sqlite:///{folder}/jobs.db")
        return
    with ScratchPostgres() as server:
        yield _with_tables(server.url)


def _with_tables(url: str) -> str:
    with Pulse(url) as first:
        first.jobs.counts()
    return url


def run(engine: str, jobs: int, processes: int) -> Report:
    """Run it on one engine; returns what was found."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, scratch_database(engine, folder) as url:
        written = Path(folder, "runs")
        progress = Progress(engine)
        with supervisor(url, written, processes):
            acknowledged = enqueue(url, jobs)
            drain(url, progress)
        progress.end()
        runs = Counter(map(int, written.read_text(encoding="ascii").split()))
        with reading(url) as query:
            checks = check(query, acknowledged, runs)
    crashes = sum(number for n, number in runs.items() if n % ONE_IN == 0)
    return Report(
        "chaos",
        f"crashes-{engine}",
        f"Crashes under a supervisor, {engine}",
        f"python3 dev.py chaos --crashes --engine {engine}",
        engine,
        time.monotonic() - began,
        {"jobs": jobs, "crashes": crashes, "runs": runs.total()},
        checks,
    )

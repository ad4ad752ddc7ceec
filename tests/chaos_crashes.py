"""Jobs that kill their process among many that do not, under a supervisor: who pays for it?

    python -m tests.chaos --crashes --jobs 1000 --workers 4 --engine both

Nine jobs in a thousand end their worker process. Plain SQL, and a file in which every run wrote a
line, then say whether the others lost attempts to them, and whether the load drained at all. The
first crash waits for a neighbour in its process, and no neighbour ends before it: whatever the
timing, at least one is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from uuid import UUID

from pulsed import Backoff, Pulse, Router
from tests.chaos import Progress, Query, Storm, _json, _uuid, reading, scratch_database
from tests.support.waiting import until

LEASE, TICK = 1.5, 0.5
"""Long enough that no live worker loses a job, which would count against the neighbours."""
ONE_IN = 111
"""0.9 %."""
PATIENCE = 400.0
"""Seconds to drain: a supervisor waits longer and longer before it replaces who dies soon."""
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


class CrashStorm(Storm):
    """One supervisor with all the workers; only the jobs kill processes."""

    runs: Path

    def _plan(self) -> list[Any]:
        # The first job is one that crashes: it is claimed before neighbours fill all slots.
        return [neighbour if n % ONE_IN else crash for n in range(self.jobs)]

    def _producer(self) -> Pulse:
        app.url = self.url
        return app

    def rage(self, show: Callable[[str], None]) -> None:
        workers, self.workers = self.workers, 1
        self._processes = workers
        super().rage(show)

    def _start_worker(self) -> subprocess.Popen[bytes]:
        options = ["--processes", str(self._processes), "--concurrency", "20", "--poll", "0.2s"]
        worker = [sys.executable, "-m", "pulsed", "worker", "tests.chaos_crashes:app", *options]
        return subprocess.Popen(
            [*worker, "--tick", f"{TICK}s", "--log-level", "error"],
            env=os.environ | {"PULSED_URL": self.url, "PULSED_RUNS": str(self.runs)},
            stderr=subprocess.DEVNULL,  # what it says of dead letters
        )

    def _kill_one(self) -> None:
        """Leave that to the jobs."""

    @property
    def has_killed(self) -> bool:
        return True


def violations(query: Query, acknowledged: list[UUID], runs: Counter[int]) -> tuple[list[str], str]:
    """Return a line for each promise that was broken, and what happened in numbers."""
    rows = query("SELECT id, topic, status, attempts, max_attempts, payload FROM pulse_jobs")
    crashing = [row for row in rows if row[1] == crash.topic]
    others = [row for row in rows if row[1] == neighbour.topic]
    crashes = [_runs(row, runs) for row in crashing]
    interrupted = [_runs(row, runs) - 1 for row in others if _runs(row, runs) > 1]
    found: list[tuple[Collection[Any], str]] = [
        (set(acknowledged) - {_uuid(row[0]) for row in rows}, "acknowledged jobs are not there"),
        ([row for row in others if row[2] != "SUCCEEDED"], "neighbours have not succeeded"),
        (
            [row for row in others if row[3] - 1 > max(0, _runs(row, runs) - 1 - FREE_CRASHES)],
            "neighbours lost an attempt",
        ),
        ([row for row in crashing if row[2] != "DEAD_LETTERED"], "crashing jobs are not parked"),
        (
            [row for row in crashing if _runs(row, runs) > (row[4] or 0) + FREE_CRASHES],
            "crashing jobs ran too often",
        ),
    ]
    lines = [f"{len(bad):,} {what}" for bad, what in found if bad]
    if not interrupted:
        lines.append("no neighbour was ever interrupted: nothing was put to the test")
    told = (
        f"{sum(crashes)} crashes by {len(crashing)} jobs; of {len(others):,} others "
        f"{len(interrupted):,} were interrupted, at most {max(interrupted, default=0)} times, and "
        f"{sum(row[3] > 1 for row in others)} paid for more than two crashes"
    )
    return lines, told


def _runs(row: Any, runs: Counter[int]) -> int:
    return runs[_json(row[5])["n"]]


def run(engine: str, options: argparse.Namespace) -> bool:
    """Run the storm on one engine and print what is left of it; True if all is well."""
    with scratch_database(engine) as url, tempfile.TemporaryDirectory() as folder:
        with Pulse(url) as first:
            first.jobs.counts()  # create the tables before any process needs them
        storm = CrashStorm(
            url, options.seconds, options.jobs, options.workers, random.Random(options.seed)
        )
        storm.runs = Path(folder, "runs")
        storm.patience = PATIENCE
        progress = Progress(engine)
        began = time.monotonic()
        storm.rage(progress)
        progress.end()
        took = time.monotonic() - began
        runs = Counter(map(int, storm.runs.read_text(encoding="ascii").split()))
        with reading(url) as query:
            found, told = violations(query, storm.acknowledged, runs)
    verdict = [f"VIOLATED: {line}" for line in found] or ["every promise was kept"]
    lines = [f"{engine}: {told}; {took:.0f} s; seed {options.seed}", *verdict]
    sys.stdout.write("\n  ".join(lines) + "\n")
    sys.stdout.flush()
    return not found
